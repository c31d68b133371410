"""waitress with `runtime.admission`: for `jobscribe server`, whose port all unix users of the
machine can reach.

A large body is read only of who is signed in; connections have deadlines, and a limit for each unix
user.
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
from .proxy import LARGEST_OF_STRANGERS

#: Of waitress's connections, so many are left to the owner of the site and to the site's own
#: proxies.
SPARE = 64
#: A sentence is said again after so long (seconds).
SAY_SECS = 60.0
IsUser = Callable[[Any], bool]


def guard(server: Any, limits: Limits, peers: Peers, is_user: IsUser, log: Log, most: int) -> None:
    """server: of waitress, before it runs. is_user: by the headers that waitress's parser has read.
    most: connections at once.
    """
    door = _Door(limits, peers, is_user, log, most)
    server.channel_class = lambda *args, **more: _Channel(door, *args, **more)
    server.maintenance = lambda now: door.sweep()
    server.adj.cleanup_interval = 1


def user_by(app: flask.Flask, user: Callable[[flask.Request], str | None], log: Log) -> IsUser:
    """Asks the site's hook. It runs on the loop of the server, and must be quick."""

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
                log.exception("the hook that says who the user is failed", error=e)
                return False

    return is_user


class _Door:
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
        self, door: _Door, server: Any, sock: socket.socket, *args: Any, **more: Any
    ) -> None:
        super().__init__(server, sock, *args, **more)
        self.parser_class = lambda adj: _Parser(adj, door.is_user)  # type: ignore[assignment]
        self._entry = door.enter(self, sock)
        if self._entry is None:
            self.handle_close()
        else:
            door.channels[self] = self._entry

    def received(self, data: bytes) -> Any:
        out = super().received(data)
        if self._entry is None:
            return out
        if self.requests:
            # whose request it is, the application knows; it is not ended before it is answered
            self._entry.answering()
            self._entry.authenticated()
        elif self.request is not None and self.request.headers_finished:
            self._entry.reading()
        return out


class _Parser(HTTPRequestParser):
    """One request. Its body is not taken in where it is large and nobody has signed in."""

    def __init__(self, adj: Any, is_user: IsUser) -> None:
        super().__init__(adj)
        self._is_user = is_user

    def received(self, data: bytes) -> Any:
        before, taken = self.headers_finished, super().received(data)
        large = self.chunked or self.content_length > LARGEST_OF_STRANGERS
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
            f"a request of somebody who is not signed in may take {LARGEST_OF_STRANGERS} bytes",
        )
        return (
            f"{self.code} {self.reason}",
            [("Content-Type", "application/json")],
            msgspec.json.encode(error_responses.body(refusal)),
        )
