"""Making everything anew that can be derived from the log; and, when the log is damaged, keeping the part that is whole.

The new file is written beside the old one and takes its place in one step. When something is cut off, the old files are
kept aside first. Only on a store that is not in use.
"""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..protocol.errors import Refusal
from ..protocol.ids import parse
from ..runtime.filesystems import write_atomically
from .chain import Broken, Row, stored
from .events import RunRequested, StopRequested
from .faults import UNREADABLE, describe
from .index import index_row
from .inspection import EVERY, Progress, folded, opened, silent, store_path, whole_rows
from .opening import repair
from .projection import record_bytes
from .receipts import KEPT_SECS
from .records import FOLDER as RECORDS
from .records import clean, forget, record_path, sync, write_marker
from .schema import INSERT_EVENTS, INSERT_JOBS, INSERT_KINDS, INSERT_RECEIPTS, checksum_at, create, insert, open_for_writing
from .store import IndexRow
from .witness import NAME, NOTHING, Mark, Witness

_BATCH = 5000


class Rebuilt(msgspec.Struct, kw_only=True, rename="camel"):
    """What was done. kept_aside: the folder with the old files, when the log was cut."""

    events: int
    jobs: int
    records_removed: int
    kept_aside: str | None = None


def rebuild(root: Path, cut_after: int | None = None, progress: Progress = silent) -> Rebuilt:
    """Index, receipts and records from the log. Raises Refusal: rootBusy while the store is in use; storeDamaged.

    cut_after: keep the log up to this position only, and take its end for the truth from now on. Without it, a log that is
    not whole up to what was witnessed is refused.
    """
    path = store_path(root)
    opened(root).close()
    try:
        lock = Witness(path.parent)
    except Refusal:
        raise Refusal("rootBusy", f"the store in {path.parent} is in use; stop the supervisor of {root}, then rebuild") from None
    except OSError as e:
        raise Refusal("storageUnavailable", f"{path.parent} cannot be locked: {describe(e)}") from None
    try:
        return _rebuild(root, path, lock, cut_after, progress)
    except (*UNREADABLE, OSError) as e:
        raise Refusal("storageUnavailable", f"{path} cannot be rebuilt: {describe(e)}") from None
    finally:
        lock.close()


def _rebuild(root: Path, path: Path, lock: Witness, cut_after: int | None, progress: Progress) -> Rebuilt:
    new = path.with_name(path.name + ".rebuilt")
    for leftover in _with_companions(new):
        leftover.unlink(missing_ok=True)
    aside = _keep_aside(path) if cut_after is not None else None
    _empty_wal(path, damaged=cut_after is not None)
    old = opened(root)
    target = open_for_writing(new)
    try:
        create(target)
        head = _copy(old, target, cut_after, progress)
        _trustworthy(path, target, head, lock.mark, cut_after)
        _receipts(old, target)
        jobs = _index(target, progress)
        target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        target.execute("PRAGMA journal_mode = DELETE")
    finally:
        target.close()
        old.close()
    _replace(path, new)
    lock.reset(head.position, head.checksum)
    removed = _records(root, head.position, progress)
    return Rebuilt(events=head.position, jobs=jobs, records_removed=removed, kept_aside=str(aside) if aside else None)


def _copy(old: sqlite3.Connection, target: sqlite3.Connection, cut_after: int | None, progress: Progress) -> Mark:
    """The log, verified row by row; returns its end. Damage behind `cut_after` does not matter."""
    head, kinds = NOTHING, set()
    (of,) = old.execute("SELECT coalesce(max(position), 0) FROM events").fetchone() if cut_after is None else (cut_after,)
    rows: list[Row] = []
    try:
        for row in whole_rows(old, cut_after):
            stored(row)
            rows.append(row)
            kinds.add((row.type, row.schema))
            head = Mark(row.position, row.checksum)
            if len(rows) == _BATCH:
                _write(target, rows)
                rows = []
            if row.position % EVERY == 0:
                progress("events", row.position, of)
    except Broken as e:
        whole = e.position - 1
        raise Refusal(
            "storeDamaged", f"the log is damaged at {e}; it is whole up to position {whole}, which '--cut-after {whole}' keeps"
        ) from None
    _write(target, rows)
    insert(target, INSERT_KINDS, sorted(kinds))
    return head


def _write(target: sqlite3.Connection, rows: list[Row]) -> None:
    target.execute("BEGIN IMMEDIATE")
    insert(target, INSERT_EVENTS, rows)
    target.execute("COMMIT")


def _trustworthy(path: Path, target: sqlite3.Connection, head: Mark, mark: Mark | None, cut_after: int | None) -> None:
    if cut_after is not None:
        if head.position != cut_after:
            raise Refusal("badRequest", f"the log ends at position {head.position}; it cannot be cut after {cut_after}")
    elif mark is None:
        raise Refusal("storeDamaged", f"the witness is missing or unreadable; the log ends at position {head.position}. {repair(path)}")
    elif head.position < mark.position:
        raise Refusal("storeDamaged", f"the log ends at position {head.position}, but {mark.position} was durable. {repair(path)}")
    elif mark != NOTHING and checksum_at(target, mark.position) != mark.checksum:
        raise Refusal("storeDamaged", f"position {mark.position} of the log is not what was witnessed. {repair(path)}")


def _receipts(old: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Those in the log of its last day, and of the old ones (a request may have led to a run that was there) what can be read."""
    (newest,) = target.execute("SELECT coalesce(max(at), 0) FROM events").fetchone()
    rows: list[tuple[str, str, str, int, float]] = []
    with contextlib.suppress(*UNREADABLE):
        known = {s for (s,) in target.execute("SELECT DISTINCT stream FROM events WHERE stream LIKE 'job/%'")}
        rows += (r for r in old.execute("SELECT uid, req_id, jid, serial, at FROM receipts").fetchall() if f"job/{r[2]}" in known)
    requests = target.execute(
        "SELECT position, stream, version, type, schema, at, body, checksum FROM events"
        " WHERE at >= ? AND type IN ('RunRequested', 'StopRequested') ORDER BY position", (newest - KEPT_SECS,),
    )
    for raw in requests.fetchall():
        event, jid = stored(Row(*raw)).event, raw[1].removeprefix("job/")
        if isinstance(event, RunRequested):
            rows.append((event.spec.uid, event.req_id, jid, event.serial, event.at))
        elif isinstance(event, StopRequested) and event.req_id is not None:
            rows.append((event.by, event.req_id, jid, event.serial, event.at))
    target.execute("BEGIN IMMEDIATE")
    insert(target, INSERT_RECEIPTS, rows)
    target.execute("COMMIT")


def _index(target: sqlite3.Connection, progress: Progress) -> int:
    count = 0
    rows: list[IndexRow] = []
    target.execute("BEGIN IMMEDIATE")
    for job, last in folded(target, 2**62):
        rows.append(msgspec.structs.replace(index_row(job), position=last.position))
        count += 1
        if len(rows) == _BATCH:
            insert(target, INSERT_JOBS, [msgspec.structs.astuple(r) for r in rows])
            progress("jobs", count, count)
            rows = []
    insert(target, INSERT_JOBS, [msgspec.structs.astuple(r) for r in rows])
    target.execute("COMMIT")
    return count


# ---- taking the place of the old file


def _with_companions(path: Path) -> list[Path]:
    return [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))]


def _keep_aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"before-cut-{number}")).exists():
        number += 1
    aside.mkdir(mode=0o700)
    for source in [*_with_companions(path), path.with_name(NAME)]:
        if source.exists():
            shutil.copyfile(source, aside / source.name)
            (aside / source.name).chmod(0o600)
            _sync(aside / source.name)
    _sync(aside)
    _sync(path.parent)
    return aside


def _empty_wal(path: Path, *, damaged: bool) -> None:
    """All of the old log in one file: between the two steps of `_replace` nothing may be in the WAL alone."""
    try:
        connection = open_for_writing(path)
        try:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.close()
    except UNREADABLE:
        if not damaged:
            raise
        return  # what it looked like is kept aside
    if busy:
        raise Refusal("rootBusy", f"{path} is being read by another process; try again when that is done")


def _replace(path: Path, new: Path) -> None:
    """The old WAL must not be taken for the new file's: it goes first. What it held is in the new file, or was cut off."""
    _sync(new)
    for companion in _with_companions(path)[1:]:
        companion.unlink(missing_ok=True)
    os.replace(new, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# ---- records


def _records(root: Path, head: int, progress: Progress) -> int:
    """Write every record, remove those of jobs that are not in the log, and say in the marker that all are there."""
    folder = root / RECORDS
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    clean(folder)
    strangers = set(_jids(folder))
    written: list[str] = []
    connection = opened(root)
    try:
        for count, (job, last) in enumerate(folded(connection, 2**62), 1):
            write_atomically(str(record_path(folder, job.jid)), record_bytes(job, last.position, last.event.at))
            strangers.discard(job.jid)
            written.append(job.jid)
            if count % EVERY == 0:
                progress("records", count, count)
    finally:
        connection.close()
    for jid in strangers:
        forget(folder, jid)
    sync(folder, written)
    write_marker(folder, head)
    return len(strangers)


def _jids(folder: Path) -> Iterator[str]:
    """Of the files that are records by their name; others are not ours to touch."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(Refusal):
                if entry.name.endswith(".json"):
                    yield parse("computeJid", entry.name.removesuffix(".json"))
