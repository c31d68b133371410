"""Connection limits of both listeners: applies the settings, counts closed connections, and logs
them in few lines.
"""

import time
from collections.abc import Callable

import msgspec
from tornado.httputil import HTTPServerConnectionDelegate, RequestStartLine

from ...protocol.errors import Refusal
from ...runtime.connections.admission import Admission, Limits, Reason
from ...runtime.connections.http_server import Guard, GuardedServer, Peers
from ...runtime.connections.quick_requests import Head, QuickRequests, Taken
from ...runtime.log.aggregation import AggregatedLines
from ...runtime.log.logger import Log
from ...service.settings.settings import LimitSettings
from .counters import Counters

_NO = Refusal("unauthenticated", "the secret is missing or wrong; the request body was not read")


class ConnectionGuard:
    """Limits connections of both listeners. One per process."""

    def __init__(self, limits: LimitSettings, counters: Counters, log: Log) -> None:
        self._counters, self._log = counters, AggregatedLines(log)
        bounds = Limits(
            limits.request_secs, limits.body_secs, limits.idle_secs, limits.connections_per_peer
        )
        self._admission = Admission(bounds, time.monotonic(), self._ended)
        self._guard = Guard(self._admission, Peers(limits.trusted_peers))
        self.sizes, self.make_room = self._admission.sizes, self._admission.make_room

    def before(
        self,
        application: HTTPServerConnectionDelegate,
        topic: str,
        answer: Callable[[RequestStartLine], tuple[int, bytes]] | None = None,
        quick: Callable[[QuickRequests, Head], Taken | None] | None = None,
    ) -> GuardedServer:
        """Return a server with limits. topic: counter for requests without a valid secret,
        `refused` or `rejected`. answer: instead of the refusal of such requests. quick: takes
        requests before Tornado reads them.
        """

        def unread(line: RequestStartLine) -> tuple[int, bytes]:
            self._counters.add(f"{topic}.unauthenticated")
            self._log.add(f"refused a request without reading its body: {_NO.sentence}")
            return _NO.http, msgspec.json.encode(_NO.body())

        return GuardedServer(self._guard, application, answer or unread, quick)

    def _ended(self, reason: Reason, sentence: str) -> None:
        self._counters.add(f"connection.{reason}")
        if reason != "idle":  # idle connections end all the time
            self._log.add(sentence)
