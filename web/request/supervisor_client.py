"""The front end's client of the supervisor's HTTP interface: pooled connections, and a separate one
for each stream.

Retries are minimal: a waiting worker cannot serve other requests, and the browser repeats its
request.
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
#: Idle time after which a stream counts as broken, and the maximum time of a call, in seconds.
IDLE_SECS = 60.0
LONGEST_SECS = 600.0

T = TypeVar("T")


class SupervisorClient:
    """The supervisor, for all threads. Methods raise ClientError."""

    def __init__(self, source: Source, redactor: Redactor) -> None:
        self._source, self._redactor = source, redactor
        self._lock = threading.Lock()
        self._idle: list[tuple[int, Connection]] = []
        self._kept = True

    def address(self) -> Address:
        """Look up and return the current address."""
        address = self._source()
        self._redactor.add(address.token)
        return address

    def reply(self, name: str, request: msgspec.Struct, wait_secs: float = 0.0) -> Reply:
        """Return the response of `/api/<name>`."""
        call = Call(path=f"/api/{name}", body=msgspec.json.encode(request), wait_secs=wait_secs)
        return self._with_relocation(lambda connection: connection.call(call))

    def post(self, name: str, request: msgspec.Struct, wait_secs: float = 0.0) -> bytes:
        return self.reply(name, request, wait_secs).body

    def once(self, name: str, request: msgspec.Struct, wait_secs: float) -> dict[str, Any]:
        """Send a request that must never be repeated, on a connection of its own."""
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
        """Return the result of an app's computation. The supervisor enforces its deadline; here
        only the maximum applies.
        """
        return self.post("call", request, request.deadline_secs or LONGEST_SECS)

    def ping(self) -> None:
        """Check that the supervisor answers."""
        self.exchange("GET", "/livez")

    def exchange(self, method: str, path: str) -> bytes:
        """Send a request without a body; return the whole response."""
        with self._with_relocation(
            lambda c: Stream(*c.stream(path, {}, IDLE_SECS, method=method))
        ) as stream:
            return stream.read()

    def stream(self, name: str, request: msgspec.Struct) -> "Stream":
        """Return a response that is forwarded piece by piece; the caller closes it."""
        body, headers = msgspec.json.encode(request), {"Content-Type": "application/json"}
        return self._with_relocation(
            lambda c: Stream(
                *c.stream(f"/api/{name}", headers, IDLE_SECS, method="POST", body=body)
            )
        )

    def upload(self, path: str, pieces: Iterable[bytes], length: int) -> bytes:
        """Send these pieces, `length` bytes in total. Never retried, because the pieces can be read
        only once.
        """
        headers = {"Content-Length": str(length), "Content-Type": "application/octet-stream"}
        with (
            self._connection() as connection,
            Stream(
                *connection.stream(path, headers, IDLE_SECS, method="PUT", body=pieces)
            ) as stream,
        ):
            return stream.read()

    def close(self) -> None:
        """Close idle connections, and from now on each connection after its use."""
        self._kept = False
        for _, connection in self._take_all():
            connection.close()

    def _with_relocation(self, once: Callable[[Connection], T]) -> T:
        """Retry once if the supervisor restarted with another address or secret."""
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
        """Borrow a connection exclusively. A forked process uses its own connections."""
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
            if not self._kept:  # the site was closed while this request was in progress
                self.close()

    def _take_all(self) -> list[tuple[int, Connection]]:
        with self._lock:
            taken, self._idle = self._idle, []
            return taken


class Stream:
    """A response whose body is read as it arrives."""

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
            raise own("notASupervisor", f"the response lacks the header {name}")
        return str(value)

    def read(self) -> bytes:
        return self._response.read()

    def pieces(self, length: int) -> Iterator[bytes]:
        """Yield the whole body. Raises ConnectionError if it ends before `length` bytes, so that a
        part never counts as the whole.
        """
        left = length
        while left > 0:
            piece = self._response.read1(min(CHUNK, left))
            if not piece:
                raise ConnectionError(f"the supervisor's response ended {left} bytes too early")
            left -= len(piece)
            yield piece

    def close(self) -> None:
        self._response.close()
        self._connection.close()
