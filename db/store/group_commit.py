"""What becomes of batches: made ready when they are appended, admitted into one transaction, told
together. Pure.

All stores share this, so that versions, positions, checksums and the order of telling are the same
everywhere.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from ...protocol.errors import Refusal
from ..events.events import Event, decode, encode, job_stream, schema_of, type_of
from .checksum_chain import Row, row
from .contract import Appended, Batch, Conflict, Done, IndexRow, Name, Receipt, Stored
from .name_index import names_of

Heard = Callable[[Sequence[Stored]], None]
#: Named places on the way of a group of batches; see `POINTS`. What it raises is what a disk would
#: have said there.
Point = Callable[[str], None]

#: taken: nothing of the group is written; committed: it is in the log; witnessed: it is durable by
#: all means; delivered: it was told.
POINTS = ("taken", "committed", "witnessed", "delivered")


def nowhere(point: str) -> None:
    """The point hook of everyday life."""


class EncodedEvent(NamedTuple):
    """An event in the form it is stored in, and as it will be read back."""

    type: str
    schema: int
    body: bytes
    event: Event


class PendingBatch(NamedTuple):
    """A batch on its way to the disk. refusal: why it can never be stored. era: how often the store
    had been resumed.
    """

    writes: tuple[tuple[str, int, tuple[EncodedEvent, ...]], ...]
    index_rows: tuple[IndexRow, ...]
    receipts: tuple[Receipt, ...]
    done: Done
    era: int
    refusal: Refusal | None = None

    @property
    def size(self) -> int:
        return sum(len(facts) for _, _, facts in self.writes)


def waiting(batch: Batch, done: Done, era: int) -> PendingBatch:
    """The batch, encoded and proven to be readable: what could not be read back must never reach
    the log.
    """
    try:
        writes = tuple(
            (w.stream, w.expected_version, tuple(_fact(e) for e in w.events)) for w in batch.writes
        )
        for text in (*(w.stream for w in batch.writes), *(r.jid for r in batch.index)):
            text.encode()
    except Refusal as e:
        return PendingBatch(
            (), (), (), done, era, Refusal("internal", f"an event cannot be stored: {e.sentence}")
        )
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as e:
        return PendingBatch(
            (), (), (), done, era, Refusal("internal", f"an event cannot be stored: {str(e)[:200]}")
        )
    streams = {w.stream for w in batch.writes if w.events}
    for index_row in batch.index:
        if job_stream(index_row.jid) not in streams:
            return PendingBatch(
                (),
                (),
                (),
                done,
                era,
                Refusal("internal", f"an index row for {index_row.jid} without an event of it"),
            )
    return PendingBatch(writes, batch.index, batch.receipts, done, era)


def _fact(event: Event) -> EncodedEvent:
    type_, schema, body = type_of(event), schema_of(event), encode(event)
    return EncodedEvent(type_, schema, body, decode(type_, schema, body))


def last_positions(batch: Batch, first: int) -> dict[str, int]:
    """Position of the last event of each stream in a batch whose first event got the position
    `first`.
    """
    out: dict[str, int] = {}
    for write in batch.writes:
        first += len(write.events)
        if write.events:
            out[write.stream] = first - 1
    return out


class CommitGroup:
    """The batches of one transaction, after the log's `position` and `checksum`; `version_of` knows
    the streams before it.
    """

    def __init__(self, position: int, checksum: bytes, version_of: Callable[[str], int]) -> None:
        self.position, self.checksum = position, checksum
        self.rows: list[Row] = []
        self.heard: list[Stored] = []
        self.versions: dict[str, int] = {}
        self.index: dict[str, IndexRow] = {}
        self.receipts: list[Receipt] = []
        self.names: list[Name] = []
        self.results: list[tuple[Done, Appended | Refusal]] = []
        self._version_of = version_of

    @property
    def empty(self) -> bool:
        return not (self.rows or self.receipts)

    def admit(self, w: PendingBatch) -> None:
        """Take a batch in, or refuse it alone."""
        refusal = w.refusal or self._conflict(w)
        if refusal is not None:
            self.results.append((w.done, refusal))
            return
        first = self.position + 1
        for stream, version, facts in w.writes:
            for fact in facts:
                version += 1
                self._add(stream, version, fact)
            self.versions[stream] = version
        last = {
            r.stream: r.position for r in self.rows[len(self.rows) - (self.position - first + 1) :]
        }
        for index_row in w.index_rows:
            self.index[index_row.jid] = msgspec.structs.replace(
                index_row, position=last[job_stream(index_row.jid)]
            )
        self.receipts += w.receipts
        self.results.append((w.done, Appended(first, self.position)))

    def _conflict(self, w: PendingBatch) -> Conflict | None:
        own: dict[str, int] = {}
        for stream, expected, facts in w.writes:
            actual = own.get(stream, self.versions.get(stream))
            actual = self._version_of(stream) if actual is None else actual
            if actual != expected:
                return Conflict(stream, expected, actual)
            own[stream] = expected + len(facts)
        return None

    def _add(self, stream: str, version: int, fact: EncodedEvent) -> None:
        self.position += 1
        row_ = row(
            self.checksum,
            self.position,
            stream,
            version,
            fact.type,
            fact.schema,
            fact.event.at,
            fact.body,
        )
        self.checksum = row_.checksum
        self.rows.append(row_)
        self.heard.append(Stored(self.position, stream, version, fact.event))
        self.names += names_of(stream, fact.event)

    def refused(self, refusal: Refusal) -> list[tuple[Done, Appended | Refusal]]:
        """What to tell when the transaction failed: everybody in it is refused."""
        return [(done, refusal) for done, _ in self.results]


def tell(
    listeners: Iterable[Heard],
    heard: Sequence[Stored],
    results: Iterable[tuple[Done, Appended | Refusal]],
) -> None:
    """Tell listeners, then everybody who waits. One that raises does not keep the others from being
    told.
    """
    errors: list[Exception] = []
    if heard:
        for listener in tuple(listeners):
            try:
                listener(heard)
            except Exception as e:
                errors.append(e)
    for done, result in results:
        try:
            done(result)
        except Exception as e:
            errors.append(e)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several of those who were told failed", errors)
