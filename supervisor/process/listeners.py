"""Listening sockets: bound before anybody is taken in, and waiting where a connection cannot be
taken in for want of descriptors or memory.

Without this the loop would be told of the waiting connection again and again, and do nothing else.
Who waits is in the kernel's queue, and is served when there is room; who is connected notices
nothing.
"""

import errno
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any

import tornado.netutil
from tornado.ioloop import IOLoop

from ...protocol.errors import Refusal
from ...service.settings.settings import SupervisorSettings

#: So many connections may wait to be taken: a thousand agents come back at once, and who finds no
#: place tries again after a second or more.
BACKLOG = 4096
#: Then nobody is taken in for this long (seconds).
PAUSE_SECS = 0.5
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)

Bound = list[socket.socket]


def bound(ip: str, port: int) -> Bound:
    """Sockets at which connections wait already, and are not taken in yet. Raises
    Refusal("portTaken").
    """
    try:
        return tornado.netutil.bind_sockets(port, ip, backlog=BACKLOG)
    except OSError as e:
        raise Refusal("portTaken", f"port {port} of {ip} cannot be used: {e.strerror}") from None


def port_of(sockets: Bound) -> int:
    return int(sockets[0].getsockname()[1])


class PausingListener(socket.socket):
    """Takes the place of a bound one, for an accept handler of the running loop. noticed(what,
    detail): once for each shortage.

    make_room: ends another connection, if there is one that may be ended.
    """

    def __init__(
        self,
        bound: socket.socket,
        noticed: Callable[[str, str], None],
        make_room: Callable[[], bool],
    ) -> None:
        super().__init__(fileno=bound.detach())
        self.setblocking(False)
        self._noticed, self._make_room = noticed, make_room
        self._short = False

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            accepted = super().accept()
        except OSError as e:
            if e.errno not in _SHORTAGES:
                raise
            if self._make_room():
                raise BlockingIOError(errno.EAGAIN, "there is room at the next try") from None
            self._wait(e)
            raise BlockingIOError(errno.EAGAIN, "nobody is taken in for a while") from None
        self._short = False
        return accepted

    def _wait(self, error: OSError) -> None:
        if not self._short:
            self._short = True
            self._noticed("noConnectionTaken", f"connections wait: {error.strerror}")
        loop = IOLoop.current()
        loop.update_handler(self, 0)
        loop.call_later(PAUSE_SECS, self._again, loop)

    def _again(self, loop: IOLoop) -> None:
        if self.fileno() >= 0:  # else the server has stopped
            loop.update_handler(self, IOLoop.READ)


def patient(
    bound: Iterable[socket.socket],
    noticed: Callable[[str, str], None],
    make_room: Callable[[], bool],
) -> list[socket.socket]:
    return [PausingListener(s, noticed, make_room) for s in bound]


def agents_tls(s: SupervisorSettings) -> ssl.SSLContext | None:
    """Of the listener for agents, where it has a certificate. Raises Refusal("badConfig")."""
    if not s.agents_tls_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(s.agents_tls_cert, s.agents_tls_key)
    except OSError as e:  # SSLError is one
        said = e.strerror or str(e)
        raise Refusal(
            "badConfig",
            f"certificate {s.agents_tls_cert} and key {s.agents_tls_key} cannot be used: {said}",
        ) from None
    return context
