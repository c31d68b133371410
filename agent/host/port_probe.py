"""Which ports of this machine somebody listens on, found out by trying."""

import contextlib
import socket
from collections.abc import Iterable


def taken(ports: Iterable[int]) -> list[int]:
    """Of these, the ones that nobody could listen on now. What was listened on a moment ago, and is
    not any more, is free.
    """
    return [port for port in ports if not _free(port)]


def _free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as tried:
        # otherwise connections of a server that has ended would keep its port for a minute; servers
        # set this, too
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            # no listening: somebody who waits for a server there could be let in, and thrown out
            # again
            tried.bind(("", port))
        except OSError:
            return False
    return True
