"""The monitoring of one supervisor: connects counters, collector, sampler and health. The
composition root creates one.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from ...db.events.state import Job
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey
from ...runtime.thread_pool import Stuck, Threads
from ...service.site.secret_rotation import RotatedSecret
from ..process.counters import ConnectionMetrics, DisconnectReason
from ..process.event_log import LogSize
from .background_sampler import BackgroundSampler, no_log
from .collector import CollectorSources, collect
from .event_counters import EventCounters
from .health import Health
from .instruments import Instruments

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
#: Interval for checks that have no event: the clock, lost lines.
LOOK_SECS = 5.0
#: A larger change of the wall clock counts as a clock jump; a smaller one is slewing.
SET_SECS = 1.0
#: Time limit for writing the text of a scrape.
WRITE_SECS = 8.0


class MetricsExporter:
    """Exports metrics. parts: sources of values. secret: the scraper's token."""

    def __init__(
        self,
        sources: CollectorSources,
        root: Path,
        user_root: str,
        secret: RotatedSecret,
        *,
        measure_log: Callable[[], LogSize | None] = no_log,
        wall: Callable[[], float] = time.time,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources, self._secret, self._wall, self._mono = sources, secret, wall, mono
        policy = sources.engine.policy
        self.instruments = Instruments(
            {driver: [p.host for p in policy.hosts(driver)] for driver in sources.drivers}
        )
        ProcessCollector(registry=self.instruments.registry)
        self.event_counters = EventCounters(self.instruments)
        self.sampler = BackgroundSampler(
            root, {"root": str(root), "user": user_root}, wall, measure_log
        )
        self._writing = Threads("metrics-text", 1)
        self._stages: dict[str, float] = {}
        self._check_task: asyncio.Task[None] | None = None
        self._wall_offset = wall() - mono()
        self.health = Health(sources, self.sampler, wall, mono)
        sources.hub.links = _CountedConnections(self.instruments, self.event_counters, wall)
        self._unlisten = sources.engine.store.listen(self.event_counters.heard)

    def start(self) -> None:
        self._check_task = asyncio.get_running_loop().create_task(self._check_periodically())

    async def close(self) -> None:
        self._unlisten()
        if self._check_task is not None:
            self._check_task.cancel()
        await self.sampler.close()
        await self._writing.close(1.0)

    def admits(self, authorization: str) -> bool:
        """Return whether the header contains the scraper's token."""
        return self._secret.holder(authorization) is not None

    # ---- inputs

    def projected(self, job: Job, position: int) -> None:
        """Receive a durable job from the engine."""
        self.event_counters.projected(job, position)

    def stored(self, point: str) -> None:
        """Receive the progress of the store's writer, in its thread (see `db.batches`)."""
        now = self._mono()
        match point:
            case "taken":
                self._stages = {"taken": now}
            case "committed" if "taken" in self._stages:
                self.instruments.db.labels("commit").observe(now - self._stages.pop("taken"))
                self._stages["committed"] = now
            case "witnessed" if "committed" in self._stages:
                self.instruments.db.labels("witness").observe(now - self._stages.pop("committed"))

    # ---- outputs

    async def text(self) -> bytes:
        """Return all metrics in Prometheus' text format. Raises Refusal("deadline")."""
        sample = await self.sampler.measure()
        now = _Scrape(await collect(self._sources, sample), self.instruments)
        try:
            return await self._writing.run(lambda: generate_latest(now), WRITE_SECS)
        except (TimeoutError, Stuck):
            raise Refusal(
                "deadline",
                f"the metrics could not be written within {WRITE_SECS:g} s; try again later",
            ) from None

    def sizes(self) -> dict[str, int]:
        return self.event_counters.sizes()

    async def _check_periodically(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECS)
            self.check()

    def check(self) -> None:
        """Check whether the clock was set or lines were lost since the last check."""
        wall_offset, lost, moments = (
            self._wall() - self._mono(),
            self._sources.lines_lost(),
            self.health.moments,
        )
        by, self._wall_offset = wall_offset - self._wall_offset, wall_offset
        if abs(by) > SET_SECS:
            self.instruments.clock_jumps.inc()
            moments = moments._replace(clock_set=self._wall(), clock_by=by)
        if lost > moments.lines:
            moments = moments._replace(line_lost=self._wall(), lines=lost)
        self.health.moments = moments


class _Scrape:
    """A registry with the values of this scrape and all counters."""

    def __init__(self, read: list[Metric], instruments: Instruments) -> None:
        self._read, self._instruments = read, instruments

    def collect(self) -> Iterator[Metric]:
        yield from self._read
        yield from self._instruments.families()


class _CountedConnections:
    """The hub's `ConnectionMetrics`: counts, and records that an agent start ended with a
    connection.
    """

    def __init__(
        self, instruments: Instruments, event_counters: EventCounters, wall: Callable[[], float]
    ) -> None:
        self._links: ConnectionMetrics = instruments
        self._event_counters, self._wall = event_counters, wall
        self.messages, self.frame, self.op = instruments.messages, instruments.frame, instruments.op

    def connected(self, key: AgentKey) -> None:
        self._links.connected(key)
        self._event_counters.connected(key, self._wall())

    def lost(self, key: AgentKey, why: DisconnectReason) -> None:
        self._links.lost(key, why)
