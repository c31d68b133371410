"""Read the output of a task: from its connected agent, else from its driver's evidence files."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec

from ...db.events.state import Attempt, Job, Task
from ...drivers.contracts import TaskDriver
from ...protocol.api.requests import JobCore, JobLog
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKind, base62
from ...protocol.jobs.core_report import CoreReport
from ...protocol.jobs.status import PURGED
from ...protocol.wire.messages import FileChunk, LogChunk, ReadFile, ReadLog
from ..connections.hub import Hub

#: Offset in a file, read from a file that the job may have written.
_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
#: Time limit of an agent's answer, on top of the time that the reader waits for data.
ANSWER_SECS = 10.0
#: Polling interval for the files of a running task while its agent is not connected.
LOOK_SECS = 0.25
#: Largest piece of a file that an agent returns at once.
MOST_BYTES = 512 * 1024
_NO_FILE = ("notFound", "forbidden", "badRequest")
_ADVICE = {"advice": "'jobscribe job tasks JOB' lists attempts and tasks"}


class OutputReader:
    """Reads the output of tasks. Stateless."""

    def __init__(
        self,
        hub: Hub,
        tasks: Mapping[str, TaskDriver],
        entropy: Callable[[int], bytes],
        far: Callable[[Task], str | None] = lambda task: None,
    ) -> None:
        """far: returns the evidence folder of a task that only its connected agent can read, or
        None if the driver can read it.
        """
        self.hub, self._tasks, self._entropy, self._remote_folder = hub, tasks, entropy, far

    async def read(self, job: Job, request: JobLog) -> LogChunk:
        """Return a piece of one stream. `end` is set if nothing can follow. Raises Refusal."""
        task = asked_for(job, request)
        if job.run is not None and job.run.status == PURGED:
            task = None  # leftover files must not be read
        if task is None:
            over = job.run is None or not job.run.active
            return LogChunk(op_id="0" * 32, offset=0, next_offset=0, data=b"", end=over)
        offset = request.offset
        if request.tail:
            offset = max(0, await self._size(task, request.stream) - request.tail)
        if not _over(task) and task.agent_key in self.hub.connections:
            return await self._from_agent(task, request, offset)
        if not _over(task) and task.agent_key.kind == AgentKind.CONTAINER:
            await self._wait_for_data(task, request, offset)
        return await self._from_evidence(task, request, offset)

    async def read_core(self, job: Job, request: JobCore) -> tuple[bytes, int]:
        """Return a piece of a core file, and the size of the file. Only reported files are read.
        Raises Refusal.
        """
        task = asked_for(job, request)
        purged = job.run is not None and job.run.status == PURGED
        report = task.exit.core if task is not None and task.exit is not None else None
        names = [f.name for f in report.files] if isinstance(report, CoreReport) else []
        if task is None or purged or request.name not in names:
            raise Refusal(
                "notFound",
                f"the task has no core file {request.name!a}",
                {"advice": f"jobscribe core list {job.jid}"},
            )
        data, size = await self._evidence(
            task, f"cores/{request.name}", request.offset, request.limit
        )
        if not size:
            raise Refusal(
                "notFound",
                f"{request.name} was removed: core files are kept for `retention.cores_secs`",
            )
        return data, size

    async def _wait_for_data(self, task: Task, request: JobLog, offset: int) -> None:
        """Return when data after `offset` exists, the task has ended, or `wait_secs` have
        passed.
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
            # the keeper may be dropping output now; it notes the range first, so the bytes are
            # real if the note did not change
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
        folder = self._remote_folder(task) if task.agent_key in self.hub.connections else None
        if folder is not None:
            return await self._read_by_agent(task, folder, name, offset, limit)
        tasks = self._tasks.get(task.agent_key.driver)
        if tasks is None:
            raise Refusal(
                "agentUnavailable", f"the driver {task.agent_key.driver} is not configured here"
            )
        return await tasks.evidence(task.agent_key, task.token, name, offset, limit)

    async def _read_by_agent(
        self, task: Task, folder: str, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        """Return bytes and size of a file; (b"", 0) if it is missing or not a plain file."""
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
            dropped = msgspec.json.decode(data, type=_Dropped)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Refusal(
                "notFound",
                f"cannot read {stream}.log: the file {stream}.log.dropped is damaged",
            ) from None
        return dropped.start, dropped.end


class _Dropped(msgspec.Struct, frozen=True):
    start: _Offset = msgspec.field(name="from")
    end: _Offset = msgspec.field(name="to")


def _over(task: Task) -> bool:
    """Return whether no output can follow. In a task held for debugging nothing runs any more."""
    return not task.live or task.held is not None


def asked_for(job: Job, request: JobLog | JobCore) -> Task | None:
    """Return the task that the request selects; None if no task was placed yet.

    Raises Refusal("notFound").
    """
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
        raise Refusal(
            "notFound", f"the tasks of attempt {chosen.number} were removed with their output"
        )
    found = next(
        (t for t in chosen.tasks if (t.token.role, t.token.index) == (request.role, request.index)),
        None,
    )
    if found is None:
        raise Refusal("notFound", f"the run has no task {request.role}/{request.index}", _ADVICE)
    return found
