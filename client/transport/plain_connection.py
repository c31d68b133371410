"""One persistent HTTP/1.1 connection without TLS, for requests with small bodies.

httpcore takes four times the processor time for the same exchange. It sends everything else:
requests with TLS, uploads and streams. Raises what httpcore raises, or OSError.
"""

import re
import select
import socket
from typing import Any, NoReturn

import httpcore

#: Limits of an answer's head: lines, and bytes of one line.
_MOST_LINES, _LINE = 200, 64 * 1024
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\n")
_HEADER = re.compile(rb"([!#-'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*\r?\n")
_TARGET = re.compile(rb"[!-~]+")
_VALUE = re.compile(rb"[^\r\n\0]*")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?\r?\n")

Headers = list[tuple[bytes, bytes]]


class PlainConnection:
    """Connects at its first request. Use it for one request at a time. A host that begins with / is
    the path of a Unix socket.
    """

    def __init__(self, origin: httpcore.Origin) -> None:
        self._origin = origin
        self._socket: socket.socket | None = None
        self._reader: Any = None
        self._kept = False

    def exchange(self, request: httpcore.Request) -> tuple[int, Headers, bytes]:
        """Return status, headers and body of the answer."""
        self._kept = False
        head = _head(request)
        body = b"".join(request.stream)  # type: ignore[arg-type]
        limits = request.extensions["timeout"]
        if self._socket is None:
            self._connect(limits["connect"])
        assert self._socket is not None
        self._socket.settimeout(limits["read"])
        failed: OSError | None = None
        try:
            self._socket.sendall(head + body)
        except TimeoutError:
            raise
        except OSError as e:  # the server may have answered before it closed
            failed = e
        try:
            return self._answer(request.method == b"HEAD")
        except (OSError, httpcore.RemoteProtocolError):
            if failed is not None:
                raise failed from None
            raise

    def is_idle(self) -> bool:
        """Return whether the last answer was read to its end, and the server keeps the connection."""
        return self._kept

    def has_expired(self) -> bool:
        """Return whether the server has closed the idle connection, or sent what nobody asked for."""
        if self._socket is None:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self._kept = False
        if self._socket is not None:
            self._reader.close()
            self._socket.close()
            self._socket = None

    def _connect(self, timeout: float) -> None:
        host = self._origin.host
        if host.startswith(b"/"):
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(timeout)
            self._socket.connect(host)
        else:
            self._socket = socket.create_connection(
                (host.decode("ascii"), self._origin.port), timeout
            )
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")

    def _answer(self, without_body: bool) -> tuple[int, Headers, bytes]:
        while True:
            started = _STATUS.fullmatch(self._line())
            if started is None:
                _malformed("its first line is not one of HTTP/1.1")
            status, headers = int(started[2]), self._headers()
            if status >= 200:
                break
        named = {name.lower(): value for name, value in headers}
        close = named.get(b"connection", b"").lower() == b"close" or started[1] == b"0"
        if without_body or status in (204, 304):
            body = b""
        elif b"transfer-encoding" in named:
            if named[b"transfer-encoding"].lower() != b"chunked":
                _malformed("its transfer encoding is unknown")
            body = self._chunks()
        elif (length := named.get(b"content-length")) is not None:
            if _LENGTH.fullmatch(length) is None:
                _malformed("its length is not a number")
            body = self._exactly(int(length))
        else:
            body, close = self._reader.read(), True
        self._kept = not close
        return status, headers, body

    def _headers(self) -> Headers:
        headers: Headers = []
        for _ in range(_MOST_LINES):
            line = self._line()
            if line in (b"\r\n", b"\n"):
                return headers
            header = _HEADER.fullmatch(line)
            if header is None:
                _malformed("it has an invalid header")
            if header[1].lower() == b"content-length" and any(
                name.lower() == b"content-length" and value != header[2] for name, value in headers
            ):
                _malformed("it has two lengths")
            headers.append((header[1], header[2]))
        _malformed("it has too many headers")

    def _line(self) -> bytes:
        line: bytes = self._reader.readline(_LINE)
        if not line.endswith(b"\n"):
            _malformed("the server disconnected without a complete answer")
        return line

    def _exactly(self, size: int) -> bytes:
        data: bytes = self._reader.read(size)
        if len(data) < size:
            _malformed("its body ended too early")
        return data

    def _chunks(self) -> bytes:
        pieces: list[bytes] = []
        while True:
            begin = _CHUNK.fullmatch(self._line())
            if begin is None:
                _malformed("it has an invalid chunk")
            size = int(begin[1], 16)
            if size == 0:
                self._headers()
                return b"".join(pieces)
            pieces.append(self._exactly(size))
            if self._line() not in (b"\r\n", b"\n"):
                _malformed("it has an invalid chunk")


def _head(request: httpcore.Request) -> bytes:
    """Return the request line and the headers. Raises LocalProtocolError."""
    if _TARGET.fullmatch(request.url.target) is None:
        raise httpcore.LocalProtocolError("the path has blanks or control characters")
    lines = [b"%b %b HTTP/1.1" % (request.method, request.url.target)]
    for name, value in request.headers:
        if _VALUE.fullmatch(value) is None:
            raise httpcore.LocalProtocolError(f"illegal value of the header {name.decode()}")
        lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join((*lines, b"", b""))


def _malformed(what: str) -> NoReturn:
    raise httpcore.RemoteProtocolError(f"the answer is invalid: {what}")
