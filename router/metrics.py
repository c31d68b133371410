"""Metrics of one router: requests by shard and result, their duration, retries, and open streams. No label
names a user.
"""

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

#: In place of a shard: several shards; none, as for a refusal before the shard is known.
ALL, NONE = "all", "none"
#: What the client got: an answer, a refusal of its request (4xx), a failure (5xx), no supervisor that
#: serves the shard, an answer that ended early, or nothing because it closed the connection.
Result = Literal["ok", "refused", "failed", "noSupervisor", "lost", "gone"]
RESULTS: tuple[Result, ...] = ("ok", "refused", "failed", "noSupervisor", "lost", "gone")
_SECS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class RouterMetrics:
    """total: number of shards."""

    def __init__(self, total: int) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "jobscribe_router_requests",
            "Requests of clients of a router, by their shard and what the clients got.",
            ("shard", "result"),
            registry=self._registry,
        )
        self._secs = Histogram(
            "jobscribe_router_request_duration_seconds",
            "Duration of requests in a router, without streams.",
            ("shard",),
            buckets=_SECS,
            registry=self._registry,
        )
        self._retries = Counter(
            "jobscribe_router_retries",
            "Requests that a router sent to another address of their shard.",
            ("shard",),
            registry=self._registry,
        )
        self._streams = Gauge(
            "jobscribe_router_streams",
            "Open streams of events, live updates and output through a router.",
            ("shard",),
            registry=self._registry,
        )
        self._up = Gauge(
            "jobscribe_shard_up",
            "Whether a supervisor of the shard answers.",
            ("shard",),
            registry=self._registry,
        )
        for shard in (*map(str, range(total)), ALL, NONE):
            for result in RESULTS:
                self._requests.labels(shard, result)
            self._secs.labels(shard)
            self._streams.labels(shard)
        for number in range(total):
            self._retries.labels(str(number))

    def answered(self, shard: str, result: Result, secs: float | None) -> None:
        """Count a request. secs: its duration; None for a stream."""
        self._requests.labels(shard, result).inc()
        if secs is not None:
            self._secs.labels(shard).observe(secs)

    def retried(self, shard: int) -> None:
        self._retries.labels(str(shard)).inc()

    def stream(self, shard: str, change: int) -> None:
        """Count a stream that begins (1) or ends (-1)."""
        self._streams.labels(shard).inc(change)

    def text(self, up: dict[int, bool]) -> str:
        """Return the metrics in the format of Prometheus. up: whether the shard answers, of all."""
        for shard, answers in up.items():
            self._up.labels(str(shard)).set(int(answers))
        lines = generate_latest(self._registry).decode().splitlines(keepends=True)
        return "".join(line for line in lines if "_created" not in line)


def result_of(code: int) -> Result:
    """Return the result of an answer with this HTTP status."""
    return "ok" if code < 400 else "refused" if code < 500 else "failed"
