"""Live updates for one page: status, progress and one job's output as server-sent events,
resumable, for slow readers too.

Only the newest status of a job is sent. Statuses are sent in the order of the log, and the id of an
event contains the log position up to which everything was sent. So a reconnecting page gets all
changes since. Events are created only when the reader has capacity, so a slow reader costs only a
few names.

A stream about the jobs of several users is paced: it sends a block from time to time, and where more
jobs have changed than a block has, an event `many` in place of their statuses. The page reads again
then. So a stream of all jobs costs the same on a busy site.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from itertools import chain, islice
from typing import Any, Literal

import msgspec

from ...db.events.state import Job
from ...protocol.api.requests import JobLog
from ...protocol.errors import Refusal
from ...protocol.ids import split_jid
from ...protocol.wire.messages import Stream
from ..core.interface.drains import SITE, Drains
from ..core.status.run_status import missing
from ..engine.decision_loop import DurableJob
from ..runs.service import RunService
from ..runs.shared_statuses import LOOKED_SECS
from .job_changes import JobChanges
from .output_tail import Piece, Tail, TailPosition

KEEPALIVE_SECS = 15.0
#: Interval for changes without an event (an agent that is away, a queue position).
LOOK_SECS = 5.0
LIFE_SECS = 12 * 3600.0
#: Maximum streams of one user, and of all users.
PER_USER, IN_ALL = 64, 4_096
#: Statuses created at once, and active jobs of a user checked repeatedly.
BATCH, CHECKED = 64, 64
#: Time limit in seconds for creating statuses at once.
MAKING_SECS = 0.01
#: Time limit for streams to end when the supervisor stops.
CLOSE_SECS = 1.0
#: Pause between two blocks of a stream about several users, which has at most BATCH statuses.
PACE_SECS = 0.5

#: Position in the log, run serial, attempt, offset of the output, whether it ended, subscription.
_ID = re.compile(
    r"([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,7})-([0-9]{1,19})-([01])-([0-9a-f]{16})", re.ASCII
)
_NO_CHANGE = b": nothing new\n\n"
#: Key of the readers of all users' jobs.
_EVERYBODY = ""


class Subscription(msgspec.Struct, frozen=True):
    """The subscription of a page: these jobs, or without them all jobs of these users, and optionally
    the output of one job.

    uid: who reads. of, users: whose jobs without `jids`: own ones; those of the members of the own
    groups, who are `users`; or those of all users. attempt, role, index: the task whose output is
    sent, as in JobLog. tail: bytes of existing output to start with; 0: all. last_id: id of the last
    received event after a reconnect.
    """

    uid: str
    jids: tuple[str, ...] = ()
    of: Literal["own", "group", "all"] = "own"
    users: frozenset[str] = frozenset()
    logs: str | None = None
    stream: Stream = "stdout"
    attempt: int = 0
    role: str | None = None
    index: int = 0
    tail: int = 0
    last_id: str = ""

    @property
    def digest(self) -> str:
        """Return a digest of the subscription. An event id is valid only for the same subscription."""
        task = f"{self.attempt}/{self.role}/{self.index}" if self.attempt or self.role else ""
        stream = self.stream if self.logs else ""
        whose = () if self.of == "own" else (self.of, *sorted(self.users))
        said = "|".join((self.uid, *sorted(self.jids), task, self.logs or "", stream, *whose))
        return blake2b(said.encode(), digest_size=8).hexdigest()

    @property
    def wide(self) -> bool:
        """Return whether it is about all jobs of several users."""
        return self.of != "own" and not self.jids

    @property
    def owners(self) -> frozenset[str]:
        """Return the users whom it names, and who reads."""
        named = (*self.jids, *filter(None, (self.logs,)))
        return self.users.union((self.uid,), (split_jid(jid)[0] for jid in named))


class LiveUpdates:
    """All open streams. One per process. Call `changed` and `progressed` for every job's changes."""

    def __init__(
        self,
        runs: RunService,
        *,
        keepalive_secs: float = KEEPALIVE_SECS,
        look_secs: float = LOOK_SECS,
        life_secs: float = LIFE_SECS,
    ) -> None:
        self._runs = runs
        self._keepalive, self._look, self._life = keepalive_secs, look_secs, life_secs
        #: by the users whose jobs they are about
        self._readers: dict[str, set[Reader]] = {}
        #: number of streams by the user who reads
        self._open: Counter[str] = Counter()
        self._drains: Drains = {}
        self._closing = False
        self._no_readers = asyncio.Event()
        #: Position of the last call of `changed`.
        self.position = 0
        self.changes = JobChanges()

    def sizes(self) -> dict[str, int]:
        return {
            "streams": self._open.total(),
            "frontEnds": len(self.changes),
        }

    def changed(self, job: Job, position: int) -> None:
        """Handle a durable change of a job. Positions grow."""
        self.position = position
        self.changes.changed(job.jid)
        for reader in self._about(job.jid):
            reader.changed(job.jid, position)

    def progressed(self, jid: str) -> None:
        self.changes.outdated(jid)
        for reader in self._about(jid):
            reader.progressed(jid)

    def stored(self, uid: str, simulation_type: str, name: str) -> None:
        """Handle a stored file of the user's library: the user's own pages are told."""
        for reader in self._readers.get(uid, ()):
            reader.stored(uid, simulation_type, name)

    def drained(self, drains: Drains) -> None:
        """Handle changed drains: all pages are told."""
        self._drains = drains
        for reader in self._all():
            reader.drained(drains)

    def _about(self, jid: str) -> Iterator["Reader"]:
        """Yield the readers that may be about this job."""
        return chain(self._readers.get(split_jid(jid)[0], ()), self._readers.get(_EVERYBODY, ()))

    def _all(self) -> set["Reader"]:
        return {reader for readers in self._readers.values() for reader in readers}

    @contextmanager
    def reader(
        self, subscription: Subscription, sees: Callable[[str], bool] | None = None
    ) -> Iterator["Reader"]:
        """Open a reader. sees: whether the reader may see the jobs of a user; None: only its own.
        Raises Refusal (tooManyRequests, draining, notFound).
        """
        if self._closing:
            raise Refusal("draining", "the supervisor is stopping; try again after the restart")
        uid = subscription.uid
        if self._open[uid] >= PER_USER or self._open.total() >= IN_ALL:
            raise Refusal(
                "tooManyRequests",
                f"{self._open[uid]} streams of this user are open; the limit is {PER_USER}. Close one first",
            )
        sees = sees or uid.__eq__
        if (logs := subscription.logs) is not None:
            self._runs.job(split_jid(logs)[0] if sees(split_jid(logs)[0]) else uid, logs)
        reader = Reader(self._runs, subscription, self.position, sees, self._drains)
        self._open[uid] += 1
        everybody = subscription.wide and subscription.of == "all"
        owners = {_EVERYBODY} if everybody else set(filter(sees, subscription.owners))
        for owner in owners:
            self._readers.setdefault(owner, set()).add(reader)
        try:
            yield reader
        finally:
            reader.close()
            for owner in owners:
                self._readers[owner].discard(reader)
                if not self._readers[owner]:
                    del self._readers[owner]
            self._open[uid] -= 1
            if not self._open[uid]:
                del self._open[uid]
            if not self._open:
                self._no_readers.set()

    async def stream(self, reader: "Reader") -> AsyncGenerator[bytes, None]:
        """Yield blocks of events, created on demand. Ends when the reader has left, the stream is
        too old, or the supervisor stops.
        """
        loop = asyncio.get_running_loop()
        ends, silent_since = loop.time() + self._life, loop.time()
        yield await reader.first()
        while not reader.left:
            if self._closing:
                yield b": the supervisor is stopping; open the stream again\n\n"
                return
            if loop.time() >= ends:
                yield b": this stream is old enough; open it again\n\n"
                return
            news = await reader.news(
                max(
                    0.0,
                    min(
                        self._look, ends - loop.time(), silent_since + self._keepalive - loop.time()
                    ),
                )
            )
            if news or loop.time() - silent_since >= self._keepalive:
                yield news or _NO_CHANGE
                silent_since = loop.time()

    async def close(self) -> None:
        """End all streams with a comment."""
        self._closing = True
        self.changes.close()
        if not self._open:
            return
        for reader in self._all():
            reader.wake()
        try:
            async with asyncio.timeout(CLOSE_SECS):
                await self._no_readers.wait()
        except TimeoutError:
            return  # closing the connections ends the others


class Reader:
    """The updates that one page has not received yet."""

    def __init__(
        self,
        runs: RunService,
        subscription: Subscription,
        position: int,
        sees: Callable[[str], bool],
        drains: Drains,
    ) -> None:
        self._runs, self._subscription, self._sees = runs, subscription, sees
        self._drains: Drains | None = drains
        #: number of changes whose jobs are not in `_changed`
        self._more = 0
        #: monotonic time of the next block of a stream about several users
        self._next = 0.0
        self._digest = subscription.digest
        self._named = frozenset(subscription.jids)
        self._changed: dict[str, int] = {}
        self._progressed: dict[str, None] = {}
        #: stored files of the reader's library, as (app, name)
        self._stored: dict[tuple[str, str], None] = {}
        #: by active job: the last sent position, and the fields that may change without an event
        self._sent: dict[str, tuple[int, Any]] = {}
        self._awake = asyncio.Event()
        self.left = False
        resumed = _ID.fullmatch(subscription.last_id)
        self._resumed = resumed is not None and resumed[6] == self._digest
        self._position, self._place = position, TailPosition()
        if self._resumed:
            assert resumed is not None
            # the position may exceed the log after a restore from a backup
            self._position = min(int(resumed[1]), position)
            if subscription.wide and self._position < position:
                self._more, self._position = 1, position
            self._place = TailPosition(
                int(resumed[2]), int(resumed[3]), int(resumed[4]), resumed[5] == "1"
            )
        self._pieces: asyncio.Queue[Piece] = asyncio.Queue(1)
        self._following = (
            None
            if subscription.logs is None
            else asyncio.get_running_loop().create_task(self._follow(subscription.logs))
        )

    # ---- inputs

    def changed(self, jid: str, position: int) -> None:
        if self._named and jid not in self._named:
            return
        if jid in self._sent and self._sent[jid][0] >= position:
            return
        # In the order of the log: an event's id means that everything before it was sent.
        self._changed.pop(jid, None)
        self._changed[jid] = position
        if self._subscription.wide and len(self._changed) > BATCH:
            self._more += len(self._changed)
            self._position = position
            self._changed.clear()
            self._progressed.clear()
        self._awake.set()

    def progressed(self, jid: str) -> None:
        if self._named and jid not in self._named:
            return
        if self._subscription.wide and len(self._progressed) >= BATCH:
            return  # the next report of the job
        self._progressed[jid] = None
        self._awake.set()

    def stored(self, uid: str, simulation_type: str, name: str) -> None:
        # of a slow reader only the newest: a page looks at its file again when it is opened or saves
        if uid == self._subscription.uid:
            self._stored.pop((simulation_type, name), None)
            self._stored[simulation_type, name] = None
            if len(self._stored) > BATCH:
                del self._stored[next(iter(self._stored))]
            self._awake.set()

    def drained(self, drains: Drains) -> None:
        self._drains = drains
        self._awake.set()

    def wake(self) -> None:
        self._awake.set()

    def leave(self) -> None:
        """The connection is closed."""
        self.left = True
        self._awake.set()

    def close(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def _follow(self, jid: str) -> None:
        subscription = self._subscription
        try:
            async for piece in Tail(
                self._runs,
                JobLog(
                    uid=split_jid(jid)[0],
                    compute_jid=jid,
                    stream=subscription.stream,
                    attempt=subscription.attempt,
                    role=subscription.role,
                    index=subscription.index,
                ),
                self._place,
                tail=subscription.tail,
            ).pieces():
                await self._pieces.put(piece)
                self._awake.set()
        finally:
            self._awake.set()

    # ---- output

    async def first(self) -> bytes:
        """Return the initial state. A reconnecting page gets only later changes."""
        if self._resumed:
            changed = [pair async for pair in self._since(self._position)]
            since = sorted(
                (pair for pair in changed if pair[0] not in self._changed), key=lambda pair: pair[1]
            )
            self._changed = dict(since) | self._changed
            self._progressed = dict.fromkeys(
                jid for jid in self._subscription.jids if jid not in self._changed
            )
            # changes without an event are sent at the next check
            self._sent = dict.fromkeys(self._initial_jobs(), (0, None))
            self._awake.set()
            return b"".join(self._site()) + f"id: {self._id()}\n\n".encode()
        events = [*(self._status(jid, None) for jid in self._initial_jobs()), *self._site()]
        # Until the last status has arrived, a reconnecting page starts from the beginning.
        return b"".join(events) + f"id: {self._id()}\n\n".encode()

    def _initial_jobs(self) -> list[str]:
        """Return the named jobs, or else the user's active jobs. A page about several users asks by
        itself.
        """
        rows = (
            []
            if self._named or self._subscription.wide
            else self._runs.engine.store.jobs(uid=self._subscription.uid, active=True, limit=BATCH)
        )
        return list(self._subscription.jids) or [row.jid for row in rows]

    async def _since(self, position: int) -> AsyncIterator[tuple[str, int]]:
        """Yield the jobs that changed after this position."""
        for jid in self._subscription.jids:
            entry = self._durable(jid)
            if entry is not None and entry.position > position:
                yield jid, entry.position
        before = None
        while not (self._named or self._subscription.wide):
            rows = self._runs.engine.store.jobs(
                uid=self._subscription.uid, before=before, limit=200
            )
            for row in rows:
                if row.position > position:
                    yield row.jid, row.position
            if not rows or rows[-1].position <= position:
                return
            before = rows[-1].position
            await asyncio.sleep(0)

    async def news(self, secs: float) -> bytes:
        """Return new events, or b"" after `secs` without any. Raises Refusal if the job's
        output cannot be followed.
        """
        try:
            async with asyncio.timeout(secs):
                await self._awake.wait()
        except TimeoutError:
            return b"".join(self._recheck())
        self._awake.clear()
        if self._subscription.wide and not self.left:
            await asyncio.sleep(max(0.0, self._next - time.monotonic()))
            self._next = time.monotonic() + PACE_SECS
        events = [
            *self._site(),
            *self._library(),
            *self._statuses(),
            *self._progress(),
            *self._output(),
        ]
        if self._changed or self._progressed or not self._pieces.empty():
            self._awake.set()
        return b"".join(events)

    def _site(self) -> Iterator[bytes]:
        """Yield the state of the site, at the start and when its drains have changed."""
        if self._drains is not None:
            drain = self._drains.get(SITE)
            self._drains = None
            said = None if drain is None else {"at": drain.at, "reason": drain.reason}
            yield _event("site", None, {"siteDrain": said})

    def _library(self) -> Iterator[bytes]:
        for simulation_type, name in self._stored:
            yield _event("library", None, {"simulationType": simulation_type, "name": name})
        self._stored.clear()

    def _statuses(self) -> Iterator[bytes]:
        if self._more:
            said, self._more = {"changed": self._more}, 0
            yield _event("many", self._id(), said)
        until = time.monotonic() + MAKING_SECS
        for jid, position in list(islice(self._changed.items(), BATCH)):
            del self._changed[jid]
            self._progressed.pop(jid, None)
            self._position = max(self._position, position)
            yield self._status(jid, self._id())
            if time.monotonic() > until:
                return  # the rest follows in the next block

    def _progress(self) -> Iterator[bytes]:
        for jid in list(islice(self._progressed, BATCH)):
            del self._progressed[jid]
            entry = self._durable(jid)
            report = self._runs.progress.of(entry.job) if entry is not None else None
            if entry is not None and entry.job.run is not None and report is not None:
                said = {
                    "computeJid": jid,
                    "computeJobSerial": entry.job.run.serial,
                    "parallelStatus": report,
                }
                yield _event("progress", None, said)

    def _output(self) -> Iterator[bytes]:
        if not self._pieces.empty():
            piece = self._pieces.get_nowait()
            self._place = TailPosition(
                piece.compute_job_serial, piece.attempt, piece.next_offset, piece.end
            )
            yield _event("log", self._id(), piece)
        elif self._following is not None and self._following.done():
            self._following.result()

    def _recheck(self) -> Iterator[bytes]:
        for jid, (_, look) in list(islice(self._sent.items(), CHECKED)):
            entry = self._durable(jid)
            if entry is None or not entry.job.busy:
                del self._sent[jid]
            elif self._looks(entry) != look:
                yield self._status(jid, None)

    def _status(self, jid: str, id_: str | None) -> bytes:
        entry = self._durable(jid)
        if entry is None:
            return _event("status", id_, missing(jid, "noRun"))
        reply, encoded = self._runs.shared_statuses.of(entry)
        self._sent.pop(jid, None)
        if not reply["over"]:
            self._sent[jid] = entry.position, _volatile_fields(reply)
            while len(self._sent) > max(CHECKED, len(self._named)):
                del self._sent[next(iter(self._sent))]
        return _event("status", id_, msgspec.Raw(encoded))

    def _looks(self, entry: DurableJob) -> Any:
        return _volatile_fields(self._runs.shared_statuses.of(entry, LOOKED_SECS)[0])

    def _durable(self, jid: str) -> DurableJob | None:
        """Return the job, or None if it does not exist or the reader may not see it."""
        return self._runs.engine.durable(jid) if self._sees(split_jid(jid)[0]) else None

    def _id(self) -> str:
        place = self._place
        output = f"{place.serial}-{place.attempt}-{place.offset}-{int(place.ended)}"
        return f"{self._position}-{output}-{self._digest}"


def _volatile_fields(reply: dict[str, Any]) -> Any:
    return reply["known"], reply.get("queueState"), reply.get("jobStatusMessage")


def _event(name: str, id_: str | None, data: Any) -> bytes:
    head = f"event: {name}\n" if id_ is None else f"id: {id_}\nevent: {name}\n"
    return head.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"
