"""Access check for the page of `jobscribe up`: only the unix user who started it, and root."""

import os
import socket
import weakref
from collections.abc import Callable

from ...protocol.errors import Refusal
from ...runtime.connections import socket_owner
from ...runtime.connections.socket_owner import Address
from ...runtime.log.logger import Log


class PeerGate:
    """Admits connections of this process's unix user and of root. owner: returns the unix uid of a
    peer (default: asks the kernel).
    """

    def __init__(
        self, log: Log, owner: Callable[[Address, Address], int | None] | None = None
    ) -> None:
        self._log, self.owner = log, owner or socket_owner.owner
        #: Admitted connections; the owner of a socket does not change.
        self._let_in: weakref.WeakSet[object] = weakref.WeakSet()

    def check(self, connection: object, sock: socket.socket | None) -> None:
        """Raise Refusal("forbidden") for any other or unknown user. Called for each request. sock:
        None if closed.
        """
        if connection in self._let_in:
            return
        try:
            uid = (
                None if sock is None else self.owner(sock.getpeername()[:2], sock.getsockname()[:2])
            )
        except OSError:
            uid = None  # the connection is closed
        if uid not in (0, os.geteuid()):
            self._log("refused a request of unix uid {}", "unknown" if uid is None else uid)
            raise Refusal(
                "forbidden",
                "this site is only for the unix user who started it; start your own with 'jobscribe up'",
            )
        self._let_in.add(connection)
