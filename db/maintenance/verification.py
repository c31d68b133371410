"""Reading a store without a supervisor: verify all of it, tell a story, export it. Nothing here
writes; `rebuilding` does.

All of it works on a store in use as well, on what is durable at that moment, and says so. Every
function takes the root.
"""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ...protocol.errors import Refusal
from ...protocol.ids import parse
from ..events.events import CHECKPOINTS, JobFolded
from ..events.job_fold import evolve
from ..events.state import Job
from ..records.job_record import record_bytes
from ..records.record_files import FOLDER as RECORDS
from ..records.record_files import read_marker, record_path
from ..sqlite import head_file
from ..sqlite.head_file import DurablePosition
from ..sqlite.name_table import differences
from ..sqlite.opening import repair, successor
from ..sqlite.reader import Reader
from ..sqlite.reader import index_row as read_index_row
from ..sqlite.schema import (
    FILE,
    JOB_COLUMNS,
    ROW_COLUMNS,
    known_layout,
    open_for_reading,
    rows_after,
)
from ..store.checksum_chain import START, Broken, Row, follow, stored
from ..store.contract import IndexRow, Stored
from ..store.disk_errors import UNREADABLE, not_opened
from ..store.job_index import index_row

#: Called with (what is being done, how much of it, how much there is) now and then.
Progress = Callable[[str, int, int], None]
EVERY = 5000
#: Problems listed; more are counted.
LISTED = 100


class Problem(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """where: `log`, `witness`, `stream`, `index`, `record` or `file`. position: in the log, where
    it has one.
    """

    where: str
    what: str
    position: int | None = None


class _Position(msgspec.Struct):
    """What is needed of a record to see how old it is."""

    position: int


class Report(msgspec.Struct, kw_only=True, rename="camel"):
    """What `check` found. whole_up_to: position up to which the log is as it was written (what `db
    repair` keeps).
    """

    path: str
    in_use: bool
    events: int = 0
    jobs: int = 0
    witness: int | None = None
    whole_up_to: int = 0
    #: records that are behind the log, as after a crash; the next start writes them
    records_behind: int = 0
    problems: list[Problem] = []
    more_problems: int = 0

    @property
    def ok(self) -> bool:
        return not self.problems

    def add(self, where: str, what: str, position: int | None = None) -> None:
        if len(self.problems) < LISTED:
            self.problems.append(Problem(where=where, what=what, position=position))
        else:
            self.more_problems += 1


def store_path(root: Path) -> Path:
    return root / "db" / FILE


def silent(what: str, done: int, of: int) -> None:
    """The progress callback of somebody who does not look."""


def check(root: Path, progress: Progress = silent) -> Report:
    """Verify the chain, the witness, versions, index and records. Raises Refusal where there is no
    store, or it may not be read.
    """
    return check_file(store_path(root), root / RECORDS, progress)


def check_file(path: Path, records: Path | None, progress: Progress = silent) -> Report:
    """The same of a store wherever it lies: a backup has no records."""
    # Before the log is read: a store in use goes on, and the log must then hold at least this.
    report = Report(path=str(path), in_use=head_file.held(path.parent))
    mark = head_file.look(path.parent)
    report.witness = mark.position if mark else None
    try:
        connection = open_file(path)
    except Refusal as e:
        if e.code != "storeDamaged":
            raise
        report.add("file", e.sentence)
        return report
    try:
        connection.execute("BEGIN")
        _check_log(connection, report, mark, progress)
        _check_streams(connection, report, records, progress)
        if known_layout(connection, path) > 1:
            for what, position in differences(connection, report.whole_up_to):
                report.add("index", what, position)
        for (text,) in connection.execute("PRAGMA integrity_check(20)").fetchall():
            if text != "ok":
                report.add("file", str(text))
    except UNREADABLE as e:
        report.add("file", f"{e}")
    finally:
        connection.close()
    return report


def opened(root: Path) -> sqlite3.Connection:
    """The store's file for reading. Raises Refusal."""
    return open_file(store_path(root))


def standing(connection: sqlite3.Connection, mark: DurablePosition) -> DurablePosition:
    """What the log must hold: what was witnessed; or all of it, where it took the place of the log
    that was.
    """
    return successor(connection, mark) or mark


def open_file(path: Path) -> sqlite3.Connection:
    """A store's file for reading. Raises Refusal."""
    if not path.exists():
        mark = head_file.look(path.parent)
        if mark is not None and mark != head_file.NOTHING:
            raise Refusal(
                "storeDamaged",
                f"{path} is missing, but position {mark.position} was durable. {repair(path)}",
            )
        raise Refusal("notFound", f"there is no event store at {path}")
    try:
        connection = open_for_reading(path)
    except UNREADABLE as e:
        raise not_opened(e, str(path), lambda: repair(path)) from None
    try:
        if not known_layout(connection, path):
            raise Refusal("storeDamaged", f"{path} holds no event store. {repair(path)}")
    except UNREADABLE as e:
        connection.close()
        raise not_opened(e, str(path), lambda: repair(path)) from None
    except BaseException:
        connection.close()
        raise
    return connection


def extent(connection: sqlite3.Connection) -> tuple[int, int]:
    """How many events there seem to be, and the last position; 0 where that cannot be read: what is
    whole, reading the rows tells.
    """
    numbers = []
    for query in ("SELECT count(*) FROM events", "SELECT coalesce(max(position), 0) FROM events"):
        try:
            numbers.append(int(connection.execute(query).fetchone()[0]))
        except UNREADABLE:
            numbers.append(0)
    return numbers[0], numbers[1]


def whole_rows(connection: sqlite3.Connection) -> Iterator[Row]:
    """The log from its beginning as long as it is whole; raises Broken where it is not."""
    position = 0
    try:
        for row in follow(rows_after(connection, 0), START, 0):
            position = row.position
            yield row
    except UNREADABLE as e:
        raise Broken(position + 1, f"it cannot be read: {e}") from None


def _check_log(
    connection: sqlite3.Connection, report: Report, mark: DurablePosition | None, progress: Progress
) -> None:
    of, end = extent(connection)
    kinds = set()
    if mark is None:
        report.add("witness", "the file is missing or unreadable")
    else:
        mark = standing(connection, mark)
    seen = mark is not None and mark.position == 0
    try:
        for row in whole_rows(connection):
            report.events, report.whole_up_to = report.events + 1, row.position
            kinds.add((row.type, row.schema))
            if mark is not None and row.position == mark.position:
                seen = True
                if row.checksum != mark.checksum:
                    report.add(
                        "witness", "this row is not the one that was witnessed", row.position
                    )
            _check_event(row, report)
            if report.events % EVERY == 0:
                progress("events", report.events, of)
    except Broken as e:
        report.add("log", e.what, e.position)
    if mark is not None and not seen and report.whole_up_to >= end:
        other = end >= mark.position
        what = (
            "is not in this log: it is another one than was witnessed"
            if other
            else f"was durable, but the log ends at {end}"
        )
        report.add("witness", f"position {mark.position} {what}", mark.position)
    missing = kinds - set(connection.execute("SELECT type, schema FROM kinds").fetchall())
    for type_, schema in sorted(missing):
        report.add("index", f"the list of kinds of events lacks {type_} {schema}")
    progress("events", report.events, of)


def _check_event(row: Row, report: Report) -> None:
    try:
        if stored(row).event.at != row.at:
            report.add("log", "the time beside the event is not the one in it", row.position)
    except Refusal as e:
        report.add("log", e.sentence, row.position)


def _check_streams(
    connection: sqlite3.Connection, report: Report, records: Path | None, progress: Progress
) -> None:
    """Versions are continuous, and index and records are what the fold says."""
    (of,) = connection.execute("SELECT count(*) FROM jobs").fetchone()
    indexed = connection.execute("SELECT count(*) FROM jobs WHERE busy").fetchone()[0]
    busy = 0
    for job, last in folded(connection, report.whole_up_to, report):
        report.jobs += 1
        busy += job.busy
        right = msgspec.structs.replace(index_row(job), position=last.position)
        if _index_row_of(connection, job.jid) != right:
            report.add("index", f"the row of {job.jid} is not what its events say", last.position)
        if records is not None:
            _check_record(records, job, last, report)
        if report.jobs % EVERY == 0:
            progress("jobs", report.jobs, of)
    if report.jobs != of:
        report.add("index", f"{of} jobs are listed, {report.jobs} are in the log")
    if busy != indexed:
        report.add("index", f"{indexed} jobs are listed as busy, {busy} are")
    progress("jobs", report.jobs, of)


def _index_row_of(connection: sqlite3.Connection, jid: str) -> IndexRow | None:
    rows = connection.execute(f"SELECT {JOB_COLUMNS} FROM jobs WHERE jid = ?", (jid,)).fetchall()
    try:
        return read_index_row(rows[0]) if rows else None
    except msgspec.ValidationError:
        return None  # not what it should be, whatever it is


def folded(
    connection: sqlite3.Connection, up_to: int, report: Report | None = None
) -> Iterator[tuple[Job, Stored]]:
    """Every job in the log up to a position, with its last event; one at a time, since not all fit
    in memory.
    """
    job: Job | None = None
    last: Stored | None = None
    stream, version = "", 0
    rows = connection.execute(
        f"SELECT {ROW_COLUMNS} FROM events WHERE position <= ? ORDER BY events.stream, events.version",
        (up_to,),
    )
    for raw in rows:
        row = Row(
            raw[0],
            raw[1].decode(),
            raw[2],
            raw[3].decode(),
            raw[4],
            raw[5],
            raw[6].decode(),
            raw[7],
        )
        if row.stream != stream:
            if job is not None and last is not None:
                yield job, last
            stream, version, last = row.stream, 0, None
            job = _new_job(stream, row, report)
        # a checkpoint stands for all before it, and is the first there is
        version = row.version if version == 0 and row.type in CHECKPOINTS else version + 1
        if row.version != version and report is not None:
            report.add(
                "stream",
                f"{stream} has version {row.version} where {version} should be",
                row.position,
            )
            version = row.version
        try:
            last = stored(row)
            job = evolve(job, last.event) if job is not None else None  # type: ignore[arg-type]
            if (
                isinstance(last.event, JobFolded)
                and report is not None
                and _misplaced(last.event.job, row)
            ):
                what = f"version {last.event.job.version} of {last.event.job.jid}"
                report.add(
                    "stream",
                    f"the checkpoint of {stream} version {row.version} holds {what}",
                    row.position,
                )
        except Refusal:
            if report is None:
                raise
            # it was reported when the log was read; what comes after it cannot be folded
            job = None
    if job is not None and last is not None:
        yield job, last


def _misplaced(job: Job, row: Row) -> bool:
    return (job.version, "job/" + job.jid) != (row.version, row.stream)


def _new_job(stream: str, row: Row, report: Report | None) -> Job | None:
    """The job of this stream, None where it is another's. The name comes from an index of the file,
    which may be damaged.
    """
    if not stream.startswith("job/"):
        return None
    try:
        return Job(jid=parse("computeJid", stream.removeprefix("job/")))
    except Refusal as e:
        if report is None:
            raise
        report.add("stream", e.sentence, row.position)
        return None


def _check_record(folder: Path, job: Job, last: Stored, report: Report) -> None:
    right = record_bytes(job, last.position, last.event.at)
    try:
        found = record_path(folder, job.jid).read_bytes()
    except FileNotFoundError:
        report.records_behind += 1
        return
    if found == right:
        return
    if not report.in_use and read_marker(folder) < last.position:
        # the next start makes it again, whatever it says now
        report.records_behind += 1
        return
    try:
        position = msgspec.json.decode(found, type=_Position).position
    except msgspec.DecodeError:
        report.add("record", f"{job.jid}.json is not a record")
        return
    if position < last.position:
        report.records_behind += 1
    elif not report.in_use or position == last.position:
        report.add(
            "record",
            f"{job.jid}.json is not what its events say (position {position})",
            last.position,
        )


def events_of(root: Path, stream: str) -> list[Stored]:
    """The events of one stream, oldest first, for `db story`. Raises Refusal."""
    opened(root).close()
    reader = Reader(store_path(root))
    try:
        return reader.stream(stream, 0, 2**62)
    finally:
        reader.close()


def export(root: Path, after: int = 0) -> Iterator[str]:
    """Every event with position > `after` as a line of JSON (no line end). Raises Refusal at the
    first row that is not whole.
    """
    connection = opened(root)
    try:
        connection.execute("BEGIN")
        for row in whole_rows(connection):
            if row.position > after:
                yield _line(row)
    except Broken as e:
        raise Refusal(
            "storeDamaged",
            f"{store_path(root)}: the log is damaged at {e}. {repair(store_path(root))}",
        ) from None
    finally:
        connection.close()


def _line(row: Row) -> str:
    line: dict[str, Any] = {
        "position": row.position,
        "stream": row.stream,
        "version": row.version,
        "type": row.type,
        "schema": row.schema,
        "checksum": row.checksum.hex(),
        "event": msgspec.Raw(row.body.encode()),
    }
    return msgspec.json.encode(line).decode()
