"""Records as files: `<root>/supervisor-job/<computeJid>.json`, each written as a whole by a
background thread.

No function here blocks the caller. A record can always be rebuilt from the log. At start,
`catch_up` does so for jobs that changed after the marker, the position up to which all records are
on the disk.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ...runtime.filesystems import write_atomically
from ..events.events import job_stream
from ..events.job_fold import evolve
from ..events.state import Job
from ..store.contract import EventStore
from .job_record import record, record_bytes

__all__ = [
    "FOLDER",
    "RecordWriter",
    "catch_up",
    "clean",
    "forget",
    "read_marker",
    "record",
    "record_bytes",
    "record_path",
    "sync",
    "write_marker",
]

FOLDER = "supervisor-job"
_POINTS = ("record.written", "record.renamed")
#: Contains one number. The name does not end in `.json`, so it is not taken for a record.
MARKER = ".position"
#: Seconds between two rounds of writing, so that a short job is written once, at its end.
EVERY_SECS = 0.5
#: Seconds until the record of a run that waits is written, so that it is usually written once.
WAITING_SECS = 5.0
#: The kernel writes a file back within half a minute; older records are assumed to be on the disk.
SETTLED_SECS = 60.0
#: Seconds between two writes of the marker, and before a failed record is retried.
MARKER_SECS, RETRY_SECS = 20.0, 2.0
#: More files than this are synced by one os.sync(), not one by one.
SYNCED_ONE_BY_ONE = 1000


class _Dirty(NamedTuple):
    """A job whose record is outdated. since: position of its first event that is not on file. due:
    monotonic time.
    """

    job: Job
    position: int
    at: float
    since: int
    due: float = 0.0


class RecordWriter:
    """Writes records in a background thread. The owner's thread calls `mark` and `catch_up`.
    complain: logs a sentence, called from the writing thread.
    """

    def __init__(
        self,
        folder: Path,
        complain: Callable[[str], None],
        *,
        every: float = EVERY_SECS,
        retry: float = RETRY_SECS,
        monotonic: Callable[[], float] = time.monotonic,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """before: called in the writing thread before each record."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        #: number of failed writes of records
        self.failures = 0
        #: records written
        self.written = 0
        self._complain, self._every, self._retry, self._monotonic = (
            complain,
            every,
            retry,
            monotonic,
        )
        self._before = before
        self._marker = read_marker(folder)
        self._lock = threading.Lock()
        self._dirty: dict[str, _Dirty] = {}
        self._seen = self._marker
        #: (time, position up to which everything was written at that time)
        self._settling: deque[tuple[float, int]] = deque()
        self._recent: dict[str, float] = {}
        self._retry_at = self._marker_at = 0.0
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="records", daemon=True)
        self._thread.start()

    @property
    def marker(self) -> int:
        """Return the position up to which the records include all events, even after a power
        failure.
        """
        return self._marker

    def mark(self, job: Job, position: int, at: float) -> None:
        """Queue a job's durable state, with position and time of its last event. Never blocks."""
        run = job.run
        waits = run is not None and run.active and run.started_at is None
        due = self._monotonic() + WAITING_SECS if waits else 0.0
        with self._lock:
            before = self._dirty.get(job.jid)
            since, due = (before.since, min(before.due, due)) if before else (position, due)
            self._dirty[job.jid] = _Dirty(job, position, at, since, due)
            self._seen = max(self._seen, position)
        self._wake.set()

    def rewrite(self, job: Job, position: int, at: float) -> None:
        """Queue a job that is in the log with less data than before, if it has a record: retention
        removes records of purged runs.
        """
        if record_path(self.folder, job.jid).exists():
            self.mark(job, position, at)

    def reached(self, position: int) -> None:
        """Note that all jobs with events up to `position` have been marked."""
        with self._lock:
            self._seen = max(self._seen, position)

    def forget_marker(self) -> None:
        """Reset the marker: the log was replaced by an older one, so no file can be trusted."""
        with self._lock:
            self._seen = self._marker = 0
            self._settling.clear()

    def flush(self, before: float = float("inf")) -> int:
        """Write the outdated records that are due before this time; return the number of failures.
        Called by the writing thread, and after its end.
        """
        with self._lock:
            batch = {jid: dirty for jid, dirty in self._dirty.items() if dirty.due < before}
            self._dirty = {j: dirty for j, dirty in self._dirty.items() if j not in batch}
            seen = min([self._seen, *(dirty.since - 1 for dirty in self._dirty.values())])
        failed: list[tuple[_Dirty, OSError]] = []
        for dirty in batch.values():
            try:
                data = record_bytes(dirty.job, dirty.position, dirty.at)
                self._before()
                write_atomically(str(record_path(self.folder, dirty.job.jid)), data, points=_POINTS)
            except OSError as e:
                failed.append((dirty, e))
            else:
                self.written += 1
                self._recent[dirty.job.jid] = self._monotonic()
        self._settling.append((self._monotonic(), seen))
        if failed:
            self._failed(failed)
        return len(failed)

    def close(self) -> None:
        """Write and sync everything, so that the next start has nothing to do."""
        self._stop.set()
        self._wake.set()
        self._thread.join()
        self.flush()
        try:
            sync(self.folder, list(self._recent))
            self._advance(self._settling[-1][1])
        except OSError as e:
            self._complain(f"cannot sync the records: {e}")

    # ---- the writing thread

    def _run(self) -> None:
        try:
            clean(self.folder)
        except OSError as e:
            self._complain(f"cannot remove leftovers in {self.folder}: {e}")
        while not self._stop.is_set():
            if not self._wake.wait(timeout=MARKER_SECS if self._settling else None):
                self._settle()
                continue
            # a record that changes again within this time is written once
            self._stop.wait(self._every)
            self._wake.clear()
            if self._stop.is_set():
                return
            if self._monotonic() >= self._retry_at and self.flush(self._monotonic()):
                self._retry_at = self._monotonic() + self._retry
            if self._dirty:
                self._wake.set()
            self._settle()

    def _failed(self, failed: list[tuple[_Dirty, OSError]]) -> None:
        """Keep failed records for a retry, and lower the positions that count as written."""
        self.failures += len(failed)
        with self._lock:
            for dirty, _ in failed:
                newer = self._dirty.get(dirty.job.jid)
                self._dirty[dirty.job.jid] = (
                    dirty if newer is None else newer._replace(since=min(dirty.since, newer.since))
                )
        limit = min(dirty.since for dirty, _ in failed) - 1
        self._settling = deque((when, min(position, limit)) for when, position in self._settling)
        first, error = failed[0]
        others = f" and {len(failed) - 1} others" if len(failed) > 1 else ""
        self._complain(f"{first.job.jid}{others}: {error.strerror or error}; will be retried")

    def _settle(self) -> None:
        """Advance the marker to the position that was written long enough ago."""
        now = self._monotonic()
        if now < self._marker_at:
            return
        settled = None
        while self._settling and self._settling[0][0] <= now - SETTLED_SECS:
            settled = self._settling.popleft()[1]
        self._recent = {
            jid: when for jid, when in self._recent.items() if when > now - SETTLED_SECS
        }
        if settled is None:
            return
        self._marker_at = now + MARKER_SECS
        try:
            self._advance(settled)
        except OSError as e:
            self._complain(f"{self.folder / MARKER}: {e.strerror or e}")

    def _advance(self, position: int) -> None:
        if position > self._marker:
            write_marker(self.folder, position)
            self._marker = position


def catch_up(store: EventStore, records: RecordWriter) -> int:
    """Mark the jobs that changed after the marker; return their number. Raises Refusal if the log
    cannot be read.
    """
    head = store.head()
    if records.marker > head:
        records.forget_marker()
    changed: list[str] = []
    before = None
    while rows := [r for r in store.jobs(before=before, limit=1000) if r.position > records.marker]:
        changed += (r.jid for r in rows)
        before = rows[-1].position
    # oldest first: a marked position includes everything before it
    changed.reverse()
    streams = store.read_streams([job_stream(jid) for jid in changed])
    for jid, events in zip(changed, streams, strict=True):
        job = Job(jid=jid)
        for stored in events:
            job = evolve(job, stored.event)  # type: ignore[arg-type]
        if events:
            records.mark(job, events[-1].position, events[-1].event.at)
    records.reached(head)
    return len(changed)


def record_path(folder: Path, jid: str) -> Path:
    return folder / f"{jid}.json"


def read_marker(folder: Path) -> int:
    """Return the position in the marker; 0 if it is missing or invalid, which rebuilds all records."""
    try:
        text = (folder / MARKER).read_text(encoding="ascii")
        return max(0, int(text))
    except (FileNotFoundError, ValueError):
        return 0


def write_marker(folder: Path, position: int) -> None:
    """Set the marker. Raises OSError."""
    write_atomically(str(folder / MARKER), f"{position}\n".encode(), sync=True)


def forget(folder: Path, jid: str) -> None:
    """Remove the record of a job that the log does not know."""
    with contextlib.suppress(FileNotFoundError):
        record_path(folder, jid).unlink()


def sync(folder: Path, jids: Sequence[str]) -> None:
    """Sync these records to the disk. Raises OSError."""
    if len(jids) > SYNCED_ONE_BY_ONE:
        os.sync()
        return
    for path in [*(record_path(folder, jid) for jid in jids), folder]:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def clean(folder: Path) -> None:
    """Remove temporary files of killed processes. Raises OSError."""
    own = f".{os.getpid()}.new"
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".new") and not entry.name.endswith(own):
                os.unlink(entry.path)
