"""Between the listeners and the engine: requests become inputs, durable effects become answers, readers wait for changes.

Knows nothing of HTTP. Decides nothing: what a request leads to is the core's, what is told about it `core.status`'s.
"""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
from ..db.state import Job
from ..drivers.driver import AgentDriver
from ..protocol.errors import Refusal
from ..protocol.ids import AgentKey, split_jid
from ..protocol.messages import LogChunk
from ..protocol.requests import JobLog, RunCancel, RunMany, RunSimulation, RunSpec, RunStatusRequest
from ..protocol.status import PURGED
from ..runtime.log import Log
from .core.effects import AgentReady, ReplyRefusal, ReplyStatus
from .core.inputs import Cancel, Input, Now, Submit, WantAgent
from .core.status import missing, status
from .engine import Durable, Engine
from .feed import Feed
from .metrics import Counters
from .outputs import Outputs
from .progress import Progress
from .requests import check_spec
from .why import why

#: Runs of one bulk request that are decided in one go; between these the loop serves others.
SLICE = 64
#: A request is answered within this time, also when the store does not say whether it is durable.
ANSWER_SECS = 30.0
#: On top of the tries to start an agent: the pauses between them.
_BETWEEN_STARTS_SECS = 2.0


class Desk:
    """What handlers share: the way to the engine and back, and reads of durable state."""

    def __init__(
        self, engine: Engine, feed: Feed, outputs: Outputs, progress: Progress, counters: Counters, log: Log, now: Callable[[], Now], *,
        user_root: str, apps: tuple[str, ...], drivers: dict[str, AgentDriver], evidence_root: str,
    ) -> None:
        self.engine, self.feed, self.outputs, self.counters, self.log, self.now = engine, feed, outputs, counters, log, now
        self.progress = progress
        self.user_root, self.apps, self.drivers, self.evidence_root = user_root, apps, drivers, evidence_root
        self.draining = False
        #: agents that were asked for ahead of any need
        self._early: dict[AgentKey, asyncio.Task[None]] = {}
        self._handles = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        #: handles of bulk requests: they are told less, for describing a waiting run means counting who is ahead of it
        self._brief: set[int] = set()
        self._watchers: dict[str, set[asyncio.Event]] = {}

    def sizes(self) -> dict[str, int]:
        """Who waits, counted."""
        return {
            "waiting": len(self._waiting), "brief": len(self._brief), "watched": len(self._watchers), "early": len(self._early),
            "reported": self.progress.size,
        }

    # ---- effects

    def perform(self, effect: ReplyStatus | ReplyRefusal | AgentReady) -> None:
        future = self._waiting.pop(effect.handle, None)
        brief = effect.handle in self._brief
        self._brief.discard(effect.handle)
        if future is None or future.done():
            return
        if isinstance(effect, ReplyRefusal):
            future.set_exception(effect.refusal)
            return
        if isinstance(effect, AgentReady):
            future.set_result({})
            return
        try:
            future.set_result(self._told(effect, brief))
        except Refusal as e:
            future.set_exception(e)

    def _told(self, effect: ReplyStatus, brief: bool) -> dict[str, Any]:
        entry = self.engine.durable(effect.jid)
        if entry is None:
            return missing(effect.jid, "noRun")
        if brief:
            return {"computeJid": effect.jid, "computeJobSerial": effect.serial, "state": entry.job.status}
        return self.describe(entry, serial=effect.serial)

    def projected(self, job: Job) -> None:
        """A job changed durably: whoever waits for it looks again."""
        self.progress.settle(job)
        for event in self._watchers.get(job.jid, ()):
            event.set()

    # ---- requests

    async def submit(self, request: RunSimulation) -> dict[str, Any]:
        future, input_ = self._submission(request)
        self.engine.tell(input_)
        return await self._answer(input_.handle, future)

    async def submit_many(self, request: RunMany) -> list[dict[str, Any]]:
        """All in order; each is accepted or refused by itself."""
        asked: list[tuple[int, asyncio.Future[dict[str, Any]]] | Refusal] = []
        for first in range(0, len(request.runs), SLICE):
            inputs: list[Input] = []
            for n, spec in enumerate(request.runs[first : first + SLICE], first):
                try:
                    future, input_ = self._submission(RunSimulation(req_id=f"{request.req_id}.{n}", run=spec))
                    self._brief.add(input_.handle)
                    asked.append((input_.handle, future))
                    inputs.append(input_)
                except Refusal as e:
                    self.counters.add("refused." + e.code)
                    asked.append(e)
            if inputs:
                self.engine.tell(*inputs)
            await asyncio.sleep(0)
        until = asyncio.get_running_loop().time() + ANSWER_SECS
        return [a.body() if isinstance(a, Refusal) else await _or_refusal(self._answer(*a, until=until)) for a in asked]

    async def cancel(self, request: RunCancel) -> dict[str, Any]:
        handle, future = self._handle()
        self.engine.tell(Cancel(handle, request))
        return await self._answer(handle, future)

    async def _answer(self, handle: int, future: asyncio.Future[dict[str, Any]], *, until: float | None = None) -> dict[str, Any]:
        """What was decided, when it is durable. Raises Refusal."""
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + ANSWER_SECS if until is None else until):
                return await future
        except TimeoutError:
            sentence = f"the store did not answer within {ANSWER_SECS:g} s; the same request (reqId) may be repeated"
            raise Refusal("deadline", sentence) from None
        finally:
            self._waiting.pop(handle, None)
            self._brief.discard(handle)

    def _submission(self, request: RunSimulation) -> tuple[asyncio.Future[dict[str, Any]], Submit]:
        check_spec(request.run, self.apps)
        if request.run.driver not in self.drivers:
            raise Refusal("badRequest", f"there is no driver {request.run.driver!r}; there are: {', '.join(self.drivers)}")
        handle, future = self._handle()
        return future, Submit(handle, self._with_house_limits(request), self._run_dir(request.run))

    def _with_house_limits(self, request: RunSimulation) -> RunSimulation:
        """The limits of this house, where the run has none of its own: on record with it, whatever the configuration says later."""
        policy, run = self.engine.policy, request.run
        run = msgspec.structs.replace(
            run, time_limit_secs=run.time_limit_secs or policy.time_limit_secs,
            queue_limit_secs=run.queue_limit_secs or policy.queue_limit_secs,
        )
        return msgspec.structs.replace(request, run=run)

    def _handle(self) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        if self.draining:
            raise Refusal("draining", "the supervisor is stopping")
        handle = next(self._handles)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[handle] = future
        return handle, future

    def _run_dir(self, spec: RunSpec) -> str:
        return os.path.join(self.user_root, spec.uid, spec.simulation_type, spec.simulation_id, spec.compute_model)

    # ---- agents

    def agent_key(self, uid: str, driver: str) -> AgentKey:
        """The agent that answers this user's calls. Raises Refusal("badRequest") for a driver that is not there."""
        if driver not in self.drivers:
            raise Refusal("badRequest", f"there is no driver {driver!r}; there are: {', '.join(self.drivers)}")
        return AgentKey(driver, "sequential", uid, self.engine.policy.hosts.get(driver, "localhost"))

    async def agent(self, key: AgentKey) -> None:
        """Returns when it is up; it is started if need be. Raises Refusal (agentUnavailable, tooManyRequests, draining)."""
        view = self.engine.world.agents.get(key)
        if view is not None and view.phase == "up" and view.synced and not self.draining:
            return
        policy = self.engine.policy
        secs = policy.agent_start_secs * policy.agent_start_tries + _BETWEEN_STARTS_SECS
        handle, future = self._handle()
        self.engine.tell(WantAgent(handle, key))
        try:
            async with asyncio.timeout(secs):
                await future
        except TimeoutError:
            raise Refusal("agentUnavailable", f"its agent was not up within {secs:g} s") from None
        finally:
            self._waiting.pop(handle, None)

    def start_agent(self, key: AgentKey) -> None:
        """Have it on its way; nobody waits."""
        if self.draining:
            raise Refusal("draining", "the supervisor is stopping")
        if key not in self._early:
            self._early[key] = asyncio.get_running_loop().create_task(self._start_early(key))

    async def _start_early(self, key: AgentKey) -> None:
        try:
            await self.agent(key)
        except Refusal as e:
            self.counters.add("refused." + e.code)
            self.log("{} is not ready for its user: {}", str(key), e.sentence, uid=key.uid)
        finally:
            del self._early[key]

    # ---- reads

    def job(self, uid: str, jid: str) -> Durable:
        """The durable job; not there and not yours are the same answer."""
        entry = self.engine.durable(jid) if split_jid(jid)[0] == uid else None
        if entry is None:
            raise Refusal("notFound", f"there is no job {jid}")
        return entry

    def describe(self, entry: Durable, *, hash_: str | None = None, serial: int = 0) -> dict[str, Any]:
        fails_since = self.engine.fails_since if self.engine.paused else None
        reply = status(
            self.engine.world, entry.job, entry.position, self.now(), hash_=hash_, serial=serial, store_fails_since=fails_since,
        )
        run = entry.job.run
        if run is None or reply.get("computeJobSerial") != run.serial:
            return {**reply, "parallelStatus": None}
        if run.status == PURGED:
            return {**reply, "parallelStatus": {"frameCount": 0, "percentComplete": 0.0}}
        return {**reply, "parallelStatus": self.progress.of(entry.job)}

    async def status(self, request: RunStatusRequest) -> dict[str, Any]:
        """At once, or as soon as the run is over (at the latest after wait_secs)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.wait_secs
        with self.watching(request.compute_jid) as changed:
            while True:
                entry = self.job(request.uid, request.compute_jid)
                reply = self.describe(entry, hash_=request.compute_job_hash, serial=request.compute_job_serial)
                if reply["over"] or loop.time() >= deadline:
                    return reply
                changed.clear()
                await _wait(changed, deadline - loop.time())

    async def read_log(self, request: JobLog) -> LogChunk:
        """Bytes of output; a run that has not started yet is waited for. Raises Refusal."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.wait_secs
        with self.watching(request.compute_jid) as changed:
            while True:
                job = self.job(request.uid, request.compute_jid).job
                run = job.run
                if run is not None and request.compute_job_serial not in (0, run.serial):
                    raise Refusal("staleSerial", f"run {request.compute_job_serial} of {job.jid} is not the current one")
                if run is None or run.attempts or not run.active or loop.time() >= deadline:
                    left = max(0.0, deadline - loop.time())
                    return await self.outputs.read(job, msgspec.structs.replace(request, wait_secs=left))
                changed.clear()
                await _wait(changed, deadline - loop.time())

    @contextlib.contextmanager
    def watching(self, jid: str) -> Iterator[asyncio.Event]:
        """Set whenever the job changes durably."""
        changed = asyncio.Event()
        watchers = self._watchers.setdefault(jid, set())
        watchers.add(changed)
        try:
            yield changed
        finally:
            watchers.discard(changed)
            if not watchers:
                self._watchers.pop(jid, None)

    def why(self, request: RunStatusRequest) -> dict[str, Any]:
        entry = self.job(request.uid, request.compute_jid)
        reply = self.describe(entry, hash_=request.compute_job_hash, serial=request.compute_job_serial)
        run = entry.job.run
        tasks = run.attempts[-1].tasks if run and run.attempts else ()
        folder = os.path.join(self.evidence_root, str(tasks[0].agent_key), "run", tasks[0].token.name) if tasks else None
        return {**why(reply, entry.job, folder), "status": reply}


async def _wait(event: asyncio.Event, secs: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), max(0.0, secs))
    except TimeoutError:
        return  # the caller looks at the clock


async def _or_refusal(answer: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    try:
        return await answer
    except Refusal as e:
        return e.body()
