"""Detection of ports in use on this machine, by binding them."""

import contextlib
import socket
from collections.abc import Iterable


def ports_in_use(ports: Iterable[int]) -> list[int]:
    """Return the ports that cannot be bound now. A port whose server has just ended is free."""
    return [port for port in ports if not _is_free(port)]


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as tried:
        # without it, connections of an ended server would block its port for a minute; servers set
        # it too
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            # bind only, no listen: a client waiting for a server there would connect and be dropped
            tried.bind(("", port))
        except OSError:
            return False
    return True
