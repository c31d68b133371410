"""What there is at the moment of a scrape, as metrics: read from those who have it, in slices, so
that the loop turns meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from ...drivers.contracts import AgentDriver
from ...protocol.errors import CODES
from ...protocol.ids import AgentKey
from ...protocol.version import VERSION
from ...runtime.connections.admission import Reason
from ...runtime.event_loop_lag import LoopLag
from ...runtime.latency_histogram import BOUNDS, LatencyHistogram
from ..clusters.inventory import ClusterInventory
from ..connections.hub import Hub
from ..connections.monitored_hosts import HasHosts
from ..core.state.host_assignment import cpu_pool
from ..engine.decision_loop import Engine
from ..engine.event_feed import EventFeed
from ..notifications.notifier import Notifications
from ..process.counters import Counters
from ..process.watchdog import Watchdog
from ..streams.live_updates import LiveUpdates
from .background_sampler import DiskSample
from .instruments import KINDS

#: Rows that are looked at in one round of the loop.
SLICE = 2_000
PHASES = (
    "absent",
    "finding",
    "starting",
    "away",
    "stopping",
    "up",
    "leaving",
    "crowded",
    "signed_out",
)
STATES = ("pending", "running", "completed", "canceled", "error", "job_run_purged")
REJECTED = ("tooLarge", "malformed", "unknownOp", "foreignToken", "unauthenticated")
#: Slurm's words for jobs that are not over; any other one is `OTHER`.
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
    """Who has something to tell. lines_lost: of the log. altered: files of the root that somebody
    changed and that are left so.
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


async def readings(parts: CollectorSources, seen: DiskSample) -> list[Metric]:
    """All of them."""
    out: list[Metric] = [
        _info(),
        _jobs(parts, seen),
        await _agents(parts),
        *_connections(parts),
        *_loop(parts.lag),
        *_store(parts, seen),
        *_slots(parts),
        *_hosts(parts),
        await _slurm(parts),
        _disks(seen),
    ]
    return [*out, *_counted(parts.counters), *_log(parts)]


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
        "build_info", "Which version this is; the value is 1.", ("version",), {(VERSION,): 1}
    )


def _jobs(parts: CollectorSources, seen: DiskSample) -> Metric:
    """By their latest run, as the index of the store has them."""
    rows: dict[tuple[str, ...], float] = {
        (driver, kind, state): 0 for driver in parts.drivers for kind in KINDS for state in STATES
    }
    rows |= {row: count for row, count in seen.jobs.items() if row[0]}
    return _gauge(
        "jobs", "Jobs by the state of their latest run.", ("driver", "kind", "state"), rows
    )


async def _agents(parts: CollectorSources) -> Metric:
    rows: Counter[tuple[str, ...]] = Counter(
        {(driver, phase): 0 for driver in parts.drivers for phase in PHASES}
    )
    for n, (key, view) in enumerate(list(parts.engine.world.agents.items())):
        if n % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        rows[key.driver, view.phase] += 1
    return _gauge(
        "agents",
        "Agents that somebody needs or that are there, by state; places of containers too.",
        ("driver", "state"),
        rows,
    )


def _connections(parts: CollectorSources) -> Iterable[Metric]:
    now = asyncio.get_running_loop().time()
    owed: dict[tuple[str, ...], float] = {(driver,): 0.0 for driver in parts.drivers}
    inflight: Counter[tuple[str, ...]] = Counter({("run",): 0, ("question",): 0})
    for key, connection in parts.hub.connections.items():
        owed[(key.driver,)] = max(owed.get((key.driver,), 0.0), connection.heart.overdue_secs(now))
        inflight["run",] += len(connection.ops)
        inflight["question",] += len(connection.asked)
    yield _gauge(
        "agent_heartbeat_age_seconds",
        "The longest that a connected agent owes the answer to a ping.",
        ("driver",),
        owed,
    )
    yield _gauge(
        "ops_inflight",
        "Executions that agents have, and questions that wait for their answer.",
        ("op",),
        inflight,
    )


def _loop(lag: LoopLag) -> Iterable[Metric]:
    buckets, total = lag.counted()
    out = HistogramMetricFamily(
        "jobscribe_event_loop_lag_seconds",
        "Rounds of the event loop, each as long as it held up what came.",
    )
    out.add_metric([], buckets=buckets, sum_value=total)
    yield out
    yield _gauge(
        "event_loop_lag_max_seconds",
        "The longest round since the supervisor is ready.",
        (),
        {(): lag.worst},
    )


def _store(parts: CollectorSources, seen: DiskSample) -> Iterable[Metric]:
    yield _gauge(
        "db_head_position", "Events that are durable.", (), {(): parts.engine.store.head()}
    )
    yield _gauge(
        "db_size_bytes",
        "The event store's file, and what is still to be copied into it.",
        (),
        {(): seen.store_bytes},
    )
    failing = parts.engine.paused or parts.engine.fails_since is not None
    yield _gauge("db_failing", "1 while the event store cannot be written.", (), {(): int(failing)})
    kept: dict[tuple[str, ...], float] = {
        (what,): count for what, count in parts.engine.sizes().items()
    }
    yield _gauge("kept", "What the engine keeps in memory, counted.", ("what",), kept)


def _slots(parts: CollectorSources) -> Iterable[Metric]:
    there: Counter[tuple[str, ...]] = Counter()
    used: Counter[tuple[str, ...]] = Counter()
    world, policy = parts.engine.world, parts.engine.policy
    for driver in parts.drivers:
        for place in policy.hosts(driver):
            for kind in KINDS:
                if kind in place.slots:
                    pool = world.slots.pools.get(cpu_pool(AgentKey(driver, kind, "-", place.host)))
                    there[driver, kind] += policy.slots_at(driver, kind, place.host)
                    used[driver, kind] += 0 if pool is None else len(pool.holders)
    yield _gauge("slots", "Plain runs that may run at once.", ("driver", "kind"), there)
    yield _gauge("slots_used", "Plain runs that have such a slot.", ("driver", "kind"), used)


def _hosts(parts: CollectorSources) -> Iterable[Metric]:
    up: dict[tuple[str, ...], float] = {}
    timings: dict[str, LatencyHistogram] = {}
    for name, driver in parts.drivers.items():
        if isinstance(driver, HasHosts):
            for host, watched in driver.engines.items():
                up[name, host] = int(watched.up)
                found = getattr(watched, "timings", None)
                if isinstance(found, LatencyHistogram):
                    timings[host] = found
    for cluster, news in parts.clusters.newest().items():
        if news is not None:
            up["sbatch", cluster] = int(news.scheduler == "up")
    about = "1 where a host or cluster can be asked; a cluster that nobody has told of is left out."
    yield _gauge("host_up", about, ("driver", "host"), up)
    if timings:
        yield from _docker(timings)


def _docker(timings: Mapping[str, LatencyHistogram]) -> Iterable[Metric]:
    calls = HistogramMetricFamily(
        "jobscribe_docker_api_seconds", "Calls to Docker daemons.", labels=["host"]
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
    about = "Calls to Docker daemons that failed; notFound and conflict are answers, too."
    yield _counter("docker_api_errors", about, ("host", "code"), errors)


async def _slurm(parts: CollectorSources) -> Metric:
    rows: Counter[tuple[str, ...]] = Counter(
        {(cluster, state): 0 for cluster in parts.clusters.newest() for state in SLURM}
    )
    for n, said in enumerate(list(parts.engine.world.batch.values())):
        if n % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        rows[said.cluster, said.state if said.state in SLURM else "OTHER"] += 1
    return _gauge(
        "slurm_jobs", "Jobs of runs that live, in Slurm's words.", ("cluster", "state"), rows
    )


def _disks(seen: DiskSample) -> Metric:
    return _gauge(
        "disk_free_bytes",
        "Room on the disk of an area.",
        ("area",),
        {(area,): disk.free for area, disk in seen.disks.items()},
    )


def _counted(counters: Counters) -> Iterable[Metric]:
    """What `Counters` has: refusals, rejected frames, and whatever else was noticed."""
    refused: dict[tuple[str, ...], float] = {(code,): 0 for code in CODES}
    rejected: dict[tuple[str, ...], float] = {(code,): 0 for code in REJECTED}
    noticed: dict[tuple[str, ...], float] = {("internal",): 0}
    ended: dict[tuple[str, ...], float] = {(reason,): 0 for reason in get_args(Reason)}
    told: dict[tuple[str, ...], float] = {("delivered",): 0, ("failed",): 0, ("given_up",): 0}
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
                told[code,] = count
            case _:
                noticed[what,] = count
    yield _counter(
        "refusals", "Requests that were refused, by code (docs/http.md).", ("code",), refused
    )
    yield _counter(
        "message_rejected", "What agents sent that was not taken.", ("reason",), rejected
    )
    yield _counter(
        "auth_failures",
        "A secret, a token or a password was missing or wrong.",
        ("reason",),
        {
            ("api",): refused["unauthenticated",],
            ("agent",): rejected["unauthenticated",],
            ("cluster",): refused["signInRefused",],
        },
    )
    about = "Connections that were ended for want of a request, of room, or of a share for their peer (docs/operations.md)."
    yield _counter("connections_ended", about, ("reason",), ended)
    yield _counter(
        "notifications",
        "Tries to tell somebody of a run; given_up: those that nobody was told of.",
        ("state",),
        told,
    )
    yield _counter(
        "notices",
        "What else was noticed and is in the log; internal: faults of jobscribe's own.",
        ("what",),
        noticed,
    )


def _log(parts: CollectorSources) -> Iterable[Metric]:
    yield _counter(
        "log_lines_lost",
        "Lines of the supervisor's own log that could not be kept.",
        (),
        {(): parts.lines_lost()},
    )
    waiting = parts.notifications.sizes()["waiting"]
    yield _gauge(
        "notifications_waiting", "Notifications that are still to be delivered.", (), {(): waiting}
    )
    yield _gauge(
        "followers",
        "Streams of events and of news that somebody reads.",
        ("stream",),
        {
            ("events",): parts.feed.sizes()["followers"],
            ("live",): parts.live.sizes()["streams"],
        },
    )
