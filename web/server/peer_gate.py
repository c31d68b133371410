"""Who may use the page of `jobscribe up`: the unix user who started it, and root."""

import os
import socket
import weakref
from collections.abc import Callable

from ...protocol.errors import Refusal
from ...runtime.connections import socket_owner
from ...runtime.connections.socket_owner import Address
from ...runtime.log.logger import Log


class PeerGate:
    """Lets in this process's unix user, and root. owner: the unix user of a peer (default: the
    kernel's word).
    """

    def __init__(
        self, log: Log, owner: Callable[[Address, Address], int | None] | None = None
    ) -> None:
        self._log, self.owner = log, owner or socket_owner.owner
        #: Connections that were let in: a socket does not change its owner.
        self._let_in: weakref.WeakSet[object] = weakref.WeakSet()

    def check(self, connection: object, sock: socket.socket | None) -> None:
        """Raises Refusal("forbidden") for anybody else, and where nobody knows. Called for each
        request. sock: None once it is closed.
        """
        if connection in self._let_in:
            return
        try:
            uid = (
                None if sock is None else self.owner(sock.getpeername()[:2], sock.getsockname()[:2])
            )
        except OSError:
            uid = None  # the connection has gone
        if uid not in (0, os.geteuid()):
            self._log("refused a request of unix uid {}", "unknown" if uid is None else uid)
            raise Refusal(
                "forbidden",
                "this site is for the unix user who started it; start your own with 'jobscribe up'",
            )
        self._let_in.add(connection)
