"""The front end's side of the supervisor's HTTP interface: connections that are kept, and one of
its own for each stream.

Nothing is tried for long here: a worker that waits serves nobody, and the browser asks again by
itself.
"""

import contextlib
import http.client
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from ...client.api.errors import ClientError, own
from ...client.api.requests import Call, object_of
from ...client.transport.address import Address, Source
from ...client.transport.connection import Connection, Reply
from ...protocol.api.requests import CallRequest
from ...protocol.redaction import Redactor
from ...protocol.version import VERSION
from ...protocol.wire.handshake import FRONT_END

CHUNK = 64 * 1024
#: A stream on which nothing moves for so long is taken for cut; a call may take so long at most.
IDLE_SECS = 60.0
LONGEST_SECS = 600.0

T = TypeVar("T")


class SupervisorClient:
    """The supervisor, for all threads. Raises ClientError."""

    def __init__(self, source: Source, redactor: Redactor) -> None:
        self._source, self._redactor = source, redactor
        self._lock = threading.Lock()
        self._idle: list[tuple[int, Connection]] = []
        self._kept = True

    def address(self) -> Address:
        """Where it is now, looked up anew."""
        address = self._source()
        self._redactor.add(address.token)
        return address

    def reply(self, name: str, request: msgspec.Struct, wait_secs: float = 0.0) -> Reply:
        """What `/api/<name>` answers."""
        call = Call(path=f"/api/{name}", body=msgspec.json.encode(request), wait_secs=wait_secs)
        return self._elsewhere(lambda connection: connection.call(call))

    def post(self, name: str, request: msgspec.Struct, wait_secs: float = 0.0) -> bytes:
        return self.reply(name, request, wait_secs).body

    def once(self, name: str, request: msgspec.Struct, wait_secs: float) -> dict[str, Any]:
        """The same for what must never be sent a second time, on a connection of its own."""
        headers = {"Content-Type": "application/json"}
        with self._connection() as connection:
            sent = connection.stream(
                f"/api/{name}", headers, wait_secs, method="POST", body=msgspec.json.encode(request)
            )
            with Stream(*sent) as stream:
                return object_of(stream.read())

    def object(self, name: str, request: msgspec.Struct) -> dict[str, Any]:
        return object_of(self.post(name, request))

    def call(self, request: CallRequest) -> bytes:
        """What an app computes. Its deadline is kept by the supervisor, which knows it; here only
        the longest there can be.
        """
        return self.post("call", request, request.deadline_secs or LONGEST_SECS)

    def ping(self) -> None:
        """Does it answer?"""
        self.exchange("GET", "/livez")

    def exchange(self, method: str, path: str) -> bytes:
        """A request without a body, and the whole answer."""
        with self._elsewhere(
            lambda c: Stream(*c.stream(path, {}, IDLE_SECS, method=method))
        ) as stream:
            return stream.read()

    def stream(self, name: str, request: msgspec.Struct) -> "Stream":
        """An answer that is passed on piece by piece; to be closed."""
        body, headers = msgspec.json.encode(request), {"Content-Type": "application/json"}
        return self._elsewhere(
            lambda c: Stream(
                *c.stream(f"/api/{name}", headers, IDLE_SECS, method="POST", body=body)
            )
        )

    def upload(self, path: str, pieces: Iterable[bytes], length: int) -> bytes:
        """Send these pieces, of `length` bytes in all. Tried once: they cannot be had again."""
        headers = {"Content-Length": str(length), "Content-Type": "application/octet-stream"}
        with (
            self._connection() as connection,
            Stream(
                *connection.stream(path, headers, IDLE_SECS, method="PUT", body=pieces)
            ) as stream,
        ):
            return stream.read()

    def close(self) -> None:
        """Give back the connections that lie idle, and from now on each that was used."""
        self._kept = False
        for _, connection in self._take_all():
            connection.close()

    def _elsewhere(self, once: Callable[[Connection], T]) -> T:
        """Tried again, once, where the supervisor was started anew in another place, or with
        another secret.
        """
        with self._connection() as connection:
            before = connection.address()
            try:
                return once(connection)
            except ClientError as e:
                if e.code not in ("unreachable", "unauthenticated") or self.address() == before:
                    raise
                connection.forget()
                return once(connection)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        """One that nobody else uses meanwhile. A process that was forked has its own."""
        with self._lock:
            pid, connection = self._idle.pop() if self._idle else (0, None)
        if connection is None or pid != os.getpid():
            pid, connection = (
                os.getpid(),
                Connection(self.address, budget_secs=0.0, headers={FRONT_END: VERSION}),
            )
        try:
            yield connection
        finally:
            with self._lock:
                self._idle.append((pid, connection))
            if not self._kept:  # its request was still on its way when the site was closed
                self.close()

    def _take_all(self) -> list[tuple[int, Connection]]:
        with self._lock:
            taken, self._idle = self._idle, []
            return taken


class Stream:
    """An answer whose body is read as it comes."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._connection, self._response = connection, response

    def __enter__(self) -> "Stream":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def header(self, name: str) -> str:
        value = self._response.headers[name]
        if value is None:
            raise own("notASupervisor", f"an answer without the header {name}")
        return str(value)

    def read(self) -> bytes:
        return self._response.read()

    def pieces(self, length: int) -> Iterator[bytes]:
        """All of it; raises ConnectionError where the other end stops before `length` bytes, so
        that nobody takes a part for the whole.
        """
        left = length
        while left > 0:
            piece = self._response.read1(min(CHUNK, left))
            if not piece:
                raise ConnectionError(f"the supervisor's answer ended {left} bytes too early")
            left -= len(piece)
            yield piece

    def close(self) -> None:
        self._response.close()
        self._connection.close()
