"""Reads of an SQL store: point reads by index, with each row verified against the previous row
of the log.

Rows after `head` are hidden: a reader sees what a restart would find. A row that fails verification
raises Refusal and is never skipped.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from ...protocol.errors import Refusal
from ..events.events import CHECKPOINTS
from ..events.usage_row import KEY, UsageRow
from ..store.checksum_chain import START, Broken, follow, stored, verified
from ..store.contract import IndexRow, JobCount, Name, Receipt, RowFilter, Stored
from .row_filter import conditions
from .statements import (
    ALL,
    JOB_COLUMNS,
    ROW_COLUMNS,
    USAGE_COLUMNS,
    SqlConnection,
    last_before,
    rows_after,
)
from .usage_table import usage_row

_PREVIOUS = "(SELECT p.checksum FROM events AS p WHERE p.position < e.position ORDER BY p.position DESC LIMIT 1)"
_STREAM = f"SELECT {ROW_COLUMNS}, {_PREVIOUS} FROM events AS e WHERE stream = ? AND version > ? AND position <= ? ORDER BY version LIMIT ?"
_STREAMS = f"SELECT {ROW_COLUMNS}, {_PREVIOUS} FROM events AS e WHERE stream IN (%s) AND position <= ? ORDER BY stream, version"
#: Streams of one query.
STREAMS_AT_ONCE = 200
_LISTED = "SELECT j.jid, j.position, e.version FROM jobs AS j LEFT JOIN events AS e ON e.position = j.position WHERE j.jid IN (%s)"
#: Jumps from stream to stream in the index, so the cost does not depend on the number of events.
_AGENTS = (
    "WITH RECURSIVE s(stream) AS (SELECT min(stream) FROM events WHERE stream > 'agent/' AND stream < 'agent0' UNION ALL"
    " SELECT (SELECT min(e.stream) FROM events AS e WHERE e.stream > s.stream AND e.stream < 'agent0') FROM s WHERE s.stream IS NOT NULL)"
    " SELECT stream FROM s WHERE stream IS NOT NULL"
)

T = TypeVar("T")
#: Upper end of a prefix range: every string with the prefix sorts below prefix + _LAST.
_LAST = "\U0010ffff"
JOBS_NAMED = (
    "SELECT name, what, stream FROM names WHERE name = ? AND what = ? AND stream >= ? AND stream < ?"
    " ORDER BY stream LIMIT ?"
)
#: Field names in msgspec's encoding, in the order of the columns.
_INDEX_FIELDS = IndexRow.__struct_encode_fields__
_TALLY_FIELDS = JobCount.__struct_encode_fields__
_NAME_FIELDS = Name.__struct_encode_fields__
_RECEIPT_FIELDS = Receipt.__struct_encode_fields__


class SqlReader:
    """A read-only connection, used in the thread that created it. where: names the log in messages.

    repair: the advice for a damaged store. refusal: converts an error of the database.
    """

    def __init__(
        self,
        connection: SqlConnection,
        where: str,
        repair: Callable[[], str],
        errors: tuple[type[Exception], ...],
        refusal: Callable[[Exception], Refusal],
    ) -> None:
        self._connection, self._where, self._repair = connection, where, repair
        self._errors, self._refusal = errors, refusal

    def stream(self, stream: str, after: int, head: int, limit: int | None = None) -> list[Stored]:
        """Return the events of a stream with version > `after`, at most `limit`. Raises Refusal."""
        rows = self._rows(_STREAM, (stream, after, head, ALL if limit is None else limit))
        out = self._events(stream, after, rows)
        if limit is None or len(out) < limit:
            self._no_less({stream: out[-1].version if out else after}, head)
        return out

    def streams(self, streams: Sequence[str], head: int) -> Iterator[list[Stored]]:
        """Yield all events of each stream, as `stream` returns them, with few queries."""
        for begin in range(0, len(streams), STREAMS_AT_ONCE):
            some = streams[begin : begin + STREAMS_AT_ONCE]
            found: dict[str, list[tuple[Any, ...]]] = {s: [] for s in some}
            for raw in self._rows(_STREAMS % _marks(found), (*found, head)):
                stream = bytes(raw[1]).decode(errors="replace")
                if stream not in found:
                    raise self._damaged(Broken(raw[0], f"{stream} is in the index of another one"))
                found[stream].append(raw)
            events = {s: self._events(s, 0, rows) for s, rows in found.items()}
            self._no_less({s: e[-1].version if e else 0 for s, e in events.items()}, head)
            yield from (events[s] for s in some)

    def _events(self, stream: str, after: int, rows: Sequence[tuple[Any, ...]]) -> list[Stored]:
        """Return the verified events of a stream after a version. Raises Refusal."""
        out: list[Stored] = []
        version = after
        for *raw, previous in rows:
            try:
                row = verified(tuple(raw), START if previous is None else previous, raw[0])
                # a checkpoint replaces all earlier events, so it comes first
                right = (
                    row.version > after and not out
                    if row.type in CHECKPOINTS
                    else row.version == version + 1
                )
                if row.stream != stream or not right:
                    raise Broken(
                        row.position,
                        f"version {row.version} of {row.stream} instead of version {version + 1} of {stream}",
                    )
            except Broken as e:
                raise self._damaged(e) from None
            version = row.version
            out.append(stored(row))
        return out

    def version(self, stream: str, head: int) -> int:
        """Return the version of the last event of a stream; 0 without events. Raises Refusal."""
        query = "SELECT coalesce(max(version), 0) FROM events WHERE stream = ? AND position <= ?"
        return int(self._rows(query, (stream, head))[0][0])

    def _no_less(self, versions: dict[str, int], head: int) -> None:
        """Raise Refusal unless the last version in table `jobs` was found in each stream: a damaged index
        hides rows.
        """
        jobs = [s.removeprefix("job/") for s in versions if s.startswith("job/")]
        if not jobs:
            return
        for jid, position, last in self._rows(_LISTED % _marks(jobs), tuple(jobs)):
            stream = f"job/{jid}"
            version = versions[stream]
            listed = isinstance(position, int) and isinstance(last, int)
            if not listed or (position <= head and version < last):
                what = f"{stream} has version {last!r} at position {position!r} by one index, but version {version} by the other"
                raise Refusal("storeDamaged", f"{self._where}: {what}. {self._repair()}")

    def log(self, after: int, limit: int, head: int) -> list[Stored]:
        """Return events with position > `after`, at most `limit`. Raises Refusal."""
        after = max(after, 0)
        if limit <= 0 or head <= after:
            return []
        try:
            start, previous = last_before(self._connection, after)
            out = [
                stored(row)
                for row in follow(rows_after(self._connection, start, head, limit), previous, start)
            ]
        except Broken as e:
            raise self._damaged(e) from None
        except self._errors as e:
            raise self._refusal(e) from None
        if len(out) < limit and (out[-1].position if out else start) != head:
            raise self._damaged(
                Broken((out[-1].position if out else start) + 1, "the row is missing")
            )
        return out

    def busy_jids(self) -> list[str]:
        # Scan all rows without an index: a damaged index could hide a busy job, and the supervisor
        # would never resume it.
        return [
            jid
            for (jid,) in self._rows(
                "SELECT jid FROM jobs NOT INDEXED WHERE busy <> 0 ORDER BY position", ()
            )
        ]

    def jobs(
        self,
        uid: str | None,
        status: str | None,
        active: bool | None,
        before: int | None,
        limit: int,
    ) -> list[IndexRow]:
        """Return index rows, newest change first."""
        where, values = ["position < ?"], [ALL if before is None else before]
        conditions: list[tuple[str, Any]] = [("uid = ?", uid), ("status = ?", status)]
        for text, value in conditions:
            if value is not None:
                where.append(text)
                values.append(value)
        if active is not None:
            where.append(
                "status IN ('pending', 'running')"
                if active
                else "status NOT IN ('pending', 'running')"
            )
        query = f"SELECT {JOB_COLUMNS} FROM jobs WHERE {' AND '.join(where)} ORDER BY position DESC LIMIT ?"
        return [self._right(index_row, r) for r in self._rows(query, (*values, limit))]

    def scan_jobs(
        self, wanted: RowFilter, before: int | None, window: int
    ) -> tuple[list[IndexRow], int | None]:
        """Return the rows of a window that fit, and the position before which the next one begins."""
        where = "position < ?"
        values: list[Any] = [ALL if before is None else before]
        if wanted.uid is not None:
            where, values = f"uid = ? AND {where}", [wanted.uid, *values]
        borders = f"SELECT min(position), count(*) FROM (SELECT position FROM jobs WHERE {where} ORDER BY position DESC LIMIT ?) AS latest"
        [(first, count)] = self._rows(borders, (*values, window))
        if not count:
            return [], None
        more, also = conditions(wanted)
        query = f"SELECT {JOB_COLUMNS} FROM jobs WHERE {' AND '.join([where, 'position >= ?', *more])} ORDER BY position DESC"
        rows = [self._right(index_row, r) for r in self._rows(query, (*values, first, *also))]
        return rows, first if count == window else None

    def find_jobs(self, prefix: str, limit: int) -> list[IndexRow]:
        query = f"SELECT {JOB_COLUMNS} FROM jobs WHERE jid >= ? AND jid < ? ORDER BY jid LIMIT ?"
        return [
            self._right(index_row, r) for r in self._rows(query, (prefix, prefix + _LAST, limit))
        ]

    def tally(self, prefix: str) -> list[JobCount]:
        query = "SELECT status, reason, busy, COUNT(*), MAX(position) FROM jobs WHERE jid >= ? AND jid < ? GROUP BY status, reason, busy"
        return [self._right(_tally, r) for r in self._rows(query, (prefix, prefix + _LAST))]

    def group(
        self, prefix: str, statuses: Sequence[str] | None, after: str | None, limit: int
    ) -> list[IndexRow]:
        where = ["jid >= ?", "jid < ?"]
        values: list[Any] = [prefix, prefix + _LAST]
        if statuses is not None and not statuses:
            return []
        if statuses is not None:
            where.append(f"status IN ({','.join('?' * len(statuses))})")
            values += statuses
        if after is not None:
            where.append("(LENGTH(jid), jid) > (?, ?)")
            values += (len(after), after)
        query = f"SELECT {JOB_COLUMNS} FROM jobs WHERE {' AND '.join(where)} ORDER BY LENGTH(jid), jid LIMIT ?"
        return [self._right(index_row, r) for r in self._rows(query, (*values, limit))]

    def names(self, prefix: str, uid: str | None, limit: int) -> list[Name]:
        where, values = "name >= ? AND name < ?", [prefix, prefix + _LAST]
        if uid is not None:
            where += " AND (instr(stream, ?) = 1 OR instr(stream, ?) > 0)"
            values += (f"job/{uid}-", f".{uid}@")
        query = f"SELECT name, what, stream FROM names WHERE {where} ORDER BY name, what, stream LIMIT ?"
        return [self._right(_name, r) for r in self._rows(query, (*values, limit))]

    def jobs_named(self, name: str, what: str, uid: str | None, limit: int) -> list[str]:
        first = "job/" if uid is None else f"job/{uid}-"
        rows = self._rows(JOBS_NAMED, (name, what, first, first + _LAST, limit))
        return [self._right(_name, r).stream.removeprefix("job/") for r in rows]

    def agents(self) -> list[str]:
        return [
            stream.removeprefix("agent/")
            for (stream,) in self._rows(_AGENTS, ())
            if isinstance(stream, str)
        ]

    def receipt(self, uid: str, req_id: str) -> Receipt | None:
        rows = self._rows(
            "SELECT uid, req_id, jid, serial, at FROM receipts WHERE uid = ? AND req_id = ?",
            (uid, req_id),
        )
        return self._right(_receipt, rows[0]) if rows else None

    def usage(self, since: float, until: float, uid: str | None) -> list[UsageRow]:
        where = "start >= ? AND start < ?"
        values: list[Any] = [since, until]
        if uid is not None:
            where += " AND uid = ?"
            values.append(uid)
        query = f"SELECT {USAGE_COLUMNS} FROM usage WHERE {where} ORDER BY {', '.join(KEY)}"
        return [self._right(usage_row, r) for r in self._rows(query, tuple(values))]

    def _right(self, make: Callable[[tuple[Any, ...]], T], row: tuple[Any, ...]) -> T:
        try:
            return make(row)
        except msgspec.ValidationError as e:
            what = f"a row of a derived table is damaged ({e}): {repr(row)[:200]}"
            raise Refusal("storeDamaged", f"{self._where}: {what}. {self._repair()}") from None

    def _rows(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        # fetch all at once: an unfinished statement keeps the WAL from being reset
        try:
            return self._connection.execute(query, values).fetchall()
        except self._errors as e:
            raise self._refusal(e) from None

    def _damaged(self, what: Broken) -> Refusal:
        return Refusal(
            "storeDamaged", f"{self._where}: the log is damaged at {what}. {self._repair()}"
        )


def _marks(values: Collection[str]) -> str:
    return ", ".join("?" * len(values))


def index_row(r: tuple[Any, ...]) -> IndexRow:
    """Convert a row of the table `jobs`. Raises msgspec.ValidationError for a column of the wrong
    type.
    """
    return msgspec.convert(
        dict(zip(_INDEX_FIELDS, (*r[:7], r[7] == 1, *r[8:]), strict=True)), IndexRow
    )


def _tally(r: tuple[Any, ...]) -> JobCount:
    return msgspec.convert(
        dict(zip(_TALLY_FIELDS, (*r[:2], r[2] == 1, *r[3:]), strict=True)), JobCount
    )


def _name(r: tuple[Any, ...]) -> Name:
    return msgspec.convert(dict(zip(_NAME_FIELDS, r, strict=True)), Name)


def _receipt(r: tuple[Any, ...]) -> Receipt:
    return msgspec.convert(dict(zip(_RECEIPT_FIELDS, r, strict=True)), Receipt)
