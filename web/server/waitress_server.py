"""waitress with admission control (`runtime.connections.admission`), for `jobscribe server`, whose
port every unix user of the machine can reach.

A large body is read only from signed-in users. Connections have deadlines, and there is a limit for
each unix user.
"""

import resource
import socket
import time
from collections.abc import Callable
from typing import Any

import flask
import msgspec
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.utilities import Error

from ...protocol.errors import Refusal
from ...runtime.connections.admission import Admission, Limits, Reason, TrackedConnection, is_scarce
from ...runtime.connections.http_server import Peers
from ...runtime.log.logger import Log
from ..request import error_responses
from .proxy import LARGEST_UNAUTHENTICATED

#: Numbers of connections reserved for the owner of the site and for the site's own reverse proxies.
SPARE = 64
#: Seconds before the same message is logged again.
SAY_SECS = 60.0
IsUser = Callable[[Any], bool]


def guard(server: Any, limits: Limits, peers: Peers, is_user: IsUser, log: Log, most: int) -> None:
    """Add admission control to a waitress server before it runs. is_user: decides by the headers
    read by waitress's parser. most: maximum number of connections.
    """
    gate = _ConnectionGate(limits, peers, is_user, log, most)
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
    def __init__(self, limits: Limits, peers: Peers, is_user: IsUser, log: Log, most: int) -> None:
        self.peers, self.is_user, self._log, self._most = peers, is_user, log, most
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
        self.parser_class = lambda adj: _Parser(adj, gate.is_user)  # type: ignore[assignment]
        self._entry = gate.enter(self, sock)
        if self._entry is None:
            self.handle_close()
        else:
            gate.channels[self] = self._entry

    def received(self, data: bytes) -> Any:
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


class _Parser(HTTPRequestParser):
    """One request. A large body is not read if nobody is signed in."""

    def __init__(self, adj: Any, is_user: IsUser) -> None:
        super().__init__(adj)
        self._is_user = is_user

    def received(self, data: bytes) -> Any:
        before, taken = self.headers_finished, super().received(data)
        large = self.chunked or self.content_length > LARGEST_UNAUTHENTICATED
        if (
            large
            and self.headers_finished
            and not before
            and not self.completed
            and not self._is_user(self)
        ):
            self.error = _Unread("")
            self.completed = True
        return taken


class _Unread(Error):
    code, reason = 401, "Unauthorized"

    def to_response(self, ident: str | None = None) -> tuple[str, list[tuple[str, str]], bytes]:  # type: ignore[override]
        refusal = Refusal(
            "unauthenticated",
            f"a request without sign-in is limited to {LARGEST_UNAUTHENTICATED} bytes",
        )
        return (
            f"{self.code} {self.reason}",
            [("Content-Type", "application/json")],
            msgspec.json.encode(error_responses.body(refusal)),
        )
