"""Slow measurements in a separate thread: jobs by state, file sizes, free space on disks. A hanging
disk blocks nothing else.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ...db.sqlite.schema import FILE, open_shared
from ...runtime.thread_pool import Stuck, Threads
from ..process.event_log import LogSize, SupervisorSeen
from ..process.root_identity import foreign_agents

#: Time limit for all measurements. After that the last known values are returned.
WITHIN_SECS = 5.0
#: Maximum share of one core for counting jobs.
PART = 0.02
CLOSE_SECS = 1.0

#: Number of jobs by driver, kind and status.
Tally = dict[tuple[str, str, str], int]


class Disk(NamedTuple):
    """Free and total bytes and free files of a disk; files: None if the file system has no limit."""

    free: int
    size: int
    files: int | None


class DiskSample(NamedTuple):
    """Result of one measurement. at: wall time. errors: reason by area for failed measurements.
    foreign_agents: sentences (see `process.root_identity`). supervisors: None unless they stand by.
    """

    at: float
    jobs: Tally
    store_bytes: int
    disks: dict[str, Disk]
    errors: dict[str, str]
    foreign_agents: tuple[str, ...] = ()
    supervisors: tuple[SupervisorSeen, ...] | None = None


def no_log() -> LogSize | None:
    """The log is in the root's file."""
    return None


class BackgroundSampler:
    """Measures in a thread. areas: folders by name. measure_log: measures a log that is in no file."""

    def __init__(
        self,
        root: Path,
        areas: Mapping[str, str],
        wall: Callable[[], float] = time.time,
        measure_log: Callable[[], LogSize | None] = no_log,
    ) -> None:
        self._measure_log, self._elsewhere_bytes = measure_log, 0
        self._supervisors: tuple[SupervisorSeen, ...] | None = None
        self._root, self._db, self._areas, self._wall = root, root / "db" / FILE, dict(areas), wall
        self._threads = Threads("metrics", 2)
        self._jobs: Tally = {}
        self._counted_at, self._count_secs = 0.0, 0.0
        self.newest = DiskSample(0.0, {}, 0, {}, {"disk": "not measured yet"})
        #: Wall time of the first measurement that did not finish.
        self.stuck_since: float | None = None

    async def measure(self) -> DiskSample:
        """Return a new sample, or the last one if the measurement does not finish in time."""
        try:
            self.newest = await self._threads.run(self._measure, WITHIN_SECS)
            self.stuck_since = None
        except (TimeoutError, Stuck):
            self.stuck_since = (
                self._wall() - WITHIN_SECS if self.stuck_since is None else self.stuck_since
            )
        return self.newest

    async def close(self) -> None:
        await self._threads.close(CLOSE_SECS)

    # ---- in the thread

    def _measure(self) -> DiskSample:
        errors: dict[str, str] = {}
        now = time.monotonic()
        if now - self._counted_at >= self._count_secs / PART:
            try:
                self._jobs = self._count()
            except (sqlite3.Error, OSError) as e:
                errors["store"] = str(e)
            self._counted_at, self._count_secs = time.monotonic(), time.monotonic() - now
        size, disks = self._elsewhere_bytes, {}
        for path in (self._db, Path(f"{self._db}-wal")):
            try:
                size += os.stat(path).st_size
            except OSError as e:
                if not isinstance(e, FileNotFoundError):
                    errors["store"] = e.strerror or type(e).__name__
        for name, folder in self._areas.items():
            try:
                disks[name] = disk_usage(folder)
            except OSError as e:
                errors[name] = e.strerror or type(e).__name__
        try:
            others = tuple(foreign_agents(self._root))
        except OSError as e:
            others, errors["agents"] = self.newest.foreign_agents, e.strerror or type(e).__name__
        return DiskSample(self._wall(), self._jobs, size, disks, errors, others, self._supervisors)

    def _count(self) -> Tally:
        elsewhere = self._measure_log()
        if elsewhere is not None:
            self._elsewhere_bytes = elsewhere.size
            found = elsewhere.supervisors
            self._supervisors = None if found is None else tuple(found)
            return {(d, k, s): n for d, k, s, n in elsewhere.jobs}
        connection = open_shared(self._db)
        try:
            rows = connection.execute(
                "SELECT driver, kind, status, COUNT(*) FROM jobs GROUP BY driver, kind, status"
            ).fetchall()
        finally:
            connection.close()
        return {
            (str(driver), str(kind), str(status)): int(count)
            for driver, kind, status, count in rows
        }


def disk_usage(folder: str) -> Disk:
    """Return the free space of the disk that has this folder, or its nearest existing parent."""
    while not os.path.exists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    found = os.statvfs(folder)
    return Disk(
        found.f_bavail * found.f_frsize,
        found.f_blocks * found.f_frsize,
        found.f_favail if found.f_files else None,
    )
