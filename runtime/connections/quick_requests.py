"""Requests that are read before Tornado's HTTP connection sees them: complete, plain POSTs with a
body of known length, if the application takes them. No answers are decided here.

Tornado reads a request with a chain of futures, which takes most of the time of a short one. It
gets every other request unchanged: the bytes are looked at where it reads from the socket. While
one request is being answered, Tornado gets what follows, and waits in `GuardedServer`.
"""

import asyncio
import re
from collections.abc import Callable
from typing import NamedTuple, Protocol

import tornado.iostream
from tornado.httputil import HTTPHeaders, RequestStartLine

from .admission import TrackedConnection

#: Limit of head and body in bytes; one read of Tornado is larger.
MOST = 32 * 1024
#: Number of heads that a connection keeps parsed, of requests that were taken: clients repeat a few.
HEADS = 4
#: RFC 9112, without what is obsolete or rarely sent.
_HEAD = re.compile(
    rb"POST (/[!-~]*) HTTP/1\.1\r\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~]*\r\n)+)\r\n"
)
_END = b"\r\n\r\n"
_LENGTH = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)
#: Headers that change how a request is read or answered.
_UNUSUAL = ("Transfer-Encoding", "Expect", "Upgrade", "Content-Encoding", "Trailer")


class Head(NamedTuple):
    """size: of the body, in bytes."""

    line: RequestStartLine
    headers: HTTPHeaders
    size: int


class Taken(Protocol):
    """A request that the application answers."""

    def received(self, body: bytes) -> None:
        """Act on the complete request, and call `QuickRequests.answer` now or later. Raises
        nothing.
        """

    def on_connection_close(self) -> None: ...


def parsed(data: bytes) -> Head | None:
    """Return the head of a plain POST; None for every other one."""
    match = _HEAD.fullmatch(data)
    if match is None:
        return None
    headers = HTTPHeaders()
    for line in match[2].decode("ascii").split("\r\n")[:-1]:
        name, _, value = line.partition(":")
        if name in headers:
            return None
        headers[name] = value.strip(" \t")
    size = headers.get("Content-Length", "")
    if (
        "Host" not in headers
        or any(name in headers for name in _UNUSUAL)
        or headers.get("Connection", "keep-alive").lower() != "keep-alive"
        or not _LENGTH.fullmatch(size)
    ):
        return None
    return Head(RequestStartLine("POST", match[1].decode("ascii"), "HTTP/1.1"), headers, int(size))


class QuickRequests:
    """The quick requests of one connection. take: returns a request that the application answers;
    None leaves it to Tornado.
    """

    def __init__(
        self,
        stream: tornado.iostream.IOStream,
        context: object,
        entry: TrackedConnection,
        take: "Callable[[QuickRequests, Head], Taken | None]",
    ) -> None:
        self.stream, self.context = stream, context
        self._entry, self._take, self._read = entry, take, stream.read_from_fd
        self._heads: dict[bytes, Head] = {}
        #: whether Tornado waits for a new request, and has none of its bytes
        self._between = False
        #: the request whose body is incomplete, and what arrived of it
        self._taken: tuple[Taken, int] | None = None
        self._held = b""
        #: done when the present request is answered
        self._answered: asyncio.Future[None] | None = None
        stream.read_from_fd = self._from_fd  # type: ignore[method-assign]

    def next_request(self) -> None:
        """Tornado begins to wait for the next request."""
        self._between = self.stream._read_buffer_size == 0

    async def answered(self) -> None:
        """Wait until no request is being answered here."""
        while self._answered is not None:
            await asyncio.shield(self._answered)

    def answer(self, head: bytes, body: bytes) -> None:
        """Send the answer of the request that was received last."""
        self.stream.set_close_callback(None)
        self._done()
        self._entry.waiting()
        self.stream.write(head + body)

    def _done(self) -> None:
        if self._answered is not None:
            self._answered.set_result(None)
            self._answered = None

    def _closed(self, taken: Taken) -> None:
        self._done()
        taken.on_connection_close()

    def _from_fd(self, buf: bytearray | memoryview) -> int | None:
        """Read as the stream does. Return None, as if nothing had arrived, for bytes of a request
        that is answered here.
        """
        if not self._between or self._answered is not None:
            return self._pass(self._read(buf))
        if self._taken is None:
            count = self._read(buf)
            return self._pass(count) if not count or not self._begin(bytes(buf[:count])) else None
        taken, missing = self._taken
        with memoryview(buf)[:missing] as room:
            count = self._read(room)
            if not count:
                return count
            self._held += room[:count]
        self._receive(taken, missing - count)
        return None

    def _pass(self, count: int | None) -> int | None:
        if count:
            self._between = False
        return count

    def _begin(self, data: bytes) -> bool:
        """Return whether this begins a request that is answered here."""
        end = data.find(_END) + len(_END)
        if end < len(_END):
            return False
        head = self._heads.get(data[:end]) or parsed(data[:end])
        if head is None or end + head.size > MOST or len(data) > end + head.size:
            return False
        taken = self._take(self, head)
        if taken is None:
            return False
        if data[:end] not in self._heads:
            if len(self._heads) >= HEADS:
                self._heads.clear()
            self._heads[data[:end]] = head
        self._held = data[end:]
        self._receive(taken, head.size - len(self._held))
        return True

    def _receive(self, taken: Taken, missing: int) -> None:
        if missing:
            self._taken = taken, missing
            self._entry.reading()
            return
        body, self._held, self._taken = self._held, b"", None
        self._entry.answering()
        self._answered = asyncio.get_running_loop().create_future()
        self.stream.set_close_callback(lambda: self._closed(taken))
        # The loop calls readers before timers. In the next round, after this process was stopped, the
        # heartbeat monitor has closed its connections, and no answer relies on agents that may be gone.
        asyncio.get_running_loop().call_soon(self._act, taken, body)

    def _act(self, taken: Taken, body: bytes) -> None:
        if self._answered is not None:  # the connection was not closed
            taken.received(body)
