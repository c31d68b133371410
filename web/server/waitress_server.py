"""waitress with admission control (`runtime.connections.admission`), for `jobscribe server` and
`jobscribe up`, whose ports every unix user of the machine can reach.

A large body is read only from signed-in users. Connections have deadlines, and there is a limit for
each unix user. A connection that asks for an event stream can be handed over before anything else
reads its request.
"""

import http.client
import re
import resource
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import flask
import msgspec
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.utilities import Error

from ...protocol.errors import Refusal
from ...runtime.connections.admission import Admission, Limits, Reason, TrackedConnection, is_scarce
from ...runtime.connections.http_server import Peers
from ...runtime.log.logger import Log
from ..request import error_responses
from ..sign_in.attempt_limits import CLIENT

#: Maximum bytes of a body without sign-in, and of a body that is no upload: it is stored whole
#: before it is answered.
LARGEST_UNAUTHENTICATED, LARGEST_BODY = 64 * 1024, 16 * 1024 * 1024
UPLOADS = "/lib-file/"
#: Seconds after which a client that reads nothing of its answer is cut off: a worker may wait.
STALL_SECS = 60.0
#: Numbers of connections reserved for the owner of the site and for the site's own reverse proxies.
SPARE = 64
#: Seconds before the same message is logged again.
SAY_SECS = 60.0
#: Beginning of a request for an event stream.
_LIVE = b"GET /live"
_LENGTHS = re.compile(rb"(?im)^content-length[ \t]*:[ \t]*([^\r\n]*?)[ \t]*\r?$")
_ENCODINGS = re.compile(rb"(?im)^transfer-encoding[ \t]*:[ \t]*([^\r\n]*?)[ \t]*\r?$")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_CONTROL = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)")
#: Name in which waitress's parser has the header with the client's address.
_CLIENT = CLIENT.upper().replace("-", "_")
IsUser = Callable[[Any], bool]
#: Raises a refusal of this connection.
Admit = Callable[[object, socket.socket], None]
#: Takes over a connection: the socket, the peer's address, and the bytes read so far.
TakeLive = Callable[[socket.socket, object, bytes], object]


def guard(
    server: Any,
    limits: Limits,
    peers: Peers,
    is_user: IsUser,
    log: Log,
    most: int,
    *,
    admit: Admit | None = None,
    live: TakeLive | None = None,
    proxy_header: str | None = None,
) -> None:
    """Add admission control to a waitress server before it runs. is_user: decides by the headers
    read by waitress's parser. most: maximum number of connections. admit: called for each request.
    live: called for a connection whose next request is for /live. proxy_header: is removed from
    requests that no trusted peer sent.
    """
    gate = _ConnectionGate(limits, peers, is_user, log, most, admit, live, proxy_header)
    server.channel_class = lambda *args, **more: _Channel(gate, *args, **more)
    server.maintenance = lambda now: gate.sweep()
    server.adj.cleanup_interval = 1


def user_by(app: flask.Flask, user: Callable[[flask.Request], str | None], log: Log) -> IsUser:
    """Return a check that calls the site's user hook. It runs on the server's loop, so the hook
    must be fast.
    """

    def is_user(parser: Any) -> bool:
        headers = [
            (name.replace("_", "-").title(), value) for name, value in parser.headers.items()
        ]
        with app.test_request_context(
            parser.path, query_string=parser.query, method=parser.command, headers=headers
        ):
            try:
                return user(flask.request) is not None
            except Exception as e:
                log.exception("the user hook failed", error=e)
                return False

    return is_user


class _ConnectionGate:
    def __init__(
        self,
        limits: Limits,
        peers: Peers,
        is_user: IsUser,
        log: Log,
        most: int,
        admit: Admit | None,
        live: TakeLive | None,
        proxy_header: str | None,
    ) -> None:
        self.proxy_header = None if proxy_header is None else proxy_header.upper().replace("-", "_")
        self.peers, self.is_user, self._log, self._most = peers, is_user, log, most
        self.admit, self.live = admit, live
        self.admission = Admission(limits, time.monotonic(), self._ended)
        self.channels: dict[_Channel, TrackedConnection] = {}
        self._said: dict[str, float] = {}

    def enter(self, channel: "_Channel", sock: socket.socket) -> TrackedConnection | None:
        scarce = len(self.admission) >= self._most - SPARE or is_scarce(
            sock.fileno(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        )
        return self.admission.enter(
            self.peers.of(sock), channel.handle_close, lambda: not channel.connected, scarce=scarce
        )

    def sweep(self) -> None:
        for channel, entry in list(self.channels.items()):
            if not channel.connected:
                del self.channels[channel]
            elif channel.total_outbufs_len and time.time() - channel.last_activity > STALL_SECS:
                self._log("a client does not read its response and was cut off")
                channel.handle_close()
            elif entry.busy and not channel.requests and not channel.total_outbufs_len:
                entry.waiting()
        self.admission.sweep(time.monotonic())

    def _ended(self, reason: Reason, sentence: str) -> None:
        now = time.monotonic()
        if reason != "idle" and self._said.get(sentence, 0.0) < now:
            self._said = {s: until for s, until in self._said.items() if until >= now} | {
                sentence: now + SAY_SECS
            }
            self._log("{}", sentence)


class _Channel(HTTPChannel):
    """One connection."""

    def __init__(
        self, gate: _ConnectionGate, server: Any, sock: socket.socket, *args: Any, **more: Any
    ) -> None:
        super().__init__(server, sock, *args, **more)
        self.parser_class = lambda adj: _Parser(adj, self._refusal)  # type: ignore[assignment]
        self._gate = gate
        #: the first bytes of a request, while they may be those of an event stream
        self._begun = b""
        self._entry = gate.enter(self, sock)
        if self._entry is None:
            self.handle_close()
        else:
            gate.channels[self] = self._entry

    def received(self, data: bytes) -> Any:
        if self._gate.live is not None and self.request is None and not self.requests:
            data, self._begun = self._begun + data, b""
            if len(data) <= len(_LIVE) and _LIVE.startswith(data):
                self._begun = data
                return True
            if data.startswith((_LIVE + b" ", _LIVE + b"?")):
                self._hand_over(self._gate.live, data)
                return False
        out = super().received(data)
        if self._entry is None:
            return out
        if self.requests:
            # only the application knows the user; the connection stays open until the response is
            # sent
            self._entry.answering()
            self._entry.authenticated()
        elif self.request is not None and self.request.headers_finished:
            self._entry.reading()
        return out

    def _hand_over(self, live: TakeLive, data: bytes) -> None:
        if self._entry is not None:
            self._gate.admission.leave(self._entry)
        sock, self.socket = self.socket, None  # so that nothing here closes it
        self.handle_close()
        if sock is not None:
            live(socket.socket(fileno=sock.detach()), self.addr, data)

    def _refusal(self, parser: "_Parser") -> Refusal | None:
        """Return why this request is not answered, by its headers."""
        self._believe(parser, trusted=self._entry is not None and self._entry.peer.trusted)
        try:
            if self._gate.admit is not None and self.socket is not None:
                self._gate.admit(self, self.socket)
        except Refusal as e:
            return e
        large = parser.chunked or parser.content_length > LARGEST_UNAUTHENTICATED
        if large and not self._gate.is_user(parser):
            return Refusal(
                "unauthenticated",
                f"a request without sign-in is limited to {LARGEST_UNAUTHENTICATED} bytes",
            )
        return None

    def _believe(self, parser: "_Parser", *, trusted: bool) -> None:
        """Remove the proxy's header from requests of others, and note the client's address if a
        trusted proxy states it. Nobody else sets that header.
        """
        removed = {_CLIENT} if trusted else {_CLIENT, self._gate.proxy_header}
        headers = {n: v for n, v in parser.headers.items() if n not in removed}
        forwarded = headers.get("X_FORWARDED_FOR", "").rpartition(",")[2].strip()
        if trusted and forwarded:
            headers[_CLIENT] = forwarded
        parser.headers = headers


class _Parser(HTTPRequestParser):
    """One request. refusal: called with its headers; then its body is not read."""

    path: str

    def __init__(self, adj: Any, refusal: Callable[["_Parser"], Refusal | None]) -> None:
        super().__init__(adj)
        self._refusal = refusal
        self._limit = 0

    def parse_header(self, header_plus: bytes) -> None:
        """Parse the headers. Ambiguous lengths allow request smuggling, so they are refused."""
        lengths, encodings = _LENGTHS.findall(header_plus), _ENCODINGS.findall(header_plus)
        if (
            len(lengths) + len(encodings) > 1
            or not all(map(_LENGTH.fullmatch, lengths))
            or any(e.lower() != b"chunked" for e in encodings)
        ):
            raise ParsingError("a body must have one length, in digits")
        if _CONTROL.search(header_plus) is not None:
            raise ParsingError("a header has control characters")
        super().parse_header(header_plus)

    def received(self, data: bytes) -> Any:
        before, taken = self.headers_finished, super().received(data)
        if self.headers_finished and not before and not self.empty and self.error is None:
            refusal = self._refusal(self)
            if refusal is not None:
                self._refuse(refusal)
            self._limit = sys.maxsize if UPLOADS in self.path else LARGEST_BODY
        if max(self.content_length, self.body_bytes_received) > self._limit and self.error is None:
            self._refuse(Refusal("tooLarge", f"a request is limited to {self._limit} bytes"))
        return taken

    def _refuse(self, refusal: Refusal) -> None:
        self.error = _Refused(refusal)
        self.completed = True


class _Refused(Error):
    """Error response of a request that the application does not get."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__("")
        self.code, self.reason = refusal.http, http.client.responses[refusal.http]
        self._refusal = refusal

    def to_response(self, ident: str | None = None) -> tuple[str, list[tuple[str, str]], bytes]:  # type: ignore[override]
        return (
            f"{self.code} {self.reason}",
            [
                ("Content-Type", "application/json"),
                ("Cache-Control", "no-store"),
                ("X-Content-Type-Options", "nosniff"),
            ],
            msgspec.json.encode(error_responses.body(self._refusal)),
        )
