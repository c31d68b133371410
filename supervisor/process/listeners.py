"""Listening sockets: bound before connections are accepted, and paused while descriptors or memory
are short.

Without the pause the event loop would be notified of the waiting connection again and again, at
full load. Waiting connections stay in the kernel's queue until there is capacity; established
connections continue.
"""

import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tornado.netutil
from tornado.ioloop import IOLoop

from ...protocol.errors import Refusal
from ...service.site import certificates

#: Length of the kernel's queue: a thousand agents may reconnect at once. Refused clients retry
#: after a second or more.
BACKLOG = 4096
#: Pause without accepting connections, seconds.
PAUSE_SECS = 0.5
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)

Bound = list[socket.socket]


def bound(ip: str, port: int) -> Bound:
    """Return bound sockets. Connections wait in the kernel's queue until they are accepted. Raises
    Refusal("portTaken").
    """
    try:
        return tornado.netutil.bind_sockets(port, ip, backlog=BACKLOG)
    except OSError as e:
        raise Refusal("portTaken", f"port {port} of {ip} cannot be used: {e.strerror}") from None


def bound_path(path: str) -> Bound:
    """Return a bound Unix socket for this unix user alone. Raises Refusal("badConfig")."""
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of an earlier supervisor of this root, which is locked
        return [tornado.netutil.bind_unix_socket(path, mode=0o600, backlog=BACKLOG)]
    except OSError as e:
        raise Refusal(
            "badConfig",
            f"the socket {path} cannot be used: {e.strerror or e}; choose a shorter root",
        ) from None


def port_of(sockets: Bound) -> int:
    return int(sockets[0].getsockname()[1])


class PausingListener(socket.socket):
    """Replaces a bound socket and pauses when accept fails for lack of resources. noticed(what,
    detail): called once for each shortage.

    make_room: closes another connection if possible.
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
        self._paused = False

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            accepted = super().accept()
        except OSError as e:
            if e.errno not in _SHORTAGES:
                raise
            if self._make_room():
                raise BlockingIOError(
                    errno.EAGAIN, "another connection was closed; try again"
                ) from None
            self._pause(e)
            raise BlockingIOError(errno.EAGAIN, "paused for lack of resources") from None
        self._paused = False
        return accepted

    def _pause(self, error: OSError) -> None:
        if not self._paused:
            self._paused = True
            self._noticed("noConnectionTaken", f"connections wait: {error.strerror}")
        loop = IOLoop.current()
        loop.update_handler(self, 0)
        loop.call_later(PAUSE_SECS, self._resume, loop)

    def _resume(self, loop: IOLoop) -> None:
        if self.fileno() >= 0:  # the server still runs
            loop.update_handler(self, IOLoop.READ)


def pausing_listeners(
    bound: Iterable[socket.socket],
    noticed: Callable[[str, str], None],
    make_room: Callable[[], bool],
) -> list[socket.socket]:
    return [PausingListener(s, noticed, make_room) for s in bound]


class ServerCertificate:
    """The TLS context of a listener. Its certificate follows the files: connections that are
    accepted after `refresh` get the new one.
    """

    def __init__(self, name: str, cert: str, key: str) -> None:
        """name: of the listener. Raises Refusal("badConfig")."""
        self.name, self._cert, self._key = name, cert, key
        self._announced: str | None = None
        self._seen = self._state()
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            self.context.load_cert_chain(cert, key)
        except OSError as e:  # includes SSLError
            raise Refusal("badConfig", self._sentence(e)) from None
        #: Time at which the certificate in use expires, unix seconds; None if it is not known.
        self.expires = certificates.expiry(cert)

    def expired(self, now: float) -> bool:
        return self.expires is not None and self.expires <= now

    def expiry_sentence(self, now: float) -> str | None:
        """Return a sentence if the certificate has expired or will soon; else None."""
        if self.expires is None:
            return None
        return certificates.expiry_sentence(self._cert, self.expires, now)

    def announce(self, now: float) -> Iterator[str]:
        """Yield the sentence to log if it has changed since the last call, for example each day."""
        sentence = self.expiry_sentence(now)
        if sentence != self._announced:
            self._announced = sentence
            if sentence is not None:
                yield sentence

    def refresh(self) -> bool:
        """Load changed files. Return whether there were any. Raises Refusal("badConfig"): the earlier
        certificate stays in use, until the files change again.
        """
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        try:
            # a certificate without its key would leave the context without both
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                self._cert, self._key
            )
            self.context.load_cert_chain(self._cert, self._key)
        except OSError as e:
            raise Refusal("badConfig", self._sentence(e)) from None
        self.expires = certificates.expiry(self._cert)
        return True

    def _state(self) -> tuple[object, ...]:
        """Return what changes with the files; empty for a missing one."""
        out: list[object] = []
        for path in (self._cert, self._key):
            with contextlib.suppress(OSError):
                info = os.stat(path)
                out.append((info.st_ino, info.st_size, info.st_mtime_ns))
        return tuple(out)

    def _sentence(self, error: OSError) -> str:
        reason = error.strerror or str(error)
        return f"certificate {self._cert} and key {self._key} cannot be used: {reason}"


def certificate(name: str, cert: str | None, key: str | None) -> ServerCertificate | None:
    """Return a listener's certificate, None without files. Raises Refusal("badConfig")."""
    return None if cert is None or key is None else ServerCertificate(name, cert, key)
