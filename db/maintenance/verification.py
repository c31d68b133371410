"""Read-only access to a store without a supervisor: verify it, read the events of a stream, export
it.

All functions also work on a store in use, on its durable part at that moment. Nothing here writes;
`rebuild` does.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ...protocol.errors import Refusal
from ...protocol.ids import parse
from ...protocol.jobs.status import PURGED
from ..events.events import CHECKPOINTS, JobFolded
from ..events.job_fold import evolve
from ..events.state import Job
from ..records.job_record import record_bytes
from ..records.record_files import FOLDER as RECORDS
from ..records.record_files import read_marker, record_path
from ..sql import name_table, usage_table
from ..sql.log_end import successor
from ..sql.reader import index_row as read_index_row
from ..sql.statements import JOB_COLUMNS, ROW_COLUMNS, SqlConnection, rows_after
from ..store import head_file
from ..store.checksum_chain import START, Broken, Row, follow, stored
from ..store.contract import IndexRow, Stored
from ..store.disk_errors import UNREADABLE
from ..store.head_file import DurablePosition
from ..store.job_index import index_row
from .log_source import FileSource, LogSource, log_source

#: Called at intervals with (activity, amount done, total amount).
Progress = Callable[[str, int, int], None]
Errors = tuple[type[Exception], ...]
EVERY = 5000
#: Problems listed; others are only counted.
LISTED = 100


class Problem(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One fault of a store. where: `log`, `witness` (the head file), `stream`, `index`, `record` or
    `file`. position: in the log, if known.
    """

    where: str
    what: str
    position: int | None = None


class _Position(msgspec.Struct):
    """The position field of a record, to tell its age."""

    position: int


class Report(msgspec.Struct, kw_only=True, rename="camel"):
    """Result of `check`. whole_up_to: the log is intact up to this position (`db repair` keeps this
    part). witness: durable head by the head file.
    """

    path: str
    in_use: bool
    events: int = 0
    jobs: int = 0
    witness: int | None = None
    whole_up_to: int = 0
    #: records older than the log, as after a crash; the next start writes them
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


def no_progress(what: str, done: int, of: int) -> None:
    """Ignore progress."""


def check(root: Path, progress: Progress = no_progress) -> Report:
    """Verify checksums, head file, versions, index and records. Raises Refusal if there is no
    readable store.
    """
    return _check(log_source(root), root / RECORDS, progress)


def check_file(path: Path, records: Path | None, progress: Progress = no_progress) -> Report:
    """Verify the store at `path`. records: folder of the records; None for a backup."""
    return _check(FileSource(path), records, progress)


def _check(source: LogSource, records: Path | None, progress: Progress) -> Report:
    # read before the log: a store in use grows, and the log must contain at least this position
    report = Report(path=source.place.name, in_use=head_file.is_locked(source.folder))
    mark = head_file.read_head(source.folder)
    report.witness = mark.position if mark else None
    try:
        with source.snapshot() as connection:
            try:
                _check_tables(source, connection, report, mark, records, progress)
            except source.place.errors as e:
                report.add("file", f"{e}")
    except Refusal as e:
        if e.code != "storeDamaged":
            raise
        report.add("file", e.sentence)
    return report


def _check_tables(
    source: LogSource,
    connection: SqlConnection,
    report: Report,
    mark: DurablePosition | None,
    records: Path | None,
    progress: Progress,
) -> None:
    errors, layout = source.place.errors, source.layout(connection)
    end = _check_log(connection, report, mark, errors, progress)
    usage = usage_table.LogUsage(connection, report.whole_up_to)
    _check_streams(connection, report, records, usage, progress)
    if layout > 1:
        for what, position in name_table.differences(connection, report.whole_up_to):
            report.add("index", what, position)
    if layout > 2 and report.whole_up_to == extent(connection, errors)[1]:
        for what, position in usage_table.differences(connection, usage.rows.values()):
            report.add("index", what, position)
    for text in source.faults(connection, end):
        report.add("file", text)


def durable_head(
    connection: SqlConnection, mark: DurablePosition, errors: Errors = UNREADABLE
) -> DurablePosition:
    """Return the position that the log must reach: `mark`, or its own end if it replaced the log of
    `mark`.
    """
    return successor(connection, mark, errors) or mark


def extent(connection: SqlConnection, errors: Errors = UNREADABLE) -> tuple[int, int]:
    """Return the number of events and the last position, as the database reports them without
    verification; 0 if unreadable.
    """
    numbers = []
    for query in ("SELECT count(*) FROM events", "SELECT coalesce(max(position), 0) FROM events"):
        try:
            numbers.append(int(connection.execute(query).fetchone()[0]))
        except errors:
            numbers.append(0)
    return numbers[0], numbers[1]


def whole_rows(connection: SqlConnection, errors: Errors = UNREADABLE) -> Iterator[Row]:
    """Yield the rows of the log from its beginning. Raises Broken at the first damaged row."""
    position = 0
    try:
        for row in follow(rows_after(connection, 0), START, 0):
            position = row.position
            yield row
    except errors as e:
        raise Broken(position + 1, f"the row cannot be read: {e}") from None


def _check_log(
    connection: SqlConnection,
    report: Report,
    mark: DurablePosition | None,
    errors: Errors,
    progress: Progress,
) -> DurablePosition:
    """Verify the rows; return the end of the intact ones."""
    of, end = extent(connection, errors)
    last, kinds = head_file.NOTHING, set()
    if mark is None:
        report.add("witness", "the head file is missing or unreadable")
    else:
        mark = durable_head(connection, mark, errors)
    seen = mark is not None and mark.position == 0
    try:
        for row in whole_rows(connection, errors):
            last = DurablePosition(row.position, row.checksum)
            report.events, report.whole_up_to = report.events + 1, row.position
            kinds.add((row.type, row.schema))
            if mark is not None and row.position == mark.position:
                seen = True
                if row.checksum != mark.checksum:
                    report.add("witness", "this row differs from the head file", row.position)
            _check_event(row, report)
            if report.events % EVERY == 0:
                progress("events", report.events, of)
    except Broken as e:
        report.add("log", e.what, e.position)
    if mark is not None and not seen and report.whole_up_to >= end:
        other = end >= mark.position
        what = (
            "in the log differs from the head file"
            if other
            else f"was durable, but the log ends at {end}"
        )
        report.add("witness", f"position {mark.position} {what}", mark.position)
    missing = kinds - set(connection.execute("SELECT type, schema FROM kinds").fetchall())
    for type_, schema in sorted(missing):
        report.add("index", f"the table of event kinds lacks {type_} {schema}")
    progress("events", report.events, of)
    return last


def _check_event(row: Row, report: Report) -> None:
    try:
        if stored(row).event.at != row.at:
            report.add("log", "the time column differs from the time in the event", row.position)
    except Refusal as e:
        report.add("log", e.sentence, row.position)


def _check_streams(
    connection: SqlConnection,
    report: Report,
    records: Path | None,
    usage: usage_table.LogUsage,
    progress: Progress,
) -> None:
    """Check that versions are continuous, and that index and records match the fold. usage: gets all
    events of jobs.
    """
    (of,) = connection.execute("SELECT count(*) FROM jobs").fetchone()
    indexed = connection.execute("SELECT count(*) FROM jobs WHERE busy <> 0").fetchone()[0]
    busy = 0
    for job, last in folded(connection, report.whole_up_to, report, usage):
        report.jobs += 1
        busy += job.busy
        right = msgspec.structs.replace(index_row(job), position=last.position)
        if _index_row_of(connection, job.jid) != right:
            report.add("index", f"the row of {job.jid} differs from its events", last.position)
        if records is not None:
            _check_record(records, job, last, report)
        if report.jobs % EVERY == 0:
            progress("jobs", report.jobs, of)
    if report.jobs != of:
        report.add("index", f"the index has {of} jobs, the log has {report.jobs}")
    if busy != indexed:
        report.add("index", f"the index has {indexed} busy jobs, the log has {busy}")
    progress("jobs", report.jobs, of)


def _index_row_of(connection: SqlConnection, jid: str) -> IndexRow | None:
    rows = connection.execute(f"SELECT {JOB_COLUMNS} FROM jobs WHERE jid = ?", (jid,)).fetchall()
    try:
        return read_index_row(rows[0]) if rows else None
    except msgspec.ValidationError:
        return None  # damaged


def folded(
    connection: SqlConnection,
    up_to: int,
    report: Report | None = None,
    usage: usage_table.LogUsage | None = None,
) -> Iterator[tuple[Job, Stored]]:
    """Yield every job in the log up to a position with its last event. Only one job is in memory at
    a time. usage: gets all events of jobs.
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
        # a checkpoint replaces all earlier events, so it comes first
        version = row.version if version == 0 and row.type in CHECKPOINTS else version + 1
        if row.version != version and report is not None:
            report.add(
                "stream",
                f"{stream} has version {row.version} instead of {version}",
                row.position,
            )
            version = row.version
        try:
            last = stored(row)
            if usage is not None and job is not None:
                usage.add(job, row.position, last.event)
            job = evolve(job, last.event) if job is not None else None  # type: ignore[arg-type]
            if (
                isinstance(last.event, JobFolded)
                and report is not None
                and _misplaced(last.event.job, row)
            ):
                what = f"version {last.event.job.version} of {last.event.job.jid}"
                report.add(
                    "stream",
                    f"the checkpoint of {stream} version {row.version} contains {what}",
                    row.position,
                )
        except Refusal:
            if report is None:
                raise
            # already reported for the log; later events cannot be folded
            job = None
    if job is not None and last is not None:
        yield job, last


def _misplaced(job: Job, row: Row) -> bool:
    return (job.version, "job/" + job.jid) != (row.version, row.stream)


def _new_job(stream: str, row: Row, report: Report | None) -> Job | None:
    """Return an empty job for this stream; None for another kind of stream. The name comes from an
    index of the file, which may be damaged.
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
        # retention removes records of purged runs
        report.records_behind += job.status != PURGED
        return
    if found == right:
        return
    if not report.in_use and read_marker(folder) < last.position:
        # the next start rewrites it in any case
        report.records_behind += 1
        return
    try:
        position = msgspec.json.decode(found, type=_Position).position
    except msgspec.DecodeError:
        report.add("record", f"{job.jid}.json is not a valid record")
        return
    if position < last.position:
        report.records_behind += 1
    elif not report.in_use or position == last.position:
        report.add(
            "record",
            f"{job.jid}.json differs from its events (position {position})",
            last.position,
        )


def events_of(root: Path, stream: str) -> list[Stored]:
    """Return the events of one stream, oldest first. Raises Refusal."""
    with log_source(root).reader() as reader:
        return reader.stream(stream, 0, 2**62)


def export(root: Path, after: int = 0) -> Iterator[str]:
    """Yield every event with position > `after` as a line of JSON without line end. Raises Refusal
    at the first damaged row.
    """
    source = log_source(root)
    try:
        with source.snapshot() as connection:
            for row in whole_rows(connection, source.place.errors):
                if row.position > after:
                    yield _line(row)
    except Broken as e:
        raise source.place.damaged(f"the log is damaged at {e}") from None


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
