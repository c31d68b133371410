"""What can be kept of a damaged log: of each stream its beginning, up to its first event that is
lost. Reads the damaged file only.

A row is whole if its checksum fits the one of the row before it, or if the next row proves what the
checksum must have been. What may be kept alone:

* Of a job, its events before the first that is damaged or missing. The events that one transaction
  wrote to a stream lie next to each other and have the same time; of such a transaction all are
  kept or none, so that half a placement or half an end never stands alone. Only the request of a
  run may. Where it cannot be seen whether a transaction went on in what is lost, it is dropped.
* Of an agent and of the system, every whole event: each is a fact for itself. They are numbered
  anew.
* Events of different streams do not depend on each other: whoever waits for another run looks at it
  again at every start.
"""

import json
import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from ..events.events import CHECKPOINTS
from ..sqlite.head_file import DurablePosition
from ..sqlite.schema import rows_after
from ..store.checksum_chain import START, Broken, Row, row, verified
from ..store.disk_errors import UNREADABLE

_JOB = "job/"


class Loss(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A stream that loses events. kept: of its events (folded ones included); up_to: position of
    the last of these, 0 for none.

    lost: so many events at least.
    """

    stream: str
    kept: int
    up_to: int
    lost: int


class Survey(msgspec.Struct, kw_only=True):
    """What would be kept: so many events. cuts: per job stream that loses something, the first
    version that is not kept.
    """

    events: int
    losses: list[Loss]
    cuts: dict[str, int]


class _Seen(NamedTuple):
    """The last whole event of a job. begun: the version at which the transaction that wrote it
    began, as far as times show it.

    Where that may be kept alone, the version after it.
    """

    version: int
    position: int
    at: Any
    begun: int
    #: position before that transaction
    before: int


class _Books:
    def __init__(self, index: dict[str, int]) -> None:
        """index: per job stream, the position of its last event, as far as that can be read."""
        self.index = index
        self.seen: dict[str, _Seen] = {}
        self.cuts: dict[str, int] = {}
        #: of streams that lose something: the last version of which something was seen
        self.last: dict[str, int] = {}
        self.up_to: dict[str, int] = {}
        #: of others than jobs: events lost
        self.others: dict[str, int] = {}
        #: jobs whose last event was directly before something that is lost and may have been theirs
        self.doubted: set[str] = set()
        #: the job that the row before this one is of
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
            begun, before = r.version + 1, r.position  # a request can stand alone
        elif seen is not None and seen.at == r.at:
            begun, before = seen.begun, seen.before
        self.seen[r.stream] = _Seen(r.version, r.position, r.at, begun, before)
        self.doubted.discard(r.stream)
        self.before = r.stream

    def damaged(self, raw: tuple[Any, ...]) -> None:
        """What is in such a row may be wrong. It is believed where it fits what is known of its
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
                # it began another transaction if both of its times say so
                self._lose(
                    stream,
                    min(version, expected),
                    half=seen is not None and (raw[5] == seen.at or raw[5] != _time_in(raw[6])),
                )
                self.before = None
                return
        elif stream == "system" or stream.startswith("agent/"):
            self.others[stream] = self.others.get(stream, 0) + 1
            self.before = None
            return
        self.gap()

    def gap(self) -> None:
        """The content of this position is not known."""
        if self.before is not None:
            self.doubted.add(self.before)
        self.before = None

    def end(self) -> None:
        """All rows were seen."""
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
        """half: what is lost may be of the same transaction as the last event that was seen."""
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
    """Look at every row that can be read. mark: what was witnessed of the log."""
    books = _Books(_index(connection))
    for found in _judged(connection, mark):
        match found:
            case Row():
                books.whole(found)
            case None:
                books.gap()
            case _:
                books.damaged(found)
    if mark is not None and mark.position > books.position:
        books.gap()
    books.end()
    out = books.survey()
    out.events = sum(1 for _ in kept(connection, mark, out))
    return out


def kept(
    connection: sqlite3.Connection, mark: DurablePosition | None, found: Survey
) -> Iterator[Row]:
    """The rows that are kept, with their positions, bound to each other anew."""
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
        made = row(previous, r.position, r.stream, version, r.type, r.schema, r.at, r.body.encode())
        yield made
        previous = made.checksum


def _follows(r: Row, seen: _Seen | None) -> bool:
    return (
        r.version == 1 or r.type in CHECKPOINTS if seen is None else r.version == seen.version + 1
    )


def _judged(
    connection: sqlite3.Connection, mark: DurablePosition | None
) -> Iterator[Row | tuple[Any, ...] | None]:
    """In order of position: whole rows; damaged ones, raw; None where something cannot be read."""
    previous: Any = START
    last = 0
    #: a row whose checksum does not fit, and what the checksum of its content is: the next row
    #: tells which of the two is wrong
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
    """A row with a wrong checksum and no row after it: the witness may have seen the right one."""
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
    """The row that its columns but the checksum make."""
    try:
        return row(
            previous, raw[0], raw[1].decode(), raw[2], raw[3].decode(), raw[4], raw[5], raw[6]
        )
    except Exception:  # of whatever type a damaged column is
        return None


def _readable(connection: sqlite3.Connection) -> Iterator[tuple[Any, ...] | None]:
    """Raw rows in order of position; None where the file itself cannot be read, which is left out."""
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
    """A position behind which rows can be read again; None where there is none."""
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
    """Can the first row behind this position be read?"""
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
    """The time in the text of an event; None where it cannot be read."""
    try:
        return json.loads(body).get("at")
    except (ValueError, TypeError, AttributeError):
        return None
