"""Remote debugging: stopped processes of jobs, and sessions with them.

The state is the agents' and the jobs'. This module knows which session belongs to whom, and puts
the begin and the end of each on record in the audit trail. Sessions are lost with the supervisor;
the job then waits for the next one.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from ...db.events.state import Run, Task
from ...drivers.contracts import TaskDriver
from ...protocol.api.requests import DebugAttach, DebugIo, DebugList, RunSpec
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, Token, base62
from ...protocol.jobs import debugging
from ...protocol.jobs.debugging import Stop
from ...protocol.wire.messages import AttachDebugger, DebuggerIo, DebuggerOutput, ListStops, Stops
from ..access.audit import Act, AuditTrail
from ..access.principal import Principal
from ..runs.service import RunService

#: Names in the audit trail.
BEGIN, END = "debug-attach", "debug-detach"
#: Jobs of a user that are looked at, and sessions of all users.
MOST_JOBS, MOST_SESSIONS = 1_000, 256
#: An agent has this long to reach a debugger (seconds).
ATTACH_SECS = 35.0
#: A session whose user asks for nothing for this time is over.
LEASE_SECS = 45.0
_ID = re.compile(r"[0-9a-f]{8}\Z")
_T = TypeVar("_T", Stops, DebuggerOutput)


class _Session(msgspec.Struct):
    """A session. lease: ends it if its user is gone."""

    uid: str
    jid: str
    key: AgentKey
    principal: Any
    peer: str
    lease: asyncio.TimerHandle | None = None


class Debugging:
    """Lists stops and passes on bytes. drivers: of tasks, by name. allowed, most_secs: the settings
    of the site.
    """

    def __init__(
        self,
        runs: RunService,
        drivers: Mapping[str, TaskDriver],
        audit: AuditTrail,
        entropy: Callable[[int], bytes],
        *,
        allowed: bool,
        most_secs: float,
    ) -> None:
        self._runs, self._drivers, self._audit, self._entropy = runs, drivers, audit, entropy
        self.allowed, self._most_secs = allowed, most_secs
        self._sessions: dict[str, _Session] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def sizes(self) -> dict[str, int]:
        return {"sessions": len(self._sessions)}

    def check(self, spec: RunSpec) -> None:
        """Check the debugging option of a run. Raises Refusal."""
        envs = [spec.env, *(role.env for role in spec.roles)]
        for env in envs:
            debugging.check(env, allowed=self.allowed, most_secs=self._most_secs)

    async def stops(self, request: DebugList) -> dict[str, Any]:
        """Return the stops of a user's jobs, or of one job, and what could not be asked."""
        self._check_allowed()
        rows: list[dict[str, Any]] = []
        notes: list[str] = []
        by_agent: dict[AgentKey, list[tuple[Run, Token]]] = {}
        for run, task in self._debugged(request.uid, request.compute_jid):
            by_agent.setdefault(task.agent_key, []).append((run, task.token))
        for key, tasks in by_agent.items():
            try:
                found = await self._ask_stops(key, [token for _, token in tasks])
            except Refusal as e:
                notes.append(f"{tasks[0][1].jid}: {e.sentence}")
                continue
            runs = {token: run for run, token in tasks}
            rows += [self._row(runs[token], token, stop) for token, stop in found if token in runs]
        return {"stops": sorted(rows, key=lambda r: (r["since"], r["id"])), "notes": notes}

    async def attach(self, request: DebugAttach, principal: Principal, peer: str) -> dict[str, Any]:
        """Begin a session. Its begin is on record when this returns. Raises Refusal."""
        self._check_allowed()
        if not _ID.match(request.id):
            raise Refusal(
                "badRequest", "an id has eight letters and digits: 'jobscribe debug list'"
            )
        self._runs.job(request.uid, request.compute_jid)
        if len(self._sessions) >= MOST_SESSIONS:
            raise Refusal("tooManyRequests", f"{MOST_SESSIONS} debugging sessions exist already")
        run, task, stop = await self._find(request)
        session = base62(self._entropy(32), 32)
        act = Act(request.uid, BEGIN, request.compute_jid, peer, reads=False)
        await self._audit.record(principal, act)
        known = _Session(request.uid, request.compute_jid, task.agent_key, principal, peer)
        self._sessions[session] = known
        self._extend(session)
        message = AttachDebugger(
            op_id=self._op(), token=task.token, name=stop.name, session=session
        )
        try:
            await self._ask(task.agent_key, message, DebuggerOutput)
        except BaseException:
            await self._end(session)
            raise
        return {"session": session, "stop": self._row(run, task.token, stop)}

    async def io(self, request: DebugIo) -> dict[str, Any]:
        """Pass on input, and return output. Raises Refusal."""
        known = self._sessions.get(request.session)
        if known is None or known.uid != request.uid:
            raise Refusal("notFound", "this debugging session is over; attach again")
        self._extend(request.session)
        message = DebuggerIo(
            op_id=self._op(),
            session=request.session,
            data=request.data.encode("utf-8", "replace"),
            limit=request.limit,
            wait_secs=request.wait_secs,
            close=request.close,
        )
        try:
            answer = await self._ask(known.key, message, DebuggerOutput)
        except Refusal as e:
            if e.code == "conflict":
                raise
            await self._end(request.session)
            raise Refusal("notFound", f"the session is over: {e.sentence}; attach again") from None
        if answer.end:
            await self._end(request.session)
        elif request.session in self._sessions:
            self._extend(request.session)
        text = answer.data.decode("ascii", "replace")
        return {"data": text, "end": answer.end, "reason": answer.reason}

    # ---- inside

    def _check_allowed(self) -> None:
        if not self.allowed:
            raise Refusal("forbidden", "remote debugging is turned off at this site")

    def _debugged(self, uid: str, jid: str | None) -> Iterator[tuple[Run, Task]]:
        """Yield the running tasks with remote debugging."""
        store = self._runs.engine.store
        jids = [jid] if jid is not None else []
        if jid is None:
            jids += [row.jid for row in store.jobs(uid=uid, active=True, limit=MOST_JOBS)]
        for each in jids:
            run = self._runs.job(uid, each).job.run
            if run is not None and run_option(run) is not None:
                yield from ((run, t) for t in run.live_tasks if t.held is None)

    async def _ask_stops(self, key: AgentKey, tokens: list[Token]) -> list[tuple[Token, Stop]]:
        message = ListStops(op_id=self._op(), tokens=tuple(tokens))
        return list((await self._ask(key, message, Stops)).found)

    async def _ask(
        self, key: AgentKey, op: ListStops | AttachDebugger | DebuggerIo, kind: type[_T]
    ) -> _T:
        driver = self._drivers.get(key.driver)
        if driver is None:
            raise Refusal("agentUnavailable", f"driver {key.driver} is not configured")
        answer = await driver.debug(key, op)
        assert isinstance(answer, kind)
        return answer

    async def _find(self, request: DebugAttach) -> tuple[Run, Task, Stop]:
        for run, task in self._debugged(request.uid, request.compute_jid):
            for token, stop in await self._ask_stops(task.agent_key, [task.token]):
                if stop.id == request.id and token == task.token:
                    return run, task, stop
        raise Refusal(
            "notFound",
            f"nothing with the id {request.id} waits in {request.compute_jid}; 'jobscribe debug list' shows what does",
        )

    def _row(self, run: Run, token: Token, stop: Stop) -> dict[str, Any]:
        limit, began = run.spec.time_limit_secs, run.started_at
        left = None if limit is None or began is None else began + limit - self._runs.now().wall
        return {
            "computeJid": token.jid,
            "computeJobSerial": token.serial,
            "attempt": token.attempt,
            "role": token.role,
            "index": token.index,
            **msgspec.to_builtins(stop),
            "timeLimitLeftSecs": left,
        }

    def _op(self) -> str:
        return base62(self._entropy(32), 32)

    def _extend(self, session: str) -> None:
        known = self._sessions[session]
        if known.lease is not None:
            known.lease.cancel()
        known.lease = asyncio.get_running_loop().call_later(LEASE_SECS, self._expire, session)

    def _expire(self, session: str) -> None:
        task = asyncio.get_running_loop().create_task(self._end(session))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, session: str) -> None:
        """Forget a session and put its end on record."""
        known = self._sessions.pop(session, None)
        if known is None:
            return
        if known.lease is not None:
            known.lease.cancel()
        act = Act(known.uid, END, known.jid, known.peer, reads=False)
        try:
            await self._audit.record(known.principal, act)
        except Refusal as e:
            self._runs.log(
                "the end of a debugging session of {} is not on record: {}", known.jid, e.sentence
            )


def run_option(run: Run) -> debugging.DebugOption | None:
    """Return the debugging option of a run."""
    return debugging.of_envs((run.spec.env, *(role.env for role in run.spec.roles)))
