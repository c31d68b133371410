"""What may take its time is looked at in a thread: jobs by state, sizes of files, room on disks. A
disk that hangs holds up nobody.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ...db.sqlite.schema import FILE, open_for_reading
from ...runtime.thread_pool import Stuck, Threads
from ..process.root_identity import strangers

#: All of it must be there by then; what was known before is told otherwise.
WITHIN_SECS = 5.0
#: To count all jobs may take so large a part of a processor.
PART = 0.02
CLOSE_SECS = 1.0

#: By driver, kind, status.
Tally = dict[tuple[str, str, str], int]


class Disk(NamedTuple):
    """Bytes and files that may still come; files: None where they are not limited."""

    free: int
    size: int
    files: int | None


class DiskSample(NamedTuple):
    """at: wall time. errors: what could not be looked at, by name, with why. strangers: sentences
    (see supervisor.root_identity).
    """

    at: float
    jobs: Tally
    store_bytes: int
    disks: dict[str, Disk]
    errors: dict[str, str]
    strangers: tuple[str, ...] = ()


class BackgroundSampler:
    """areas: folders by name. on_loop: everything but the look itself."""

    def __init__(
        self, root: Path, areas: Mapping[str, str], wall: Callable[[], float] = time.time
    ) -> None:
        self._root, self._db, self._areas, self._wall = root, root / "db" / FILE, dict(areas), wall
        self._threads = Threads("metrics", 2)
        self._jobs: Tally = {}
        self._counted, self._took = 0.0, 0.0
        self.seen = DiskSample(0.0, {}, 0, {}, {"disk": "nobody has looked yet"})
        #: wall time since when it does not answer
        self.stuck_since: float | None = None

    async def look(self) -> DiskSample:
        """The newest; where it does not answer in time, what was seen last."""
        try:
            self.seen = await self._threads.run(self._look, WITHIN_SECS)
            self.stuck_since = None
        except (TimeoutError, Stuck):
            self.stuck_since = (
                self._wall() - WITHIN_SECS if self.stuck_since is None else self.stuck_since
            )
        return self.seen

    async def close(self) -> None:
        await self._threads.close(CLOSE_SECS)

    # ---- its thread

    def _look(self) -> DiskSample:
        errors: dict[str, str] = {}
        now = time.monotonic()
        if now - self._counted >= self._took / PART:
            try:
                self._jobs = self._count()
            except sqlite3.Error as e:
                errors["store"] = str(e)
            self._counted, self._took = time.monotonic(), time.monotonic() - now
        size, disks = 0, {}
        for path in (self._db, Path(f"{self._db}-wal")):
            try:
                size += os.stat(path).st_size
            except OSError as e:
                if not isinstance(e, FileNotFoundError):
                    errors["store"] = e.strerror or type(e).__name__
        for name, folder in self._areas.items():
            try:
                disks[name] = room(folder)
            except OSError as e:
                errors[name] = e.strerror or type(e).__name__
        try:
            others = tuple(strangers(self._root))
        except OSError as e:
            others, errors["agents"] = self.seen.strangers, e.strerror or type(e).__name__
        return DiskSample(self._wall(), self._jobs, size, disks, errors, others)

    def _count(self) -> Tally:
        connection = open_for_reading(self._db)
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


def room(folder: str) -> Disk:
    """Of the disk where this folder is, or will be."""
    while not os.path.exists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    found = os.statvfs(folder)
    return Disk(
        found.f_bavail * found.f_frsize,
        found.f_blocks * found.f_frsize,
        found.f_favail if found.f_files else None,
    )
