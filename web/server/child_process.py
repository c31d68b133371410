"""The start protocol between `jobscribe up` and its front end child. Imports nothing of the front
end.
"""

import socket
from typing import Any

import msgspec

from ...protocol.errors import Refusal

#: Name of the child's module for `python -m`.
MODULE = "jobscribe.web"


class Start(msgspec.Struct, frozen=True):
    """Message to the child on its standard input, which stays open while the parent lives.

    listen: descriptor of the listening socket. ready: descriptor of a pipe; the child writes one
    byte when it serves.
    """

    options: dict[str, Any]
    file: str | None
    listen: int
    ready: int


def bound(ip: str, port: int) -> socket.socket:
    """Return a listening socket. Raises Refusal("portTaken")."""
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
    """Return the URL of the socket."""
    return f"http://{f'[{ip}]' if ':' in ip else ip}:{listening.getsockname()[1]}"
