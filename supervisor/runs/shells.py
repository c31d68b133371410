"""Shells in tasks: who may open one, which are open, and their records in the audit trail.

The shells run with agents and drivers; here are only their ids. A restart of the supervisor forgets
them: the far end hangs up, because nobody uses it any more.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import msgspec

from ...db.events.events import AuditEvent, ShellClosed, ShellOpened
from ...db.events.state import Job, Task
from ...drivers.contracts import TaskDriver
from ...protocol.api.requests import JobLog, ShellOpen, ShellUse
from ...protocol.clusters import host_list
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, AgentKind, Token, base62
from ...protocol.jobs.status import PURGED
from ...protocol.wire.messages import RELAY_BYTES, OpenShell, ShellIo, ShellOutput
from ...runtime.shells.session import IDLE_SECS
from ..access.audit import AuditTrail
from ..access.principal import Principal
from .output_reader import asked_for
from .service import RunService

#: Shells of one user, and of all users, at once.
MAX_OF_USER, MAX_SHELLS = 8, 256
#: Wait for output between two parts of a stream (seconds); last bytes of a stream that are kept for the
#: next stream of this shell.
STREAM_WAIT_SECS, REPLAY_BYTES = 15.0, 256 * 1024
#: An unused shell is on record as abandoned after this time: the far end has hung up before.
ABANDONED_SECS = IDLE_SECS + 15.0
DISABLED = "this site does not permit shells in tasks (setting auth.shells); ask an administrator"
RELEASED = (
    "the task has ended, so nothing is reserved for a shell in a container; submit with --debug-hold to keep a failed"
    " task"
)
ENDED = "the task has ended, so it has no processes; a running one is needed"
AFTER_END = (
    "'jobscribe job logs', 'core list' and 'profile list' show what it left, 'jobscribe job why' how"
    " it ended"
)
GONE = (
    "the shell has ended: supervisor or agent was restarted, or nobody used it for a while; the job"
    " goes on: open another shell"
)


class _Shell(msgspec.Struct):
    """An open shell. began, used: seconds of the event loop's clock. recorded: the host of which it
    records a profile. sent: the last bytes that its stream has sent, up to the offset `sent_to`.
    """

    uid: str
    jid: str
    token: Token
    driver: TaskDriver
    place: AgentKey
    began: float
    used: float
    #: set when the first request to open it is answered
    started: asyncio.Event
    recorded: str | None = None
    sent: bytearray = msgspec.field(default_factory=bytearray)
    sent_to: int = 0
    #: number of the newest stream, which ends the earlier ones
    stream: int = 0


class Shells:
    """The shells that are open through this supervisor."""

    def __init__(
        self,
        runs: RunService,
        drivers: Mapping[str, TaskDriver],
        audit: AuditTrail,
        wall: Callable[[], float],
        entropy: Callable[[int], bytes],
        *,
        enabled: bool,
        recordings: int = 2,
    ) -> None:
        self._runs, self._drivers, self._audit = runs, drivers, audit
        self._wall, self._entropy, self._enabled = wall, entropy, enabled
        self._recordings = recordings
        self._open: dict[str, _Shell] = {}
        #: those that have ended: of two requests at once, the second one gets the end, too
        self._ended: dict[str, _Shell] = {}
        self._sweeper: asyncio.Task[None] | None = None

    def sizes(self) -> dict[str, int]:
        return {"shells": len(self._open)}

    async def open(self, actor: Principal, peer: str, request: ShellOpen) -> dict[str, Any]:
        """Open a shell, which is on record before it starts. Raises Refusal."""
        task = self._task(request)
        if not self._enabled:
            raise Refusal("forbidden", DISABLED)
        driver = self._drivers.get(task.agent_key.driver)
        if driver is None:
            raise Refusal("agentUnavailable", f"driver {task.agent_key.driver} is not configured")
        id_, name = request.shell_id, f"{task.token.role}/{task.token.index}"
        opened = {"state": "ok", "shellId": id_, "task": name, "attempt": task.token.attempt}
        if await self._is_open(request, task):
            return opened
        self._check_count(request.uid)
        recorded = self._recorded(request, task)
        now, uid, jid = asyncio.get_running_loop().time(), request.uid, request.compute_jid
        shell = self._open[id_] = _Shell(
            uid, jid, task.token, driver, task.agent_key, now, now, asyncio.Event(), recorded
        )
        try:
            await self._start(shell, request, _opened(self._wall(), actor, peer, request, task))
        finally:
            shell.started.set()
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
        return opened

    async def _start(self, shell: _Shell, request: ShellOpen, opened: AuditEvent) -> None:
        id_ = request.shell_id
        try:
            await self._audit.append(opened)
        except BaseException:
            self._open.pop(id_, None)
            raise
        op = OpenShell(
            op_id=base62(self._entropy(32), 32),
            token=shell.token,
            shell_id=id_,
            term=request.term,
            rows=request.rows,
            cols=request.cols,
            program=msgspec.UNSET if request.program is None else request.program,
        )
        try:
            await shell.driver.shell(shell.place, op)
        except BaseException:
            await self._closed(id_, "refused")
            raise

    async def use(self, request: ShellUse) -> dict[str, Any]:
        """Type into a shell and read its output. Raises Refusal."""
        shell = await self._started(request.uid, request.compute_jid, request.shell_id)
        op = ShellIo(
            op_id=base62(self._entropy(32), 32),
            shell_id=request.shell_id,
            input_at=request.input_at,
            input=request.input,
            offset=request.offset,
            limit=request.limit,
            wait_secs=request.wait_secs,
            rows=request.rows,
            cols=request.cols,
            close=request.close,
        )
        return _body(await self._exchange(shell, op))

    async def output(
        self, uid: str, jid: str, shell_id: str, offset: int
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the output from this offset on, as answers of `use`; an empty one from time to time.
        Ends with the shell, or when a newer stream of it begins. Raises Refusal.

        Bytes that the reader has not received when its connection breaks are sent again, as far as
        they are kept; a later `offset` says how many are missing.
        """
        shell = await self._started(uid, jid, shell_id)
        shell.stream += 1
        number = shell.stream
        if offset > shell.sent_to:  # output before it was read by `use`, or the far end refuses
            shell.sent_to = offset
            shell.sent.clear()
        data = bytes(shell.sent[max(0, len(shell.sent) - (shell.sent_to - offset)) :])
        # the first one at once, so that the reader knows that the stream has begun
        yield _body(ShellOutput(op_id="", offset=shell.sent_to - len(data), data=data))
        while shell.stream == number:
            shell.used = asyncio.get_running_loop().time()
            op = ShellIo(
                op_id=base62(self._entropy(32), 32),
                shell_id=shell_id,
                offset=shell.sent_to,
                limit=RELAY_BYTES,
                wait_secs=STREAM_WAIT_SECS,
            )
            answer = await self._exchange(shell, op)
            if shell.stream != number:
                return  # the newer stream has not acknowledged this output
            shell.sent += answer.data
            del shell.sent[:-REPLAY_BYTES]
            shell.sent_to = answer.offset + len(answer.data)
            yield _body(answer)
            if answer.end:
                return

    async def _started(self, uid: str, jid: str, shell_id: str) -> _Shell:
        """Return an open shell, which is used now. Raises Refusal("notFound")."""
        shell = self._open.get(shell_id) or self._ended.get(shell_id)
        if shell is None or (shell.uid, shell.jid) != (uid, jid):
            raise Refusal("notFound", GONE)
        # otherwise the far end does not know it yet
        await shell.started.wait()
        shell.used = asyncio.get_running_loop().time()
        return shell

    async def _exchange(self, shell: _Shell, op: ShellIo) -> ShellOutput:
        """Send a request to the far end, and record the end of the shell. Raises Refusal."""
        try:
            answer = await shell.driver.shell(shell.place, op)
        except Refusal as e:
            if e.code not in ("notFound", "agentUnavailable"):
                raise
            self._ended.pop(op.shell_id, None)
            await self._closed(op.shell_id, "agentGone")
            raise Refusal("notFound", GONE) from None
        if answer.end:
            await self._closed(op.shell_id, "exit", answer)
        return answer

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for id_ in list(self._open):
            with contextlib.suppress(Refusal):
                await self._closed(id_, "supervisorStopped")

    # ---- inside

    def _task(self, request: ShellOpen) -> Task:
        job = self._runs.job(request.uid, request.compute_jid).job
        chosen = JobLog(
            uid=request.uid,
            compute_jid=request.compute_jid,
            role=request.role,
            index=request.index,
            attempt=request.attempt,
        )
        task = None if job.run is None or job.run.status == PURGED else asked_for(job, chosen)
        if task is None:
            raise Refusal("notReady", f"no task of {request.compute_jid} can be entered now")
        program = None if request.program is None else request.program.name
        _check_node(request, task)
        if program == "ssh":
            _check_ssh(job, task)
        if task.agent_key.kind == AgentKind.CONTAINER and not task.live:
            raise Refusal("notHere", RELEASED)
        if program not in (None, "ssh") and not task.live:
            raise Refusal("alreadyEnded", ENDED, {"advice": AFTER_END})
        return task

    async def _is_open(self, request: ShellOpen, task: Task) -> bool:
        """Return whether this request repeats an earlier one. Raises Refusal for an id in use."""
        shell = self._open.get(request.shell_id)
        if shell is None:
            return False
        if (shell.uid, shell.jid, shell.token) != (request.uid, request.compute_jid, task.token):
            raise Refusal("badRequest", "another shell has this shellId; choose a random one")
        await shell.started.wait()
        if request.shell_id not in self._open:
            raise Refusal("notFound", GONE)
        return True

    def _check_count(self, uid: str) -> None:
        own = sum(s.uid == uid for s in self._open.values())
        if own >= MAX_OF_USER or len(self._open) >= MAX_SHELLS:
            raise Refusal(
                "tooManyRequests", f"{own} shells of {uid} are open; leave one, then try again"
            )

    def _recorded(self, request: ShellOpen, task: Task) -> str | None:
        """Return the host of a recording, None for other programs. Raises Refusal for too many."""
        if request.program is None or request.program.name != "profile":
            return None
        host = request.program.node or task.host or task.agent_key.host
        if sum(s.recorded == host for s in self._open.values()) >= self._recordings:
            raise Refusal(
                "tooManyRequests",
                f"{self._recordings} profiles are recorded on {host} already, which is the limit"
                " (setting debugger.recordings); wait for their end, then try again",
            )
        return host

    async def _closed(self, id_: str, reason: str, answer: ShellOutput | None = None) -> None:
        """Record the end of a shell, once."""
        shell = self._open.pop(id_, None)
        if shell is not None:
            if reason == "exit":
                self._ended[id_] = shell
                if len(self._ended) > MAX_SHELLS:
                    del self._ended[next(iter(self._ended))]
            await self._audit.append(
                ShellClosed(
                    at=self._wall(),
                    subject=shell.uid,
                    jid=shell.jid,
                    shell=id_[:8],
                    reason=reason,
                    code=None if answer is None else answer.code,
                    signal=None if answer is None else answer.signal,
                    seconds=round(asyncio.get_running_loop().time() - shell.began, 3),
                )
            )

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(ABANDONED_SECS / 5)
            now = asyncio.get_running_loop().time()
            left = [i for i, s in self._open.items() if now - s.used > ABANDONED_SECS]
            self._ended = {i: s for i, s in self._ended.items() if now - s.used <= IDLE_SECS}
            await asyncio.gather(*(self._abandon(id_) for id_ in left))

    async def _abandon(self, id_: str) -> None:
        """Hang up a shell that nobody uses, and record its end. A program that records does not end
        by itself.
        """
        shell = self._open.get(id_)
        if shell is None:  # it has ended since it was found
            return
        op = ShellIo(op_id=base62(self._entropy(32), 32), shell_id=id_, close=True)
        with contextlib.suppress(Refusal):  # the far end is gone, or hangs up by itself
            await shell.driver.shell(shell.place, op)
        with contextlib.suppress(Refusal):
            await self._closed(id_, "abandoned")


def _body(answer: ShellOutput) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(answer)
    return {k: v for k, v in body.items() if k not in ("op", "opId")}


def _check_node(request: ShellOpen, task: Task) -> None:
    """Raises Refusal("badRequest") for a node on which the task does not run."""
    node = None if request.program is None else request.program.node or None
    if node is None:
        return
    try:
        nodes = host_list.expand(task.host or "")
    except ValueError:
        nodes = []
    if node not in nodes:
        raise Refusal(
            "badRequest",
            f"the task does not run on {node}; it runs on {task.host or 'no node yet'}",
        )


def _check_ssh(job: Job, task: Task) -> None:
    """Raises Refusal("notHere") for a task without an sshd."""
    role, index = task.token.role, task.token.index
    instead = f"; this opens a shell: jobscribe job shell {job.jid} --role {role} --index {index}"
    if task.agent_key.kind != AgentKind.CONTAINER:
        raise Refusal("notHere", f"task {role}/{index} has no container, so no sshd{instead}")
    if job.run is None or not job.run.spec.ssh:
        raise Refusal("notHere", f"the job was submitted without 'ssh: true'{instead}")


def _opened(at: float, actor: Principal, peer: str, request: ShellOpen, task: Task) -> AuditEvent:
    return ShellOpened(
        at=at,
        actor=actor.name,
        actor_role=actor.role,
        subject=request.uid,
        jid=request.compute_jid,
        serial=task.token.serial,
        attempt=task.token.attempt,
        task=f"{task.token.role}/{task.token.index}",
        shell=request.shell_id[:8],
        peer=peer,
        program=msgspec.UNSET if request.program is None else request.program.name,
    )
