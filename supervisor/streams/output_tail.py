"""Follows the output of one job as text, across its runs and attempts, from an offset, without losing or
repeating a byte.

Pieces are read on demand; nothing is read ahead.
"""

import asyncio
import codecs
from collections.abc import AsyncIterator

import msgspec

from ...db.events.state import Run
from ...protocol.api.requests import JobLog
from ...protocol.errors import Refusal
from ...protocol.wire.messages import LogChunk
from ..runs.service import RunService

#: Time limit of one request for output. After an empty answer faster than PROMPT_SECS a pause
#: follows.
WAIT_SECS, PROMPT_SECS, PAUSE_SECS = 15.0, 0.5, 0.25
#: Pause while the run has no such attempt or task.
ABSENT_SECS = 2.0
PIECE = 64 * 1024


class Piece(msgspec.Struct, frozen=True, rename="camel"):
    """`text` begins at byte `offset` of the attempt's stream and ends before `nextOffset`; `dropped`
    bytes before it are missing.

    attempt: 0 if no task was placed. end: this attempt has no more output.
    """

    compute_jid: str
    compute_job_serial: int
    stream: str
    offset: int
    next_offset: int
    dropped: int
    text: str
    end: bool
    attempt: int = 0


class TailPosition(msgspec.Struct, frozen=True):
    """Position of a reader: run serial, attempt (0: none was read), byte offset, and whether the end
    of the output was reported.
    """

    serial: int = 0
    attempt: int = 0
    offset: int = 0
    ended: bool = False


class Tail:
    """Follows one stream of a job. wanted: user, job, task and stream. tail: start with this many
    bytes of existing output; otherwise start at `place`, which is valid only for its own run.
    """

    def __init__(
        self,
        runs: RunService,
        wanted: JobLog,
        place: TailPosition,
        *,
        tail: int = 0,
    ) -> None:
        self._runs, self._wanted = runs, wanted
        self._uid, self._jid, self._stream = wanted.uid, wanted.compute_jid, wanted.stream
        self._serial, self._offset, self._ended = place.serial, place.offset, place.ended
        self._attempt = place.attempt
        #: this run was not there when the reader came, so it reads all of its attempts
        self._follows = False
        #: nothing can follow in this attempt, or it cannot be read any more
        self._over = place.ended
        self._tail = 0 if place.serial else tail
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield pieces without end: after a run, the next run's output follows from its beginning.
        Without a wanted attempt, a reader begins with the newest one, and each later attempt
        follows the end of the one before.
        A run without this attempt or task has no output. Raises Refusal("notFound") for the job.
        """
        loop, missing = asyncio.get_running_loop(), False
        with self._runs.watching(self._jid) as changed:
            while True:
                run = self._runs.job(self._uid, self._jid).job.run
                if run is not None and run.serial != self._serial:
                    self._follows = self._serial != 0 or missing
                    self._begin(run.serial)
                if run is not None and (self._over or self._begins(run)):
                    self._next_attempt(run)
                missing = run is None
                changed.clear()
                if run is None or self._ended or self._begins(run):
                    await changed.wait()
                    continue
                begun = loop.time()
                try:
                    piece = await self._next()
                except Refusal:
                    self._over = True
                    await _pause(changed, ABSENT_SECS)
                    continue
                if piece is not None:
                    yield piece
                elif loop.time() - begun < PROMPT_SECS:
                    await _pause(changed, PAUSE_SECS)

    def _begins(self, run: Run) -> bool:
        """Return whether the first attempt of a run that follows another one is awaited."""
        return self._follows and not self._attempt and not self._wanted.attempt and run.active

    def _next_attempt(self, run: Run) -> None:
        """Go to the attempt after this one, if there is one."""
        later = [a.number for a in run.attempts if a.number > self._attempt]
        if self._wanted.attempt == 0 and later:
            self._begin(run.serial, min(later))

    def _begin(self, serial: int, attempt: int = 0) -> None:
        self._tail = self._tail if self._serial == 0 else 0
        self._serial, self._attempt, self._offset = serial, attempt, 0
        self._ended = self._over = False
        self._decoder.reset()

    async def _next(self) -> Piece | None:
        """Return the next output, None if there is none now. Raises Refusal("notFound") if the run
        has no such attempt or task.
        """
        request = msgspec.structs.replace(
            self._wanted,
            compute_job_serial=self._serial,
            # an earlier attempt is read to its end before the newest one
            attempt=self._wanted.attempt or self._attempt,
            offset=self._offset,
            limit=PIECE,
            tail=self._tail,
            wait_secs=WAIT_SECS,
        )
        try:
            chunk, token = await self._runs.read_log(request)
        except Refusal as e:
            self._runs.counters.add("tail." + e.code)
            if e.code == "notFound":
                raise
            # A newer run has started, or the output cannot be read now.
            return None
        self._attempt = self._attempt if token is None else token.attempt
        self._over = chunk.end or token is None
        return self._piece(chunk)

    def _piece(self, chunk: LogChunk) -> Piece | None:
        self._tail = 0
        held = len(self._decoder.getstate()[0])
        text = ""
        if chunk.dropped or chunk.offset != self._offset:
            text, held = self._decoder.decode(b"", True), 0
            self._decoder.reset()
        text += self._decoder.decode(chunk.data, chunk.end)
        self._offset, self._ended = chunk.next_offset, chunk.end
        if not text and not chunk.dropped and not chunk.end:
            return None
        # A character may be split: it is sent and counted when it is complete.
        next_offset = chunk.next_offset - len(self._decoder.getstate()[0])
        return Piece(
            compute_jid=self._jid,
            compute_job_serial=self._serial,
            attempt=self._attempt,
            stream=self._stream,
            offset=chunk.offset - held,
            next_offset=next_offset,
            dropped=chunk.dropped,
            text=text,
            end=chunk.end,
        )


async def _pause(changed: asyncio.Event, secs: float) -> None:
    try:
        async with asyncio.timeout(secs):
            await changed.wait()
    except TimeoutError:
        return
