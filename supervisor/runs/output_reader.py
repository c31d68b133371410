"""Reading what a job wrote: from its agent while that is connected, from its task driver's evidence
otherwise. One shape of answer.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec

from ...db.events.state import Attempt, Job, Task
from ...drivers.contracts import TaskDriver
from ...protocol.api.requests import JobLog
from ...protocol.errors import Refusal
from ...protocol.ids import base62
from ...protocol.jobs.status import PURGED
from ...protocol.wire.messages import FileChunk, LogChunk, ReadFile, ReadLog
from ..connections.hub import Hub

#: A place in a file, by a note that its job may have written.
_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
#: On top of the time a reader is willing to wait for data.
ANSWER_SECS = 10.0
#: Where no agent watches the files of a task that runs, they are looked at this often for a reader
#: who waits.
LOOK_SECS = 0.25
#: An agent gives no more of a file at once.
MOST_BYTES = 512 * 1024
_NO_FILE = ("notFound", "forbidden", "badRequest")
_ADVICE = {"advice": "'jobscribe job tasks JOB' shows which there are"}


class OutputReader:
    """Answers readers of logs. Holds nothing."""

    def __init__(
        self,
        hub: Hub,
        tasks: Mapping[str, TaskDriver],
        entropy: Callable[[int], bytes],
        far: Callable[[Task], str | None] = lambda task: None,
    ) -> None:
        """far: where the files of a task are, if only its agent can look there for as long as it is
        connected (None: its driver can).
        """
        self.hub, self._tasks, self._entropy, self._far = hub, tasks, entropy, far

    async def read(self, job: Job, request: JobLog) -> LogChunk:
        """Bytes of one stream; `end` once nothing can follow. Raises Refusal."""
        task = asked_for(job, request)
        if job.run is not None and job.run.status == PURGED:
            task = None  # its files may still lie somewhere, and are nobody's any more
        if task is None:
            over = job.run is None or not job.run.active
            return LogChunk(op_id="0" * 32, offset=0, next_offset=0, data=b"", end=over)
        offset = request.offset
        if request.tail:
            offset = max(0, await self._size(task, request.stream) - request.tail)
        if not _over(task) and task.agent_key in self.hub.connections:
            return await self._from_agent(task, request, offset)
        if not _over(task) and task.agent_key.kind == "container":
            await self._grown(task, request, offset)
        return await self._from_evidence(task, request, offset)

    async def _grown(self, task: Task, request: JobLog, offset: int) -> None:
        """Returns when there is something to read, when the task is over, or when the reader does
        not want to wait any longer.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + request.wait_secs
        while loop.time() < until and await self._size(task, request.stream) <= offset:
            if (await self._evidence(task, "exit.json", 0, 1))[1]:
                return
            await asyncio.sleep(min(LOOK_SECS, max(0.0, until - loop.time())))

    async def _from_agent(self, task: Task, request: JobLog, offset: int) -> LogChunk:
        op = ReadLog(
            op_id=base62(self._entropy(32), 32),
            token=task.token,
            stream=request.stream,
            offset=offset,
            limit=request.limit,
            wait_secs=request.wait_secs,
        )
        return await self.hub.ask(task.agent_key, op, request.wait_secs + ANSWER_SECS, LogChunk)

    async def _from_evidence(self, task: Task, request: JobLog, offset: int) -> LogChunk:
        while True:
            dropped = await self._dropped(task, request.stream)
            chunk = await self._read(task, request, offset, dropped)
            # its keeper may be at work still: it notes what it drops before it is gone, so bytes
            # read before a new note are real
            if await self._dropped(task, request.stream) == dropped:
                return chunk

    async def _read(
        self, task: Task, request: JobLog, offset: int, dropped: tuple[int, int] | None
    ) -> LogChunk:
        skipped = 0
        if dropped is not None and dropped[0] <= offset < dropped[1]:
            skipped, offset = dropped[1] - offset, dropped[1]
        limit = request.limit
        if dropped is not None and offset < dropped[0] < dropped[1]:
            limit = min(limit, dropped[0] - offset)
        data, size = await self._evidence(task, f"{request.stream}.log", offset, limit)
        next_offset = offset + len(data)
        return LogChunk(
            op_id="0" * 32,
            offset=offset,
            next_offset=next_offset,
            data=data,
            dropped=skipped,
            end=_over(task) and next_offset >= size,
        )

    async def _evidence(self, task: Task, name: str, offset: int, limit: int) -> tuple[bytes, int]:
        folder = self._far(task) if task.agent_key in self.hub.connections else None
        if folder is not None:
            return await self._through_agent(task, folder, name, offset, limit)
        tasks = self._tasks.get(task.agent_key.driver)
        if tasks is None:
            raise Refusal(
                "agentUnavailable", f"the driver {task.agent_key.driver} is not configured here"
            )
        return await tasks.evidence(task.agent_key, task.token, name, offset, limit)

    async def _through_agent(
        self, task: Task, folder: str, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        """A job may have put anything in the place of a file; that is nothing."""
        op = ReadFile(
            op_id=base62(self._entropy(32), 32),
            run_dir=folder,
            name=name,
            offset=offset,
            limit=min(limit, MOST_BYTES),
        )
        try:
            piece = await self.hub.ask(task.agent_key, op, ANSWER_SECS, FileChunk)
        except Refusal as e:
            if e.code not in _NO_FILE:
                raise
            return b"", 0
        return piece.data, piece.size

    async def _size(self, task: Task, stream: str) -> int:
        return (await self._evidence(task, f"{stream}.log", 0, 1))[1]

    async def _dropped(self, task: Task, stream: str) -> tuple[int, int] | None:
        data, _ = await self._evidence(task, f"{stream}.log.dropped", 0, 4096)
        if not data:
            return None
        try:
            said = msgspec.json.decode(data, type=_Dropped)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Refusal(
                "notFound",
                f"what was dropped of {stream}.log is not known: its note was overwritten",
            ) from None
        return said.start, said.end


class _Dropped(msgspec.Struct, frozen=True):
    start: _Offset = msgspec.field(name="from")
    end: _Offset = msgspec.field(name="to")


def _over(task: Task) -> bool:
    """Can nothing follow? Of one that is kept for debugging nothing runs any more, however long it
    is kept.
    """
    return not task.live or task.held is not None


def asked_for(job: Job, request: JobLog) -> Task | None:
    """Whose output is asked for; None where nothing was placed yet. Raises Refusal("notFound")."""
    run, attempt = job.run, request.attempt
    if run is None or not run.attempts:
        return None
    chosen: Attempt | None = (
        run.attempts[-1]
        if attempt == 0
        else next((a for a in run.attempts if a.number == attempt), None)
    )
    if chosen is None:
        raise Refusal("notFound", f"the run has no attempt {attempt}", _ADVICE)
    if request.role is None:
        return chosen.telling or (chosen.tasks[0] if chosen.tasks else None)
    if not chosen.tasks:
        raise Refusal("notFound", f"the tasks of attempt {chosen.number} are not kept any more")
    found = next(
        (t for t in chosen.tasks if (t.token.role, t.token.index) == (request.role, request.index)),
        None,
    )
    if found is None:
        raise Refusal("notFound", f"the run has no task {request.role}/{request.index}", _ADVICE)
    return found
