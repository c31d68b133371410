"""Metrics with the current values at a scrape. Long collections are read in slices, so that the
event loop continues meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from ...drivers.contracts import AgentDriver
from ...protocol.errors import CODES
from ...protocol.grants import Holder
from ...protocol.version import VERSION
from ...runtime.connections.admission import Reason
from ...runtime.event_loop_lag import LoopLag
from ...runtime.latency_histogram import BOUNDS, LatencyHistogram
from ..clusters.inventory import ClusterInventory
from ..connections.hub import Hub
from ..connections.monitored_hosts import HasHosts
from ..core.resources.limit_pools import CpuPool
from ..core.state.agent_phase import AgentPhase
from ..engine.decision_loop import Engine
from ..engine.event_feed import EventFeed
from ..files.disk_usage import DiskUsage
from ..files.log_compaction import CompactionState
from ..files.retention_sweeper import SweepReport
from ..notifications.notifier import Notifications
from ..process.counters import Counters
from ..process.listeners import ServerCertificate
from ..process.watchdog import Watchdog
from ..streams.live_updates import LiveUpdates
from ..usage import accounting
from .background_sampler import DiskSample
from .instruments import KINDS

#: Rows to read in one iteration of the event loop.
SLICE = 2_000
STATES = ("pending", "running", "completed", "canceled", "error", "job_run_purged")
REJECTED = ("tooLarge", "malformed", "unknownOp", "foreignToken", "unauthenticated")
_USAGE = {
    "core_seconds": "Run time of ended executions, multiplied by their reserved cores.",
    "cpu_seconds": "Processor time of ended executions, as far as known.",
    "gpu_seconds": "Run time of ended executions, multiplied by their GPUs.",
    "memory_byte_seconds": "Run time of ended executions, multiplied by their memory.",
}
#: Slurm's names of active job states. Any other state is counted as `OTHER`.
SLURM = (
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "REQUEUED",
    "STOPPED",
    "OTHER",
)


class CollectorSources(NamedTuple):
    """Objects that provide values. lines_lost: lost lines of the log. altered: changed files of the
    root that were not repaired. secrets: name and sentence of each secret file that cannot be used.
    certificates: those of the listeners. disk: the disk usage of users. lease_left: seconds in which this
    supervisor may act without another renewal of its lease; None without a lease of the site. grants: parts of
    the site's limits that this shard has.
    """

    engine: Engine
    hub: Hub
    feed: EventFeed
    live: LiveUpdates
    lag: LoopLag
    counters: Counters
    clusters: ClusterInventory
    watchdog: Watchdog
    drivers: Mapping[str, AgentDriver]
    notifications: Notifications
    lines_lost: Callable[[], int]
    altered: Collection[str] = ()
    retention: SweepReport = SweepReport()
    compactions: CompactionState = CompactionState()
    secrets: Callable[[], Iterable[tuple[str, str]]] = tuple
    certificates: Callable[[], Sequence[ServerCertificate]] = tuple
    disk: DiskUsage | None = None
    lease_left: Callable[[], float | None] = lambda: None
    grants: Holder | None = None


async def collect(sources: CollectorSources, sample: DiskSample) -> list[Metric]:
    """Return all metrics with current values."""
    out: list[Metric] = [
        _info(),
        _jobs(sources, sample),
        await _agents(sources),
        *_connections(sources),
        *_usage(sources),
        *_users_disk(sources),
        *_loop(sources.lag),
        *_store(sources, sample),
        *_slots(sources),
        _grants(sources),
        *_hosts(sources),
        await _slurm(sources),
        _disks(sample),
        _certificates(sources),
        *_supervisors(sources, sample),
    ]
    return [*out, *_counters(sources.counters), *_log(sources), *_retention(sources)]


def _gauge(
    name: str, about: str, labels: Iterable[str], rows: Mapping[tuple[str, ...], float]
) -> Metric:
    out = GaugeMetricFamily("jobscribe_" + name, about, labels=list(labels))
    for row, value in rows.items():
        out.add_metric(list(row), value)
    return out


def _counter(
    name: str, about: str, labels: Iterable[str], rows: Mapping[tuple[str, ...], float]
) -> Metric:
    out = CounterMetricFamily("jobscribe_" + name, about, labels=list(labels))
    for row, value in rows.items():
        out.add_metric(list(row), value)
    return out


def _info() -> Metric:
    return _gauge(
        "build_info",
        "Version of jobscribe in the label; the value is always 1.",
        ("version",),
        {(VERSION,): 1},
    )


def _supervisors(sources: CollectorSources, sample: DiskSample) -> Iterator[Metric]:
    """Count the supervisors of the site that stand by or serve, with their clocks, and measure the lease."""
    rows: dict[tuple[str, ...], float] = {}
    clocks: dict[tuple[str, ...], float] = {}
    for s in sample.supervisors or ():
        clocks[s.host,] = max(clocks.get((s.host,), 0.0), s.clock_ahead, key=abs)
    if sample.supervisors is not None:
        roles = Counter(s.role for s in sample.supervisors)
        rows = {(role,): roles[role] for role in ("serving", "standby", "away")}
    yield _gauge(
        "supervisors", "Supervisors of the site by role, with store.standby.", ("role",), rows
    )
    yield _gauge(
        "supervisor_clock_ahead_seconds",
        "Time by which the clock of a supervisor's machine is ahead of the database's.",
        ("host",),
        clocks,
    )
    left = sources.lease_left()
    yield _gauge(
        "lease_left_seconds",
        "Time in which the supervisor may act without another renewal of its lease.",
        (),
        {} if left is None else {(): left},
    )


def _jobs(sources: CollectorSources, sample: DiskSample) -> Metric:
    """Count jobs by their latest run, from the store's index."""
    rows: dict[tuple[str, ...], float] = {
        (driver, kind, state): 0 for driver in sources.drivers for kind in KINDS for state in STATES
    }
    rows |= {row: count for row, count in sample.jobs.items() if row[0]}
    return _gauge(
        "jobs", "Jobs by the state of their latest run.", ("driver", "kind", "state"), rows
    )


async def _agents(sources: CollectorSources) -> Metric:
    rows: Counter[tuple[str, ...]] = Counter(
        {(driver, phase): 0 for driver in sources.drivers for phase in AgentPhase}
    )
    for n, (key, view) in enumerate(list(sources.engine.world.agents.items())):
        if n % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        rows[key.driver, view.phase] += 1
    return _gauge(
        "agents",
        "Agents that exist or are needed, by state; includes the virtual agents of containers.",
        ("driver", "state"),
        rows,
    )


def _connections(sources: CollectorSources) -> Iterable[Metric]:
    now = asyncio.get_running_loop().time()
    owed: dict[tuple[str, ...], float] = {(driver,): 0.0 for driver in sources.drivers}
    inflight: Counter[tuple[str, ...]] = Counter({("run",): 0, ("question",): 0})
    for key, connection in sources.hub.connections.items():
        owed[(key.driver,)] = max(owed.get((key.driver,), 0.0), connection.heart.overdue_secs(now))
        inflight["run",] += len(connection.ops)
        inflight["question",] += len(connection.asked)
    yield _gauge(
        "agent_heartbeat_age_seconds",
        "Longest time that the answer of a connected agent to a ping is overdue.",
        ("driver",),
        owed,
    )
    yield _gauge(
        "ops_inflight",
        "Executions of connected agents (run) and requests without an answer yet (question).",
        ("op",),
        inflight,
    )


def _usage(sources: CollectorSources) -> Iterable[Metric]:
    """Sum the usage since the start. Users are no labels: `jobscribe usage` has them."""
    none = {(driver, str(kind)): 0.0 for driver in sources.drivers for kind in KINDS}
    for name, rows in accounting.seconds(sources.engine.used).items():
        out = CounterMetricFamily(
            f"jobscribe_usage_{name}", _USAGE[name], labels=("driver", "kind")
        )
        for labels, value in {**none, **rows}.items():
            out.add_metric(labels, value)
        yield out


def _users_disk(sources: CollectorSources) -> Iterable[Metric]:
    """Sum the disk usage of all users. Users are no labels: `jobscribe usage --disk` has them."""
    counted = {} if sources.disk is None else sources.disk.counted()
    yield _gauge(
        "users_disk_bytes",
        "Disk usage of all users' files, as measured last.",
        (),
        {(): counted.get("bytes", 0)},
    )
    yield _gauge(
        "users_over_quota",
        "Users above a disk quota: above the soft one only, or at the hard one.",
        ("quota",),
        {("soft",): counted.get("soft", 0), ("hard",): counted.get("hard", 0)},
    )


def _loop(lag: LoopLag) -> Iterable[Metric]:
    buckets, total = lag.counted()
    out = HistogramMetricFamily(
        "jobscribe_event_loop_lag_seconds",
        "Iterations of the event loop by the delay they cause.",
    )
    out.add_metric([], buckets=buckets, sum_value=total)
    yield out
    yield _gauge(
        "event_loop_lag_max_seconds",
        "Longest iteration of the event loop since the supervisor became ready.",
        (),
        {(): lag.worst},
    )


def _store(sources: CollectorSources, sample: DiskSample) -> Iterable[Metric]:
    yield _gauge(
        "db_head_position",
        "Position of the newest durable event.",
        (),
        {(): sources.engine.store.head()},
    )
    yield _gauge(
        "db_size_bytes",
        "Size of the event store's file and its write-ahead log.",
        (),
        {(): sample.store_bytes},
    )
    failing = sources.engine.paused or sources.engine.fails_since is not None
    yield _gauge("db_failing", "1 while the event store cannot be written.", (), {(): int(failing)})
    kept: dict[tuple[str, ...], float] = {
        (what,): count for what, count in sources.engine.sizes().items()
    }
    yield _gauge("kept", "Objects that the engine holds in memory, by type.", ("what",), kept)


def _slots(sources: CollectorSources) -> Iterable[Metric]:
    limits: Counter[tuple[str, ...]] = Counter()
    used: Counter[tuple[str, ...]] = Counter()
    world, policy = sources.engine.world, sources.engine.policy
    for driver in sources.drivers:
        for place in policy.hosts(driver):
            for kind in KINDS:
                if kind in place.slots:
                    pool = world.slots.pools.get(CpuPool(driver, kind, place.host))
                    limits[driver, kind] += world.slots_at(driver, kind, place.host)
                    used[driver, kind] += 0 if pool is None else len(pool.holders)
    yield _gauge("slots", "Concurrency limit of runs without roles.", ("driver", "kind"), limits)
    yield _gauge("slots_used", "Runs without roles that occupy a slot.", ("driver", "kind"), used)


def _grants(sources: CollectorSources) -> Metric:
    rows: dict[tuple[str, ...], float] = {}
    if sources.grants is not None:
        use = sources.grants.use
        for name, share in sources.grants.shares.items():
            rows |= {
                (name, "granted"): share.granted,
                (name, "used"): use[name].used,
                (name, "wanted"): use[name].wanted,
                (name, "capacity"): share.capacity,
            }
    return _gauge(
        "grants",
        "Part of each limit of the site that this shard has, uses and wants, and the limit of the whole site.",
        ("limit", "amount"),
        rows,
    )


def _hosts(sources: CollectorSources) -> Iterable[Metric]:
    up: dict[tuple[str, ...], float] = {}
    timings: dict[str, LatencyHistogram] = {}
    for name, driver in sources.drivers.items():
        if isinstance(driver, HasHosts):
            for host, watched in driver.engines.items():
                up[name, host] = int(watched.up)
                found = getattr(watched, "timings", None)
                if isinstance(found, LatencyHistogram):
                    timings[host] = found
    for cluster, news in sources.clusters.newest().items():
        if news is not None:
            up["sbatch", cluster] = int(news.scheduler == "up")
    about = "1 if the host or cluster answers, else 0; a cluster without any report is omitted."
    yield _gauge("host_up", about, ("driver", "host"), up)
    if timings:
        yield from _docker(timings)


def _docker(timings: Mapping[str, LatencyHistogram]) -> Iterable[Metric]:
    calls = HistogramMetricFamily(
        "jobscribe_docker_api_seconds", "Duration of calls to Docker daemons.", labels=["host"]
    )
    errors: dict[tuple[str, ...], float] = {}
    for host, found in timings.items():
        so_far, buckets = 0, []
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), found.counts, strict=True):
            so_far += count
            buckets.append((bound, so_far))
        calls.add_metric([host], buckets=buckets, sum_value=found.total)
        errors |= {(host, code): 0.0 for code in ("timeout", "unreachable", "refused")}
        errors |= {(host, code): count for code, count in found.errors.items()}
    yield calls
    about = "Failed calls to Docker daemons; notFound and conflict may be normal answers."
    yield _counter("docker_api_errors", about, ("host", "code"), errors)


async def _slurm(sources: CollectorSources) -> Metric:
    rows: Counter[tuple[str, ...]] = Counter(
        {(cluster, state): 0 for cluster in sources.clusters.newest() for state in SLURM}
    )
    for n, batch_job in enumerate(list(sources.engine.world.batch.values())):
        if n % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        rows[batch_job.cluster, batch_job.state if batch_job.state in SLURM else "OTHER"] += 1
    return _gauge(
        "slurm_jobs",
        "Slurm jobs of active runs, by Slurm's state names.",
        ("cluster", "state"),
        rows,
    )


def _disks(sample: DiskSample) -> Metric:
    return _gauge(
        "disk_free_bytes",
        "Free bytes on the disk of an area.",
        ("area",),
        {(area,): disk.free for area, disk in sample.disks.items()},
    )


def _certificates(sources: CollectorSources) -> Metric:
    return _gauge(
        "certificate_expiry_timestamp_seconds",
        "Unix time at which the certificate of a listener expires.",
        ("listener",),
        {(c.name,): c.expires for c in sources.certificates() if c.expires is not None},
    )


def _counters(counters: Counters) -> Iterable[Metric]:
    """Return the values of `Counters`: refusals, rejected frames and other notable events."""
    refused: dict[tuple[str, ...], float] = {(code,): 0 for code in CODES}
    rejected: dict[tuple[str, ...], float] = {(code,): 0 for code in REJECTED}
    noticed: dict[tuple[str, ...], float] = {("internal",): 0}
    ended: dict[tuple[str, ...], float] = {(reason,): 0 for reason in get_args(Reason)}
    notified: dict[tuple[str, ...], float] = {("delivered",): 0, ("failed",): 0, ("given_up",): 0}
    for what, count in counters.all().items():
        topic, _, code = what.partition(".")
        match topic:
            case "refused":
                refused[code,] = count
            case "rejected":
                rejected[code,] = count
            case "connection":
                ended[code,] = count
            case "notify":
                notified[code,] = count
            case _:
                noticed[what,] = count
    yield _counter("refusals", "Refused requests, by code (docs/http.md).", ("code",), refused)
    yield _counter("message_rejected", "Rejected messages of agents.", ("reason",), rejected)
    yield _counter(
        "auth_failures",
        "Missing or wrong secrets, tokens and passwords.",
        ("reason",),
        {
            ("api",): refused["unauthenticated",],
            ("agent",): rejected["unauthenticated",],
            ("cluster",): refused["signInRefused",],
        },
    )
    about = "Connections closed for a missing request, missing capacity, or the limit of their peer (docs/operations.md)."
    yield _counter("connections_ended", about, ("reason",), ended)
    yield _counter(
        "notifications",
        "Delivery attempts of notifications; given_up: notifications that were never delivered.",
        ("state",),
        notified,
    )
    yield _counter(
        "notices",
        "Other notable events, which are also in the log; internal: bugs in jobscribe.",
        ("what",),
        noticed,
    )


def _retention(sources: CollectorSources) -> Iterable[Metric]:
    kinds = sources.retention.kinds
    about = "kind: scripts, evidence, profiles, agentLogs, records (docs/operations.md)."
    yield _counter(
        "retention_removed",
        f"Folders, or log files, from which retention removed something; {about}",
        ("kind",),
        {(kind,): found.count for kind, found in kinds.items()},
    )
    yield _counter(
        "retention_removed_files",
        f"Inodes that retention freed; {about}",
        ("kind",),
        {(kind,): found.files for kind, found in kinds.items()},
    )
    yield _counter(
        "retention_removed_bytes",
        f"Bytes that retention freed on the disk; {about}",
        ("kind",),
        {(kind,): found.bytes for kind, found in kinds.items()},
    )
    yield _counter(
        "retention_failures",
        "Removals that failed; the next pass tries them again.",
        (),
        {(): sources.retention.failed},
    )
    yield _counter(
        "log_compactions",
        "Compactions of the event log while the supervisor ran.",
        ("result",),
        {("done",): sources.compactions.done, ("failed",): sources.compactions.failed},
    )


def _log(sources: CollectorSources) -> Iterable[Metric]:
    yield _counter(
        "log_lines_lost",
        "Lost lines of the supervisor's log.",
        (),
        {(): sources.lines_lost()},
    )
    waiting = sources.notifications.sizes()["waiting"]
    yield _gauge(
        "notifications_waiting", "Notifications that wait for delivery.", (), {(): waiting}
    )
    yield _gauge(
        "followers",
        "Open streams of events (events) and of live updates (live).",
        ("stream",),
        {
            ("events",): sources.feed.sizes()["followers"],
            ("live",): sources.live.sizes()["streams"],
        },
    )
