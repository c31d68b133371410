"""News for one page: status, progress and one job's output as server-sent events, resumable,
however slowly they are taken.

Statuses are levels: the newest of a job is told, not each. They go out in the order of the log, and
the id of an event says up to where everything was told, so that who comes back gets what changed
since. Output waits for its reader. Only what its reader has room for is made, so a slow one costs a
few names.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec

from ...db.events.state import Job
from ...protocol.errors import Refusal
from ...protocol.ids import split_jid
from ...protocol.wire.messages import Stream
from ..core.status.run_status import missing
from ..engine.decision_loop import DurableJob
from ..runs.service import RunService
from .output_tail import Piece, Tail, TailPosition

KEEPALIVE_SECS = 15.0
#: What changes without an event (an agent that is away, the place in a queue) is looked at so
#: often.
LOOK_SECS = 5.0
LIFE_SECS = 12 * 3600.0
#: Streams of one user, and in all.
PER_USER, IN_ALL = 64, 4_096
#: Statuses made in one go; jobs of a user that are looked at again and again.
BATCH, LOOKED_AT = 64, 64
#: and so long at most, seconds.
MAKING_SECS = 0.01
#: At the end, streams have so long to say so.
CLOSE_SECS = 1.0

_ID = re.compile(r"([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,19})-([01])-([0-9a-f]{16})", re.ASCII)
_NO_NEWS = b": nothing new\n\n"


class Subscription(msgspec.Struct, frozen=True):
    """What a page wants to hear of: these jobs (none: all of the user's), and perhaps the output of
    one.

    tail: so many bytes of what that has already; 0: all. last_id: of the last event that it has, if
    it comes back.
    """

    uid: str
    jids: tuple[str, ...] = ()
    logs: str | None = None
    stream: Stream = "stdout"
    tail: int = 0
    last_id: str = ""

    @property
    def digest(self) -> str:
        """An id counts for the same wish only."""
        said = "|".join(
            (self.uid, *sorted(self.jids), "", self.logs or "", self.stream if self.logs else "")
        )
        return blake2b(said.encode(), digest_size=8).hexdigest()


class LiveUpdates:
    """One per process. `changed` and `progressed` are told of every job's changes."""

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
        self._readers: dict[str, set[Reader]] = {}
        self._closing = False
        self._nobody = asyncio.Event()
        #: position up to which `changed` has told everything
        self.position = 0

    def sizes(self) -> dict[str, int]:
        return {"streams": sum(map(len, self._readers.values()))}

    def changed(self, job: Job, position: int) -> None:
        """A job changed durably. Positions grow."""
        self.position = position
        for reader in self._readers.get(split_jid(job.jid)[0], ()):
            reader.changed(job.jid, position)

    def progressed(self, jid: str) -> None:
        for reader in self._readers.get(split_jid(jid)[0], ()):
            reader.progressed(jid)

    @contextmanager
    def reader(self, wish: Subscription) -> Iterator["Reader"]:
        """Somebody who listens. Raises Refusal (tooManyRequests, draining, notFound)."""
        if self._closing:
            raise Refusal("draining", "the supervisor is stopping")
        mine = self._readers.get(wish.uid, set())
        if len(mine) >= PER_USER or sum(map(len, self._readers.values())) >= IN_ALL:
            raise Refusal(
                "tooManyRequests",
                f"{len(mine)} streams of this user are open; a user may have {PER_USER}",
            )
        if wish.logs is not None:
            self._runs.job(wish.uid, wish.logs)
        reader = Reader(self._runs, wish, self.position)
        self._readers.setdefault(wish.uid, set()).add(reader)
        try:
            yield reader
        finally:
            reader.close()
            self._readers[wish.uid].discard(reader)
            if not self._readers[wish.uid]:
                del self._readers[wish.uid]
            if not self._readers:
                self._nobody.set()

    async def stream(self, reader: "Reader") -> AsyncGenerator[bytes, None]:
        """Blocks of events, made when they are taken; ends when the reader has left, is too old, or
        the supervisor stops.
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
                yield news or _NO_NEWS
                silent_since = loop.time()

    async def close(self) -> None:
        """Have every stream say that it ends, and end."""
        self._closing = True
        if not self._readers:
            return
        for readers in self._readers.values():
            for reader in readers:
                reader.wake()
        try:
            async with asyncio.timeout(CLOSE_SECS):
                await self._nobody.wait()
        except TimeoutError:
            return  # who does not read is cut off with its connection


class Reader:
    """What one page does not know yet."""

    def __init__(self, runs: RunService, wish: Subscription, position: int) -> None:
        self._runs, self._wish = runs, wish
        self._digest = wish.digest
        self._named = frozenset(wish.jids)
        self._changed: dict[str, int] = {}
        self._progressed: dict[str, None] = {}
        #: of jobs that are not over: the position that was told, and what may change without an
        #: event
        self._told: dict[str, tuple[int, Any]] = {}
        self._awake = asyncio.Event()
        self.left = False
        resumed = _ID.fullmatch(wish.last_id)
        self._resumed = resumed is not None and resumed[5] == self._digest
        self._position, self._place = position, TailPosition()
        if self._resumed:
            assert resumed is not None
            # who was told more than there is now reads on in a root that was restored from a copy
            self._position = min(int(resumed[1]), position)
            self._place = TailPosition(int(resumed[2]), int(resumed[3]), resumed[4] == "1")
        self._pieces: asyncio.Queue[Piece] = asyncio.Queue(1)
        self._following = (
            None
            if wish.logs is None
            else asyncio.get_running_loop().create_task(self._follow(wish.logs))
        )

    # ---- what happens

    def changed(self, jid: str, position: int) -> None:
        if self._named and jid not in self._named:
            return
        if jid in self._told and self._told[jid][0] >= position:
            return
        # in the order of the log: an event's id says that everything before it was told
        self._changed.pop(jid, None)
        self._changed[jid] = position
        self._awake.set()

    def progressed(self, jid: str) -> None:
        if not self._named or jid in self._named:
            self._progressed[jid] = None
            self._awake.set()

    def wake(self) -> None:
        self._awake.set()

    def leave(self) -> None:
        """Its connection is gone."""
        self.left = True
        self._awake.set()

    def close(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def _follow(self, jid: str) -> None:
        wish = self._wish
        try:
            async for piece in Tail(
                self._runs, wish.uid, jid, wish.stream, self._place, tail=wish.tail
            ).pieces():
                await self._pieces.put(piece)
                self._awake.set()
        finally:
            self._awake.set()

    # ---- what is told

    async def first(self) -> bytes:
        """Where everything stands; to one who comes back, only what changed meanwhile follows."""
        if self._resumed:
            changed = [pair async for pair in self._since(self._position)]
            since = sorted(
                (pair for pair in changed if pair[0] not in self._changed), key=lambda pair: pair[1]
            )
            self._changed = dict(since) | self._changed
            self._progressed = dict.fromkeys(
                jid for jid in self._wish.jids if jid not in self._changed
            )
            # what can change without an event may have done so meanwhile, and is told when it is
            # looked at
            self._told = dict.fromkeys(self._standing(), (0, None))
            self._awake.set()
            return f"id: {self._id()}\n\n".encode()
        events = [self._status(jid, None) for jid in self._standing()]
        # until the last of them has come, who comes back begins anew
        return b"".join(events) + f"id: {self._id()}\n\n".encode()

    def _standing(self) -> list[str]:
        """The jobs that were named, else those of the user that are not over."""
        rows = (
            []
            if self._named
            else self._runs.engine.store.jobs(uid=self._wish.uid, active=True, limit=BATCH)
        )
        return list(self._wish.jids) or [row.jid for row in rows]

    async def _since(self, position: int) -> AsyncIterator[tuple[str, int]]:
        """Jobs that changed after this position."""
        for jid in self._wish.jids:
            entry = self._durable(jid)
            if entry is not None and entry.position > position:
                yield jid, entry.position
        before = None
        while not self._named:
            rows = self._runs.engine.store.jobs(uid=self._wish.uid, before=before, limit=200)
            for row in rows:
                if row.position > position:
                    yield row.jid, row.position
            if not rows or rows[-1].position <= position:
                return
            before = rows[-1].position
            await asyncio.sleep(0)

    async def news(self, secs: float) -> bytes:
        """What there is to tell, at the latest after `secs`; nothing then. Raises Refusal when its
        output cannot be followed.
        """
        try:
            async with asyncio.timeout(secs):
                await self._awake.wait()
        except TimeoutError:
            return b"".join(self._looked_again())
        self._awake.clear()
        events = [*self._statuses(), *self._progress(), *self._output()]
        if self._changed or self._progressed or not self._pieces.empty():
            self._awake.set()
        return b"".join(events)

    def _statuses(self) -> Iterator[bytes]:
        until = time.monotonic() + MAKING_SECS
        for jid, position in list(islice(self._changed.items(), BATCH)):
            del self._changed[jid]
            self._progressed.pop(jid, None)
            self._position = max(self._position, position)
            yield self._status(jid, self._id())
            if time.monotonic() > until:
                return  # the others have their turn when these are taken

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
            self._place = TailPosition(piece.compute_job_serial, piece.next_offset, piece.end)
            yield _event("log", self._id(), piece)
        elif self._following is not None and self._following.done():
            self._following.result()

    def _looked_again(self) -> Iterator[bytes]:
        for jid, (_, look) in list(islice(self._told.items(), LOOKED_AT)):
            entry = self._durable(jid)
            if entry is None or not entry.job.busy:
                del self._told[jid]
            elif _look(self._runs.describe(entry)) != look:
                yield self._status(jid, None)

    def _status(self, jid: str, id_: str | None) -> bytes:
        entry = self._durable(jid)
        if entry is None:
            return _event("status", id_, missing(jid, "noRun"))
        reply = self._runs.describe(entry)
        self._told.pop(jid, None)
        if not reply["over"]:
            self._told[jid] = entry.position, _look(reply)
            while len(self._told) > max(LOOKED_AT, len(self._named)):
                del self._told[next(iter(self._told))]
        return _event("status", id_, reply)

    def _durable(self, jid: str) -> DurableJob | None:
        """None for what is not there and for what is not theirs."""
        return self._runs.engine.durable(jid) if split_jid(jid)[0] == self._wish.uid else None

    def _id(self) -> str:
        return f"{self._position}-{self._place.serial}-{self._place.offset}-{int(self._place.ended)}-{self._digest}"


def _look(reply: dict[str, Any]) -> Any:
    return reply["known"], reply.get("queueState"), reply.get("jobStatusMessage")


def _event(name: str, id_: str | None, data: Any) -> bytes:
    head = f"event: {name}\n" if id_ is None else f"id: {id_}\nevent: {name}\n"
    return head.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"
