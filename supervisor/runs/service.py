"""Between the listeners and the engine: requests become inputs, durable effects become answers,
readers wait for changes.

Knows nothing of HTTP. Decides nothing: what a request leads to is the core's, what is told about it
`core.status`'s.
"""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from ...db.events.state import Job, Run, Task
from ...db.records.job_record import attempt, roles, task
from ...drivers.contracts import AgentDriver
from ...protocol.api.requests import (
    JobLog,
    JobTasks,
    RunCancel,
    RunMany,
    RunRelease,
    RunSimulation,
    RunSpec,
    RunStatusRequest,
)
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, Token, split_jid
from ...protocol.jobs.status import PURGED
from ...protocol.wire.messages import LogChunk
from ...runtime.log.logger import Log
from ..connections.progress import Progress
from ..core.interface.effects import AgentReady, ReplyRefusal, ReplyStatus
from ..core.interface.inputs import (
    AgentStopRequested,
    Cancel,
    Input,
    Now,
    ReleaseHold,
    RequireAgent,
    Submit,
)
from ..core.scheduling.dispatch import task_dir
from ..core.status.run_status import missing, status
from ..diagnosis.explanation import brief, why
from ..engine.decision_loop import DurableJob, Engine
from ..engine.event_feed import EventFeed
from ..process.counters import Counters
from ..tracing.id_lookup import no_job
from .command_summaries import CommandSummaries
from .outcome_cache import OutcomeCache
from .output_reader import OutputReader, asked_for
from .request_validation import check_spec

#: Of the attempts of a run, so many are told: the latest ones.
ATTEMPTS_SHOWN = 100
#: Runs of one bulk request that are decided in one go; between these the loop serves others.
SLICE = 64
#: A request is answered within this time, also when the store does not say whether it is durable.
ANSWER_SECS = 30.0
#: The beginning of a computeJid that names its group, `<uid>-<sid>`.
_GROUP = 17
#: On top of the tries to start an agent: the pauses between them.
_BETWEEN_STARTS_SECS = 2.0

T = TypeVar("T")


class RunService:
    """What handlers share: the way to the engine and back, and reads of durable state."""

    def __init__(
        self,
        engine: Engine,
        feed: EventFeed,
        outputs: OutputReader,
        progress: Progress,
        counters: Counters,
        log: Log,
        now: Callable[[], Now],
        *,
        user_root: str,
        apps: tuple[str, ...],
        drivers: dict[str, AgentDriver],
        evidence_root: str,
        container: Callable[[AgentKey, Token], str | None] = lambda key, token: None,
        batch: Callable[[RunSpec], RunSpec] = lambda spec: spec,
    ) -> None:
        """container: the name of the container that a task is in, where it is in one.

        batch: what is asked of a cluster, as it is on record then; raises Refusal. Drivers without
        clusters are asked for nothing there.
        """
        self.engine, self.feed, self.outputs, self.counters, self.log, self.now = (
            engine,
            feed,
            outputs,
            counters,
            log,
            now,
        )
        self.progress = progress
        self.user_root, self.apps, self.drivers, self.evidence_root = (
            user_root,
            apps,
            drivers,
            evidence_root,
        )
        self._container, self._batch = container, batch
        self.draining = False
        #: agents that were asked for ahead of any need
        self._early: dict[AgentKey, asyncio.Task[None]] = {}
        self._handles = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        #: handles of bulk requests: they are told less, for describing a waiting run means counting
        #: who is ahead of it
        self._brief: set[int] = set()
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self.ends = OutcomeCache(engine.store)
        self.summaries = CommandSummaries(engine.store)

    def sizes(self) -> dict[str, int]:
        """Who waits, counted."""
        return {
            "waiting": len(self._waiting),
            "brief": len(self._brief),
            "watched": len(self._watchers),
            "early": len(self._early),
            "reported": self.progress.size,
            "ends": len(self.ends),
            "summaries": len(self.summaries),
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
            return {
                "computeJid": effect.jid,
                "computeJobSerial": effect.serial,
                "state": entry.job.status,
            }
        return self.describe(entry, serial=effect.serial)

    def projected(self, job: Job) -> None:
        """A job changed durably: whoever waits for it looks again."""
        self.progress.settle(job)
        for watched in (job.jid, job.jid[:_GROUP]):
            for event in self._watchers.get(watched, ()):
                event.set()

    # ---- requests

    async def submit(self, request: RunSimulation) -> dict[str, Any]:
        future, input_ = self._submission(request)
        self.engine.tell(input_)
        return await self._answer(input_.handle, future)

    async def submit_many(self, request: RunMany) -> list[dict[str, Any]]:
        return await self.submit_each(
            RunSimulation(req_id=f"{request.req_id}.{n}", run=spec)
            for n, spec in enumerate(request.runs)
        )

    async def submit_each(self, requests: Iterable[RunSimulation]) -> list[dict[str, Any]]:
        """All in order; each is accepted or refused by itself. They are made when it is their turn."""
        return await self._each(requests, self._submission)

    async def cancel_each(self, requests: Iterable[RunCancel]) -> list[dict[str, Any]]:
        """The same for cancels."""
        return await self._each(requests, self._cancellation)

    async def _each(
        self,
        requests: Iterable[T],
        prepared: Callable[[T], tuple[asyncio.Future[dict[str, Any]], Submit | Cancel]],
    ) -> list[dict[str, Any]]:
        asked: list[tuple[int, asyncio.Future[dict[str, Any]]] | Refusal] = []
        left = iter(requests)
        while slice_ := tuple(itertools.islice(left, SLICE)):
            inputs: list[Input] = []
            for request in slice_:
                try:
                    future, input_ = prepared(request)
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
        return [
            a.body() if isinstance(a, Refusal) else await _or_refusal(self._answer(*a, until=until))
            for a in asked
        ]

    async def cancel(self, request: RunCancel) -> dict[str, Any]:
        future, input_ = self._cancellation(request)
        self.engine.tell(input_)
        return await self._of(request, self._answer(input_.handle, future))

    async def release(self, request: RunRelease) -> dict[str, Any]:
        handle, future = self._handle()
        self.engine.tell(ReleaseHold(handle, request))
        return await self._of(request, self._answer(handle, future))

    async def _of(
        self, request: RunCancel | RunRelease, answer: Awaitable[dict[str, Any]]
    ) -> dict[str, Any]:
        """The answer; where there is no such job of this user, the refusal that tells of those
        near, as for questions.
        """
        try:
            return await answer
        except Refusal as e:
            if e.code == "notFound":
                self.job(request.uid, request.compute_jid)
            raise

    async def _answer(
        self, handle: int, future: asyncio.Future[dict[str, Any]], *, until: float | None = None
    ) -> dict[str, Any]:
        """What was decided, when it is durable. Raises Refusal."""
        try:
            async with asyncio.timeout_at(
                asyncio.get_running_loop().time() + ANSWER_SECS if until is None else until
            ):
                return await future
        except TimeoutError:
            sentence = f"the store did not answer within {ANSWER_SECS:g} s; the same request (reqId) may be repeated"
            raise Refusal("deadline", sentence) from None
        finally:
            self._waiting.pop(handle, None)
            self._brief.discard(handle)

    def check(self, spec: RunSpec) -> None:
        """Can there be such a run here? Raises Refusal."""
        can = self.drivers[self.driver(spec.driver)].capabilities
        check_spec(
            spec,
            self.apps,
            containers=can.containers,
            volumes=can.volumes,
            user_dir=os.path.join(self.user_root, spec.uid),
        )

    def driver(self, asked: str) -> str:
        """The name of the driver that is meant: the first one of this house where none is named.
        Raises Refusal("badRequest").
        """
        name = asked or next(iter(self.drivers))
        if name not in self.drivers:
            raise Refusal(
                "badRequest", f"there is no driver {name!r}; there are: {', '.join(self.drivers)}"
            )
        return name

    def _cancellation(self, request: RunCancel) -> tuple[asyncio.Future[dict[str, Any]], Cancel]:
        handle, future = self._handle()
        return future, Cancel(handle, request)

    def _submission(self, request: RunSimulation) -> tuple[asyncio.Future[dict[str, Any]], Submit]:
        request = msgspec.structs.replace(request, run=self.checked(request.run))
        handle, future = self._handle()
        return future, Submit(handle, request, self.run_dir(request.run))

    def checked(self, spec: RunSpec) -> RunSpec:
        """A run as it would be accepted. Raises Refusal.

        The driver and limits of this house, where it has none of its own, are on record with it,
        whatever the configuration says later.
        """
        self.check(spec)
        policy = self.engine.policy
        spec = self._batch(msgspec.structs.replace(spec, driver=self.driver(spec.driver)))
        # the house's own limit is for its own queue: the core counts it until the run is placed,
        # and no longer
        usual = None if spec.driver in policy.batch else policy.queue_limit_secs
        return msgspec.structs.replace(
            spec,
            time_limit_secs=spec.time_limit_secs or policy.time_limit_secs,
            queue_limit_secs=spec.queue_limit_secs or usual,
        )

    def _handle(self) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        if self.draining:
            raise Refusal("draining", "the supervisor is stopping")
        handle = next(self._handles)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[handle] = future
        return handle, future

    def run_dir(self, spec: RunSpec) -> str:
        return os.path.join(
            self.user_root, spec.uid, spec.simulation_type, spec.simulation_id, spec.compute_model
        )

    # ---- agents

    def agent_key(self, uid: str, driver: str, host: str | None = None) -> AgentKey:
        """The agent that answers this user's calls, on this host if it can be. Raises
        Refusal("badRequest"): there is no such driver.
        """
        name = self.driver(driver)
        return self.engine.world.host_assignment.agent_for_calls(name, uid, host)

    async def agent(self, key: AgentKey) -> None:
        """Returns when it is up; it is started if need be. Raises Refusal (agentUnavailable,
        tooManyRequests, draining).
        """
        view = self.engine.world.agents.get(key)
        if view is not None and view.phase == "up" and view.synced and not self.draining:
            return
        policy = self.engine.policy
        secs = policy.agent_start_secs * policy.agent_start_tries + _BETWEEN_STARTS_SECS
        late = Refusal("agentUnavailable", f"its agent was not up within {secs:g} s")
        await self._answered(lambda handle: RequireAgent(handle, key), secs, late)

    async def stop_agent(self, key: AgentKey) -> None:
        """Returns when it was told to end. Raises Refusal (agentBusy, agentUnavailable, draining)."""
        late = Refusal(
            "storageUnavailable",
            "the store has not taken it in time; whether the agent ends is not known",
        )
        await self._answered(lambda handle: AgentStopRequested(handle, key), ANSWER_SECS, late)

    async def _answered(self, input_: Callable[[int], Input], secs: float, late: Refusal) -> None:
        """Tell the engine, and wait for its answer to this handle. late: raised after `secs`
        seconds.
        """
        handle, future = self._handle()
        self.engine.tell(input_(handle))
        try:
            async with asyncio.timeout(secs):
                await future
        except TimeoutError:
            raise late from None
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

    def job(self, uid: str, jid: str) -> DurableJob:
        """The durable job; not there and not yours are the same answer."""
        if split_jid(jid)[0] != uid:
            raise Refusal("notFound", f"there is no job {jid}")
        entry = self.engine.durable(jid)
        if entry is None:
            raise no_job(self.engine.store, jid)
        return entry

    def describe(
        self, entry: DurableJob, *, hash_: str | None = None, serial: int = 0
    ) -> dict[str, Any]:
        reply = status(
            self.engine.world,
            entry.job,
            entry.position,
            self.now(),
            hash_=hash_,
            serial=serial,
            store_fails_since=self._fails_since(),
        )
        reply["why"] = brief(reply, entry.job)
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
                reply = self.describe(
                    entry, hash_=request.compute_job_hash, serial=request.compute_job_serial
                )
                if reply["over"] or loop.time() >= deadline:
                    return reply
                changed.clear()
                await _wait(changed, deadline - loop.time())

    async def read_log(self, request: JobLog) -> tuple[LogChunk, Token | None]:
        """Bytes of output, and whose they are; a run that has not started yet is waited for. Raises
        Refusal.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.wait_secs
        with self.watching(request.compute_jid) as changed:
            while True:
                job = self.job(request.uid, request.compute_jid).job
                run = job.run
                if run is not None and request.compute_job_serial not in (0, run.serial):
                    raise Refusal(
                        "staleSerial",
                        f"run {request.compute_job_serial} of {job.jid} is not the current one",
                    )
                if run is None or run.attempts or not run.active or loop.time() >= deadline:
                    left = max(0.0, deadline - loop.time())
                    task = asked_for(job, request)
                    chunk = await self.outputs.read(
                        job, msgspec.structs.replace(request, wait_secs=left)
                    )
                    return chunk, None if task is None else task.token
                changed.clear()
                await _wait(changed, deadline - loop.time())

    @contextlib.contextmanager
    def watching(self, jid: str) -> Iterator[asyncio.Event]:
        """Set whenever the job changes durably, or any job of a group `<uid>-<sid>`."""
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
        reply = self.describe(
            entry, hash_=request.compute_job_hash, serial=request.compute_job_serial
        )
        run = entry.job.run
        tasks = run.attempts[-1].tasks if run and run.attempts else ()
        task = (run.telling if run is not None else None) or (tasks[0] if tasks else None)
        folder = None if task is None else self.evidence_folder(task)
        return {**why(reply, entry.job, folder, self._fails_since()), "status": reply}

    def _fails_since(self) -> float | None:
        """Since when the event store cannot be written, if it cannot."""
        return self.engine.fails_since if self.engine.paused else None

    def evidence_folder(self, task: Task) -> str:
        """Where the files of one execution lie, on the machine of its agent."""
        handle = self.engine.agent_record(task.agent_key).handle or {}
        agent: str = handle.get("folder") or os.path.join(self.evidence_root, str(task.agent_key))
        return os.path.join(agent, "run", task.token.name)

    def tasks(self, request: JobTasks) -> dict[str, Any]:
        """The attempts of the current run, and the tasks of one of them (0: the latest). Raises
        Refusal.
        """
        entry = self.job(request.uid, request.compute_jid)
        run = entry.job.run
        if run is None or request.compute_job_serial not in (0, run.serial):
            raise Refusal(
                "staleSerial",
                f"run {request.compute_job_serial} of {request.compute_jid} is not the current one",
            )
        wanted = request.attempt or run.attempt
        chosen = next((a for a in run.attempts if a.number == wanted), None)
        if wanted and chosen is None:
            raise Refusal(
                "notFound",
                f"the run has no attempt {wanted}",
                {"advice": "'jobscribe job tasks JOB' shows which there are"},
            )
        return {
            "computeJid": entry.job.jid,
            "computeJobSerial": run.serial,
            "state": run.status,
            "attempt": wanted,
            "roles": roles(run),
            "policy": None if run.spec.retry is None else msgspec.to_builtins(run.spec.retry),
            "attempts": [
                {k: v for k, v in attempt(a, run.spec).items() if k != "tasks"}
                for a in run.attempts[-ATTEMPTS_SHOWN:]
            ],
            "tasks": [
                {
                    **task(t, run.spec),
                    "runDir": _directory(run, t),
                    "evidence": None if run.status == PURGED else self.evidence_folder(t),
                    "container": self._container(t.agent_key, t.token),
                }
                for t in (chosen.tasks if chosen is not None else ())
            ],
        }


def _directory(run: Run, t: Task) -> str | None:
    """Of a task: on its cluster, or as the supervisor sees it; None where none was made."""
    if t.started_at is None or run.status == PURGED:
        return None
    if t.batch_said is not None and t.batch_said.run_dir:
        return t.batch_said.run_dir
    return task_dir(run.run_dir, t.token.role, t.token.index) if run.spec.roles else run.run_dir


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
