"""Selects the events of a damaged log that can be kept: for each stream, the events before its
first lost event. Only reads.

A row is intact if its checksum follows from the previous row, or if the next row proves its
content. The rules:

* For a job, keep the events before the first damaged or missing one. Events that one transaction
  wrote to a stream are adjacent and have the same time. Keep all events of such a transaction or
  none, so that no half placement or half end remains. Only the request of a run may stand alone. If
  a transaction may continue in the lost part, drop it.
* For an agent, the system, API tokens and audit, keep every intact event, because each is an independent fact. Renumber
  their versions.
* Events of different streams are independent: at every start, a run that waits for another run
  checks it again.
"""

import json
import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from ..events.events import ACCESS, AUDIT, CHECKPOINTS, SYSTEM
from ..sql.statements import rows_after
from ..store.checksum_chain import START, Broken, Row, row, verified
from ..store.disk_errors import UNREADABLE
from ..store.head_file import DurablePosition

_JOB = "job/"


class Loss(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A stream that loses events. kept: number of its events that are kept (folded events
    included). up_to: position of the last kept event, 0 for none.

    lost: minimum number of lost events.
    """

    stream: str
    kept: int
    up_to: int
    lost: int


class Survey(msgspec.Struct, kw_only=True):
    """Selection of the kept events. events: their number. cuts: first dropped version of each job
    stream that loses events.
    """

    events: int
    losses: list[Loss]
    cuts: dict[str, int]


class _Seen(NamedTuple):
    """The last intact event of a job. begun: version at which its transaction began, judged by
    times.

    If the event may stand alone, begun is the next version.
    """

    version: int
    position: int
    at: Any
    begun: int
    #: last position before that transaction
    before: int


class _Scan:
    """State of the scan over the rows of a damaged log."""

    def __init__(self, index: dict[str, int]) -> None:
        """index: position of the last event of each job stream, as far as readable."""
        self.index = index
        self.seen: dict[str, _Seen] = {}
        self.cuts: dict[str, int] = {}
        #: last version found in each stream that loses events
        self.last: dict[str, int] = {}
        self.up_to: dict[str, int] = {}
        #: number of lost events in streams of other kinds
        self.others: dict[str, int] = {}
        #: jobs whose last event is directly before a lost row that may belong to the same job
        self.doubted: set[str] = set()
        #: stream of the previous row if it is a job's
        self.before: str | None = None
        self.position = 0

    def whole(self, r: Row) -> None:
        self.position = r.position
        if not r.stream.startswith(_JOB):
            self.before = None
            return
        seen = self.seen.get(r.stream)
        if r.stream in self.cuts or not _follows(r, seen):
            self._lose(r.stream, r.version, half=seen is not None and seen.at == r.at)
            self.before = None
            return
        begun, before = r.version, 0 if seen is None else seen.position
        if r.type == "RunRequested":
            begun, before = r.version + 1, r.position
        elif seen is not None and seen.at == r.at:
            begun, before = seen.begun, seen.before
        self.seen[r.stream] = _Seen(r.version, r.position, r.at, begun, before)
        self.doubted.discard(r.stream)
        self.before = r.stream

    def damaged(self, raw: tuple[Any, ...]) -> None:
        """Note a damaged row. Its stream and version count only if they fit the known part of the
        stream.
        """
        position, stream, version = raw[0], _text(raw[1]), raw[2]
        if position != self.position + 1:
            self.gap()
        self.position = position
        known = stream in self.seen or stream in self.index
        if stream.startswith(_JOB) and isinstance(version, int) and known:
            seen = self.seen.get(stream)
            expected = (
                self.last[stream] + 1
                if stream in self.cuts
                else 1
                if seen is None
                else seen.version + 1
            )
            if stream in self.cuts or version == expected:
                # a new transaction began only if both copies of the time differ
                self._lose(
                    stream,
                    min(version, expected),
                    half=seen is not None and (raw[5] == seen.at or raw[5] != _time_in(raw[6])),
                )
                self.before = None
                return
        elif stream in (SYSTEM, ACCESS, AUDIT) or stream.startswith("agent/"):
            self.others[stream] = self.others.get(stream, 0) + 1
            self.before = None
            return
        self.gap()

    def gap(self) -> None:
        """Note a row of unknown content."""
        if self.before is not None:
            self.doubted.add(self.before)
        self.before = None

    def end(self) -> None:
        """Note that all rows were scanned."""
        for stream, position in self.index.items():
            seen = self.seen.get(stream)
            if seen is not None and seen.position == position:
                self.doubted.discard(stream)
            elif stream not in self.cuts and (seen is None or seen.position < position):
                self._lose(stream, 1 if seen is None else seen.version + 1)
        for stream in sorted(self.doubted - self.cuts.keys()):
            self._lose(stream, self.seen[stream].version + 1)

    def survey(self) -> Survey:
        kept = {s: seen.version for s, seen in self.seen.items()} | {
            s: v - 1 for s, v in self.cuts.items()
        }
        losses = [
            Loss(stream=s, kept=kept[s], up_to=self.up_to[s], lost=max(1, self.last[s] - kept[s]))
            for s in sorted(self.cuts)
        ]
        losses += [Loss(stream=s, kept=0, up_to=0, lost=n) for s, n in sorted(self.others.items())]
        return Survey(events=0, losses=losses, cuts=self.cuts)

    def _lose(self, stream: str, version: int, *, half: bool = False) -> None:
        """Note a lost event of this stream. half: it may belong to the transaction of the last
        intact event.
        """
        self.last[stream] = max(
            self.last.get(stream, 0),
            version,
            self.seen[stream].version if stream in self.seen else 0,
        )
        if stream in self.cuts:
            return
        seen = self.seen.get(stream)
        half = half or stream in self.doubted
        self.cuts[stream] = 1 if seen is None else seen.begun if half else seen.version + 1
        self.up_to[stream] = 0 if seen is None else seen.before if half else seen.position


def survey(connection: sqlite3.Connection, mark: DurablePosition | None) -> Survey:
    """Scan every readable row and return what can be kept. mark: durable head of the log."""
    scan = _Scan(_index(connection))
    for found in _judged(connection, mark):
        match found:
            case Row():
                scan.whole(found)
            case None:
                scan.gap()
            case _:
                scan.damaged(found)
    if mark is not None and mark.position > scan.position:
        scan.gap()
    scan.end()
    out = scan.survey()
    out.events = sum(1 for _ in kept(connection, mark, out))
    return out


def kept(
    connection: sqlite3.Connection, mark: DurablePosition | None, found: Survey
) -> Iterator[Row]:
    """Yield the kept rows with their positions and new checksums."""
    previous, versions = START, dict[str, int]()
    for r in _judged(connection, mark):
        if not isinstance(r, Row):
            continue
        version = r.version
        if r.stream.startswith(_JOB):
            if version >= found.cuts.get(r.stream, version + 1):
                continue
        else:
            version = (
                versions[r.stream] + 1
                if r.stream in versions
                else version
                if r.type in CHECKPOINTS
                else 1
            )
            versions[r.stream] = version
        kept_row = row(
            previous, r.position, r.stream, version, r.type, r.schema, r.at, r.body.encode()
        )
        yield kept_row
        previous = kept_row.checksum


def _follows(r: Row, seen: _Seen | None) -> bool:
    return (
        r.version == 1 or r.type in CHECKPOINTS if seen is None else r.version == seen.version + 1
    )


def _judged(
    connection: sqlite3.Connection, mark: DurablePosition | None
) -> Iterator[Row | tuple[Any, ...] | None]:
    """Yield in order of position: intact rows, damaged rows (raw), and None for an unreadable
    place.
    """
    previous: Any = START
    last = 0
    #: (damaged row, row with the checksum computed from its content): the next row proves whether
    #: content or checksum is wrong
    held: tuple[tuple[Any, ...], Row | None] | None = None
    for raw in _readable(connection):
        if raw is None:
            yield from _unproven(held, None)
            held, previous = None, None
            yield None
            continue
        found = _verified(raw, previous, last)
        if held is not None:
            by_content = (
                None
                if found is not None or held[1] is None
                else _verified(raw, held[1].checksum, last)
            )
            yield held[1] if by_content is not None and held[1] is not None else held[0]
            held, found = None, found or by_content
        if found is not None:
            yield found
        else:
            held = (raw, _content(raw, previous))
        previous, last = raw[7], raw[0]
    yield from _unproven(held, mark)


def _unproven(
    held: tuple[tuple[Any, ...], Row | None] | None, mark: DurablePosition | None
) -> Iterator[Row | tuple[Any, ...]]:
    """Yield a last row with a wrong checksum, as intact if the head file has the checksum of its
    content.
    """
    if held is not None:
        raw, by_content = held
        proven = (
            by_content is not None
            and mark is not None
            and (by_content.position, by_content.checksum) == mark
        )
        yield by_content if by_content is not None and proven else raw


def _verified(raw: tuple[Any, ...], previous: Any, after: int) -> Row | None:
    try:
        return verified(raw, previous, after + 1)
    except Broken:
        return None


def _content(raw: tuple[Any, ...], previous: Any) -> Row | None:
    """Return the row with the checksum computed from its other columns; None if a column has the
    wrong type.
    """
    try:
        return row(
            previous, raw[0], raw[1].decode(), raw[2], raw[3].decode(), raw[4], raw[5], raw[6]
        )
    except Exception:  # any type of error: the damaged column may have any type
        return None


def _readable(connection: sqlite3.Connection) -> Iterator[tuple[Any, ...] | None]:
    """Yield raw rows in order of position, and None for each unreadable part of the file, which is
    skipped.
    """
    after: int | None = 0
    while after is not None:
        try:
            for raw in rows_after(connection, after):
                after = raw[0]
                yield raw
            return
        except UNREADABLE:
            yield None
            after = _beyond(connection, after)


def _beyond(connection: sqlite3.Connection, after: int) -> int | None:
    """Return a position after which rows are readable again; None if there is none."""
    try:
        end = int(connection.execute("SELECT max(position) FROM events").fetchone()[0])
    except UNREADABLE:
        return None
    unread, step = after, 1
    while unread < end - 1:
        read = min(unread + step, end - 1)
        if _reads(connection, read):
            while read - unread > 1:
                middle = (read + unread) // 2
                read, unread = (middle, unread) if _reads(connection, middle) else (read, middle)
            return read
        unread, step = read, step * 2
    return None


def _reads(connection: sqlite3.Connection, after: int) -> bool:
    """Return whether the first row after this position is readable."""
    try:
        return bool(list(rows_after(connection, after, limit=1)))
    except UNREADABLE:
        return False


def _index(connection: sqlite3.Connection) -> dict[str, int]:
    try:
        rows = connection.execute("SELECT CAST(jid AS BLOB), position FROM jobs").fetchall()
    except UNREADABLE:
        return {}
    return {_JOB + _text(jid): position for jid, position in rows if isinstance(position, int)}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _time_in(body: Any) -> Any:
    """Return the time in the text of an event; None if unreadable."""
    try:
        return json.loads(body).get("at")
    except (ValueError, TypeError, AttributeError):
        return None
