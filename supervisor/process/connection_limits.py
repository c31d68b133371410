"""The supervisor's connections, of both listeners: limits from the settings, refusals counted, and
said in few lines.
"""

import time

import msgspec
from tornado.httputil import HTTPServerConnectionDelegate, RequestStartLine

from ...protocol.errors import Refusal
from ...runtime.connections.admission import Admission, Limits, Reason
from ...runtime.connections.http_server import Guard, GuardedServer, Peers
from ...runtime.log.aggregation import AggregatedLines
from ...runtime.log.logger import Log
from ...service.settings.settings import LimitSettings
from .counters import Counters

_NO = Refusal(
    "unauthenticated", "the secret is missing or wrong; the body of the request was not read"
)


class Guarding:
    """One per process."""

    def __init__(self, limits: LimitSettings, counters: Counters, log: Log) -> None:
        self._counters, self._said = counters, AggregatedLines(log)
        bounds = Limits(
            limits.request_secs, limits.body_secs, limits.idle_secs, limits.connections_per_peer
        )
        self._admission = Admission(bounds, time.monotonic(), self._ended)
        self._guard = Guard(self._admission, Peers(limits.trusted_peers))
        self.sizes, self.make_room = self._admission.sizes, self._admission.make_room

    def before(self, application: HTTPServerConnectionDelegate, topic: str) -> GuardedServer:
        """topic: under which a request of somebody unknown is counted, `refused` or `rejected`."""

        def unread(line: RequestStartLine) -> tuple[int, bytes]:
            self._counters.add(f"{topic}.unauthenticated")
            self._said.add(f"a request with a body was refused unread: {_NO.sentence}")
            return _NO.http, msgspec.json.encode(_NO.body())

        return GuardedServer(self._guard, application, unread)

    def _ended(self, reason: Reason, sentence: str) -> None:
        self._counters.add(f"connection.{reason}")
        if reason != "idle":  # what is not used any more ends like this every day
            self._said.add(sentence)
