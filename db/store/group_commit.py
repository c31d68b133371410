"""Group commit: batches are encoded at append, admitted to one transaction, and reported together.
Pure.

All stores share this code, so that versions, positions, checksums and the order of callbacks are
the same.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from ...protocol.errors import Refusal
from ..events.events import Event, decode, encode, job_stream, schema_of, type_of
from ..events.usage_row import UsageKey, UsageRow, add
from .checksum_chain import Row, row
from .contract import Appended, Batch, Conflict, Done, IndexRow, Name, Receipt, Stored
from .name_index import secondary_names

Listener = Callable[[Sequence[Stored]], None]
#: Fault hook, called at named places during a commit; see `POINTS`. An exception that it raises
#: counts as a disk error at that place.
Point = Callable[[str], None]

#: taken: nothing of the group is written. committed: the group is in the log. witnessed: the head
#: file is written too. delivered: the callbacks were handed to `deliver`.
POINTS = ("taken", "committed", "witnessed", "delivered")


def no_fault(point: str) -> None:
    """A hook without faults."""


class EncodedEvent(NamedTuple):
    """An event in its stored form, and as it will be read back."""

    type: str
    schema: int
    body: bytes
    event: Event


class PendingBatch(NamedTuple):
    """A batch waiting for its commit. refusal: why the batch can never be stored. era: how often
    the store had been resumed.
    """

    writes: tuple[tuple[str, int, tuple[EncodedEvent, ...]], ...]
    index_rows: tuple[IndexRow, ...]
    receipts: tuple[Receipt, ...]
    done: Done
    era: int
    refusal: Refusal | None = None
    usage: tuple[UsageRow, ...] = ()

    @property
    def size(self) -> int:
        return sum(len(encoded_events) for _, _, encoded_events in self.writes)


def encode_batch(batch: Batch, done: Done, era: int) -> PendingBatch:
    """Encode the batch and decode it again, because an unreadable event must never reach the log."""
    try:
        writes = tuple(
            (w.stream, w.expected_version, tuple(_encode(e) for e in w.events))
            for w in batch.writes
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
                Refusal("internal", f"an index row for {index_row.jid} has no event in its batch"),
            )
    return PendingBatch(writes, batch.index, batch.receipts, done, era, usage=batch.usage)


def _encode(event: Event) -> EncodedEvent:
    type_, schema, body = type_of(event), schema_of(event), encode(event)
    return EncodedEvent(type_, schema, body, decode(type_, schema, body))


def last_positions(batch: Batch, first: int) -> dict[str, int]:
    """Return the position of the last event of each stream in a batch whose first event has the
    position `first`.
    """
    out: dict[str, int] = {}
    for write in batch.writes:
        first += len(write.events)
        if write.events:
            out[write.stream] = first - 1
    return out


class CommitGroup:
    """The batches of one transaction, which follow `position` and `checksum` of the log.
    `version_of` returns the version of a stream before the group.
    """

    def __init__(self, position: int, checksum: bytes, version_of: Callable[[str], int]) -> None:
        self.position, self.checksum = position, checksum
        self.rows: list[Row] = []
        self.events: list[Stored] = []
        self.versions: dict[str, int] = {}
        self.index: dict[str, IndexRow] = {}
        self.receipts: list[Receipt] = []
        self.names: list[Name] = []
        self.usage: dict[UsageKey, UsageRow] = {}
        self.results: list[tuple[Done, Appended | Refusal]] = []
        self._version_of = version_of

    @property
    def empty(self) -> bool:
        return not (self.rows or self.receipts)

    def admit(self, w: PendingBatch) -> None:
        """Add a batch, or refuse it alone."""
        refusal = w.refusal or self._conflict(w)
        if refusal is not None:
            self.results.append((w.done, refusal))
            return
        first = self.position + 1
        for stream, version, encoded_events in w.writes:
            for encoded in encoded_events:
                version += 1
                self._add(stream, version, encoded)
            self.versions[stream] = version
        last = {
            r.stream: r.position for r in self.rows[len(self.rows) - (self.position - first + 1) :]
        }
        for index_row in w.index_rows:
            self.index[index_row.jid] = msgspec.structs.replace(
                index_row, position=last[job_stream(index_row.jid)]
            )
        self.receipts += w.receipts
        for usage_row in w.usage:
            key = usage_row.key
            known = self.usage.get(key)
            self.usage[key] = usage_row if known is None else add(known, usage_row)
        self.results.append((w.done, Appended(first, self.position)))

    def _conflict(self, w: PendingBatch) -> Conflict | None:
        own: dict[str, int] = {}
        for stream, expected, encoded_events in w.writes:
            actual = own.get(stream, self.versions.get(stream))
            actual = self._version_of(stream) if actual is None else actual
            if actual != expected:
                return Conflict(stream, expected, actual)
            own[stream] = expected + len(encoded_events)
        return None

    def _add(self, stream: str, version: int, encoded: EncodedEvent) -> None:
        self.position += 1
        row_ = row(
            self.checksum,
            self.position,
            stream,
            version,
            encoded.type,
            encoded.schema,
            encoded.event.at,
            encoded.body,
        )
        self.checksum = row_.checksum
        self.rows.append(row_)
        self.events.append(Stored(self.position, stream, version, encoded.event))
        self.names += secondary_names(stream, encoded.event)

    def refused(self, refusal: Refusal) -> list[tuple[Done, Appended | Refusal]]:
        """Return the results of a failed transaction: every batch is refused."""
        return [(done, refusal) for done, _ in self.results]


def notify_listeners(
    listeners: Iterable[Listener],
    events: Sequence[Stored],
    results: Iterable[tuple[Done, Appended | Refusal]],
) -> None:
    """Call the listeners, then the callbacks of the batches. An exception in one of them does not
    prevent the calls of the others.
    """
    errors: list[Exception] = []
    if events:
        for listener in tuple(listeners):
            try:
                listener(events)
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
        raise ExceptionGroup("several event listeners failed", errors)
