"""All counters and histograms, in a separate registry. All series exist from the start.

Counters start at 0 with the process, as Prometheus expects. No label names a job, a user, an agent
or an operation: each label has few values, which are known at the start.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric

from ...protocol.ids import AgentKey, AgentKind
from ..process.counters import DisconnectReason
from .cause_labels import CAUSES, FINAL, attempt_causes

KINDS = (AgentKind.SEQUENTIAL, AgentKind.PARALLEL)
#: Buckets in seconds for waits and run times of jobs: to 24 hours.
LONG = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 28800, 57600, 86400)
#: Buckets in seconds for internal operations.
SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
DISK = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
BYTES = tuple(4**n for n in range(3, 12))
LOST: tuple[DisconnectReason, ...] = (
    "closed",
    "silent",
    "stoodStill",
    "replaced",
    "ended",
    "queueFull",
    "notWritten",
    "badFrame",
    "refused",
)
VERBS = ("start", "find", "stop")
_AGENT_OPS = (
    "io",
    "analysis",
    "read_file",
    "list_files",
    "keep_file",
    "digest_file",
    "store_file",
)
OP_ENDS = ("ok", "error", "deadline", "canceled")
STARTS = ("up", "failed", "signIn")


class Instruments:
    """All instruments of one process. places: names of hosts or clusters by driver."""

    def __init__(self, places: Mapping[str, Iterable[str]]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.drivers = tuple(places)
        driver_kind = [(driver, kind) for driver in places for kind in KINDS]
        self.submitted = self._counter(
            "jobs_submitted", "Accepted runs.", ("driver", "kind"), driver_kind
        )
        self.finished = self._counter(
            "jobs_finished",
            "Finished runs, by final state and cause.",
            ("driver", "kind", "state", "cause"),
            [
                (*row, state, cause)
                for row in driver_kind
                for state in FINAL
                for cause in CAUSES[state]
            ],
        )
        self.queued = self._histogram(
            "job_queue_seconds",
            "Time from the request to the first process of a run.",
            ("driver", "kind"),
            driver_kind,
            LONG,
        )
        self.slot_wait = self._histogram(
            "slot_wait_seconds",
            "Time from the request until a run had all resources and was assigned to a host.",
            ("driver", "kind"),
            driver_kind,
            LONG,
        )
        self.ran = self._histogram(
            "job_run_seconds",
            "Time from the first process of a run to its end.",
            ("driver", "kind"),
            driver_kind,
            LONG,
        )
        self.attempts = self._counter(
            "job_attempts",
            "Finished attempts; again: whether another attempt followed.",
            ("driver", "cause", "again"),
            [
                (driver, cause, again)
                for driver in places
                for cause in attempt_causes()
                for again in ("yes", "no")
            ],
        )
        self.oom = self._counter(
            "oom_kills",
            "Tasks with a process that the kernel killed because memory ran out.",
            ("driver", "scope"),
            [(driver, scope) for driver in places for scope in ("cgroup", "slurm")],
        )
        self.log_bytes = self._counter(
            "log_bytes",
            "Bytes of output of finished tasks.",
            ("driver",),
            [(d,) for d in places],
        )
        self.log_dropped = self._counter(
            "log_dropped_bytes",
            "Dropped bytes of output, between the stored head and tail.",
            ("driver",),
            [(d,) for d in places],
        )
        self._of_agents(places)
        self.http = self._histogram(
            "http_request_duration_seconds",
            "Duration of API requests, without streams; route: as in docs/http.md.",
            ("method", "route", "code"),
            [],
            SHORT,
        )
        self.db = self._histogram(
            "db_operation_seconds",
            "Writes of the event store: synced commits (commit) and writes of the head file (witness), in SQLite without its later sync.",
            ("op",),
            [("commit",), ("witness",)],
            DISK,
        )
        self.clock_jumps = self._counter(
            "clock_jumps",
            "Number of times the wall clock was set while the supervisor ran.",
            (),
            [],
        )

    def _of_agents(self, places: Mapping[str, Iterable[str]]) -> None:
        self.agent_starts = self._histogram(
            "agent_start_duration_seconds",
            "Time from the request for an agent until it is connected or has failed.",
            ("driver", "status"),
            [(driver, status) for driver in places for status in STARTS],
            LONG,
        )
        alone = [(driver,) for driver in places]
        self.connections = self._counter(
            "agent_connections", "Established connections of agents.", ("driver",), alone
        )
        self.disconnects = self._counter(
            "agent_disconnects",
            "Closed connections of agents.",
            ("driver", "reason"),
            [(driver, why) for driver in places for why in LOST],
        )
        self.ops = self._histogram(
            "op_duration_seconds",
            "Duration of requests to agents: logs, calls, files.",
            ("op", "status"),
            [(op, status) for op in _AGENT_OPS for status in OP_ENDS],
            SHORT,
        )
        both = [("in",), ("out",)]
        self.sent = self._counter(
            "messages", "Messages from agents (in) and to agents (out).", ("direction",), both
        )
        self.frames = self._histogram(
            "message_bytes",
            "Size of frames on agents' connections; the limit is 1 MiB.",
            ("direction",),
            both,
            BYTES,
        )
        self._sent = {direction: self.sent.labels(direction) for (direction,) in both}
        self._frames = {direction: self.frames.labels(direction) for (direction,) in both}
        verbs = [
            (driver, host, verb)
            for driver, hosts in places.items()
            for host in hosts
            for verb in VERBS
        ]
        self.calls = self._histogram(
            "driver_call_seconds",
            "Duration of driver calls that start, find or stop agents.",
            ("driver", "host", "verb"),
            verbs,
            LONG,
        )
        self.call_errors = self._counter(
            "driver_call_errors", "Failed driver calls.", ("driver", "host", "verb"), verbs
        )

    def total(self, name: Literal["submitted", "finished"]) -> float:
        """Return the sum of a counter over all its labels."""
        counter: Counter = getattr(self, name)
        samples = (s for metric in counter.collect() for s in metric.samples)
        return sum(s.value for s in samples if s.name.endswith("_total"))

    def _counter(
        self, name: str, about: str, labels: Sequence[str], rows: Iterable[tuple[str, ...]]
    ) -> Counter:
        out = Counter("jobscribe_" + name, about, labels, registry=self.registry)
        for row in rows:
            out.labels(*row)
        return out

    def _histogram(
        self,
        name: str,
        about: str,
        labels: Sequence[str],
        rows: Iterable[tuple[str, ...]],
        buckets: Sequence[float],
    ) -> Histogram:
        out = Histogram("jobscribe_" + name, about, labels, registry=self.registry, buckets=buckets)
        for row in rows:
            out.labels(*row)
        return out

    def families(self) -> Iterator[Metric]:
        """Return the current value of all metrics. Creation times of series are omitted: they are
        unused and would double the number of samples.
        """
        for family in self.registry.collect():
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            yield family

    # ---- the hub's `ConnectionMetrics`

    def connected(self, key: AgentKey) -> None:
        self.connections.labels(key.driver).inc()

    def lost(self, key: AgentKey, why: DisconnectReason) -> None:
        self.disconnects.labels(key.driver, why).inc()

    def messages(self, direction: Literal["in", "out"], n: int) -> None:
        self._sent[direction].inc(n)

    def frame(self, direction: Literal["in", "out"], size: int) -> None:
        self._frames[direction].observe(size)

    def op(self, name: str, status: str, secs: float) -> None:
        self.ops.labels(name, status).observe(secs)

    # ---- driver calls of the effect executor

    def driver_call(self, driver: str, host: str, verb: str, failed: bool, secs: float) -> None:
        self.calls.labels(driver, host, verb).observe(secs)
        if failed:
            self.call_errors.labels(driver, host, verb).inc()
