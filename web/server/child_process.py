"""What a process and the front end that it starts as its child agree on. Imports nothing of the
front end itself.
"""

import socket
from typing import Any

import msgspec

from ...protocol.errors import Refusal

#: The child, as `python -m` knows it.
MODULE = "jobscribe.web"


class Start(msgspec.Struct, frozen=True):
    """What the child is told on its standard input, which is held open for as long as the parent
    lives.

    listen, ready: descriptors of the listening socket, and of a pipe on which one byte says that it
    serves.
    """

    options: dict[str, Any]
    file: str | None
    listen: int
    ready: int


def bound(ip: str, port: int) -> socket.socket:
    """A listening socket. Raises Refusal("portTaken")."""
    listening = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((ip, port))
        listening.listen(128)
    except OSError as e:
        listening.close()
        raise Refusal(
            "portTaken", f"port {port} of {ip} cannot be used: {e.strerror or e}"
        ) from None
    return listening


def url_of(ip: str, listening: socket.socket) -> str:
    """As browsers write it."""
    return f"http://{f'[{ip}]' if ':' in ip else ip}:{listening.getsockname()[1]}"
