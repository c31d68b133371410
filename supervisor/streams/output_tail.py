"""Follows the output of one job as text, across its runs: from an offset on, without losing or
repeating a byte.

What it gives is taken piece by piece; nothing is read ahead of who takes it.
"""

import asyncio
import codecs
from collections.abc import AsyncIterator

import msgspec

from ...protocol.api.requests import JobLog
from ...protocol.errors import Refusal
from ...protocol.wire.messages import LogChunk, Stream
from ..runs.service import RunService

#: One question waits so long for output; an answer without any that came sooner is followed by a
#: pause.
WAIT_SECS, PROMPT_SECS, PAUSE_SECS = 15.0, 0.5, 0.25
PIECE = 64 * 1024


class Piece(msgspec.Struct, frozen=True, rename="camel"):
    """`text` begins at byte `offset` of the run's stream and goes on at `nextOffset`; `dropped`
    bytes before it are not there.

    end: nothing follows from this run.
    """

    compute_jid: str
    compute_job_serial: int
    stream: str
    offset: int
    next_offset: int
    dropped: int
    text: str
    end: bool


class TailPosition(msgspec.Struct, frozen=True):
    """Where a reader stands: in which run, at which byte, and whether it has heard of the end."""

    serial: int = 0
    offset: int = 0
    ended: bool = False


class Tail:
    """tail: begin with so many bytes of the end of what there is; else at `place`, which counts for
    its own run only.
    """

    def __init__(
        self,
        runs: RunService,
        uid: str,
        jid: str,
        stream: Stream,
        place: TailPosition,
        *,
        tail: int = 0,
    ) -> None:
        self._runs, self._uid, self._jid, self._stream = runs, uid, jid, stream
        self._serial, self._offset, self._ended = place.serial, place.offset, place.ended
        self._tail = 0 if place.serial else tail
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async def pieces(self) -> AsyncIterator[Piece]:
        """For ever: after the end of a run the next one's output follows from its beginning. Raises
        Refusal("notFound").
        """
        loop = asyncio.get_running_loop()
        with self._runs.watching(self._jid) as changed:
            while True:
                run = self._runs.job(self._uid, self._jid).job.run
                if run is not None and run.serial != self._serial:
                    self._begin(run.serial)
                changed.clear()
                if run is None or self._ended:
                    await changed.wait()
                    continue
                begun = loop.time()
                piece = await self._next()
                if piece is not None:
                    yield piece
                elif loop.time() - begun < PROMPT_SECS:
                    await _pause(changed)

    def _begin(self, serial: int) -> None:
        self._tail = self._tail if self._serial == 0 else 0
        self._serial, self._offset, self._ended = serial, 0, False
        self._decoder.reset()

    async def _next(self) -> Piece | None:
        request = JobLog(
            uid=self._uid,
            compute_jid=self._jid,
            compute_job_serial=self._serial,
            stream=self._stream,
            offset=self._offset,
            limit=PIECE,
            tail=self._tail,
            wait_secs=WAIT_SECS,
        )
        try:
            chunk, _ = await self._runs.read_log(request)
        except Refusal as e:
            if e.code == "notFound":
                raise
            # a newer run has begun, or nobody can read it just now
            self._runs.counters.add("tail." + e.code)
            return None
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
        # a character may be cut in two: it is told, and counted, when it is whole
        next_offset = chunk.next_offset - len(self._decoder.getstate()[0])
        return Piece(
            compute_jid=self._jid,
            compute_job_serial=self._serial,
            stream=self._stream,
            offset=chunk.offset - held,
            next_offset=next_offset,
            dropped=chunk.dropped,
            text=text,
            end=chunk.end,
        )


async def _pause(changed: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(PAUSE_SECS):
            await changed.wait()
    except TimeoutError:
        return
