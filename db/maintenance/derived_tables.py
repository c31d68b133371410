"""Rebuilds everything that is derived from a log: kinds, receipts, names, usage and job index in a
new file, and the records beside it.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ...protocol.errors import Refusal
from ...protocol.ids import parse
from ...runtime.filesystems import write_atomically
from ..events.events import JobFolded, RunRequested, StopRequested
from ..events.usage_row import UsageRow
from ..records.job_record import record_bytes
from ..records.record_files import FOLDER as RECORDS
from ..records.record_files import clean, forget, record_path, sync, write_marker
from ..sql.name_table import write_names
from ..sql.receipt_retention import KEPT_SECS
from ..sql.statements import INSERT_EVENTS, INSERT_JOBS, INSERT_RECEIPTS, insert
from ..sql.usage_table import insert_usage, write_usage
from ..store.checksum_chain import Row, stored
from ..store.contract import IndexRow
from ..store.disk_errors import UNREADABLE
from ..store.job_index import index_row
from .log_source import opened
from .verification import EVERY, Progress, folded

BATCH = 5000


def write_rows(target: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Insert rows of the log unchanged, in batches."""
    waiting: list[Row] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == BATCH:
            _write(target, waiting)
            waiting = []
    _write(target, waiting)


def _write(target: sqlite3.Connection, rows: list[Row]) -> None:
    target.execute("BEGIN IMMEDIATE")
    insert(target, INSERT_EVENTS, rows)
    target.execute("COMMIT")


def receipts(old: sqlite3.Connection | None, target: sqlite3.Connection) -> None:
    """Fill the table `receipts`: from the last day of the log, and from all readable old receipts
    of jobs in the log.
    """
    (newest,) = target.execute("SELECT coalesce(max(at), 0) FROM events").fetchone()
    rows: list[tuple[str, str, str, int, float]] = []
    if old is not None:
        with contextlib.suppress(*UNREADABLE):
            known = {
                s
                for (s,) in target.execute(
                    "SELECT DISTINCT stream FROM events WHERE stream LIKE 'job/%'"
                )
            }
            rows += (
                r
                for r in old.execute("SELECT uid, req_id, jid, serial, at FROM receipts").fetchall()
                if f"job/{r[2]}" in known
            )
    requests = target.execute(
        "SELECT position, stream, version, type, schema, at, body, checksum FROM events"
        " WHERE at >= ? AND type IN ('RunRequested', 'StopRequested', 'JobFolded') ORDER BY position",
        (newest - KEPT_SECS,),
    )
    for raw in requests.fetchall():
        event, jid = stored(Row(*raw)).event, raw[1].removeprefix("job/")
        if isinstance(event, RunRequested):
            rows.append((event.spec.uid, event.req_id, jid, event.serial, event.at))
        elif isinstance(event, StopRequested) and event.req_id is not None:
            rows.append((event.by, event.req_id, jid, event.serial, event.at))
        elif isinstance(event, JobFolded) and (run := event.job.run) is not None:
            rows.append((run.spec.uid, run.req_id, jid, run.serial, run.queued_at))
    target.execute("BEGIN IMMEDIATE")
    insert(target, INSERT_RECEIPTS, rows)
    target.execute("COMMIT")


def names(target: sqlite3.Connection, progress: Progress) -> None:
    """Fill the table `names`."""
    target.execute("BEGIN IMMEDIATE")
    write_names(target, progress)
    target.execute("COMMIT")


def usage(target: sqlite3.Connection, progress: Progress) -> None:
    """Fill the table `usage`."""
    target.execute("BEGIN IMMEDIATE")
    write_usage(target, progress)
    target.execute("COMMIT")


def usage_rows(target: sqlite3.Connection, rows: Iterable[UsageRow]) -> None:
    """Fill the table `usage` with these rows, within the caller's transaction."""
    insert_usage(target, rows)


def index(target: sqlite3.Connection, progress: Progress) -> int:
    """Fill the table `jobs`; return the number of jobs."""
    count = 0
    rows: list[IndexRow] = []
    target.execute("BEGIN IMMEDIATE")
    for job, last in folded(target, 2**62):
        rows.append(msgspec.structs.replace(index_row(job), position=last.position))
        count += 1
        if len(rows) == BATCH:
            insert(target, INSERT_JOBS, [msgspec.structs.astuple(r) for r in rows])
            progress("jobs", count, count)
            rows = []
    insert(target, INSERT_JOBS, [msgspec.structs.astuple(r) for r in rows])
    target.execute("COMMIT")
    return count


def records(root: Path, head: int, progress: Progress) -> int:
    """Write every outdated record, remove records of unknown jobs, and set the marker. Returns the
    number of removed records.
    """
    folder = root / RECORDS
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    clean(folder)
    strangers = set(_jids(folder))
    written: list[str] = []
    connection = opened(root)
    try:
        for count, (job, last) in enumerate(folded(connection, 2**62), 1):
            path, right = (
                record_path(folder, job.jid),
                record_bytes(job, last.position, last.event.at),
            )
            if job.jid not in strangers or not _holds(path, right):
                write_atomically(str(path), right)
                written.append(job.jid)
            strangers.discard(job.jid)
            if count % EVERY == 0:
                progress("records", count, count)
    finally:
        connection.close()
    for jid in strangers:
        forget(folder, jid)
    sync(folder, written)
    write_marker(folder, head)
    return len(strangers)


def _holds(path: Path, right: bytes) -> bool:
    try:
        return path.read_bytes() == right
    except OSError:
        return False


def _jids(folder: Path) -> Iterator[str]:
    """Yield the jids of all record files, by their names. Other files are ignored."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(Refusal):
                if entry.name.endswith(".json"):
                    yield parse("computeJid", entry.name.removesuffix(".json"))
