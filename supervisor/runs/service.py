"""The run service, between the listeners and the engine.

It turns requests into engine inputs and durable effects into replies, and lets readers wait for
changes. HTTP is in `supervisor.api`, decisions are in `core`, status replies in `core.status`.
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
    JobCore,
    JobLog,
    JobTag,
    JobTasks,
    RunCancel,
    RunMany,
    RunRelease,
    RunSimulation,
    RunSpec,
    RunStatusRequest,
)
from ...protocol.clusters.batch import ClusterStatus
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, Token, agent_log_ids, split_jid
from ...protocol.jobs.status import PURGED
from ...protocol.redaction import Redactor
from ...protocol.wire.messages import LogChunk
from ...runtime.log.logger import Log
from ..connections.progress import Progress
from ..core.interface.effects import AgentReady, ReplyRefusal, ReplyStatus
from ..core.interface.inputs import (
    AgentStopRequested,
    Cancel,
    ChangeTags,
    Input,
    Now,
    ReleaseHold,
    RequireAgent,
    Submit,
)
from ..core.scheduling.dispatch import task_dir
from ..core.state.agent_phase import AgentPhase
from ..core.status.run_status import is_cacheable, missing, status
from ..diagnosis.explanation import brief, why
from ..diagnosis.surroundings import Surroundings
from ..engine.decision_loop import DurableJob, Engine
from ..engine.event_feed import EventFeed
from ..process.counters import Counters
from ..tracing.id_lookup import no_job
from .outcome_cache import OutcomeCache
from .output_reader import OutputReader, asked_for
from .registry_logins import RegistryLogins
from .request_validation import check_spec
from .search.command_summaries import CommandSummaries
from .search.search_slots import SearchSlots
from .shared_statuses import SharedStatuses
from .why_facts import files_of, partition_of

#: Number of attempts in a reply: the latest ones.
ATTEMPTS_SHOWN = 100
#: Number of runs of a bulk request that are decided at once. Then the loop serves other requests.
SLICE = 64
#: Time limit of an answer, in case the store does not confirm that the decision is durable.
ANSWER_SECS = 30.0
#: Length of the prefix of a computeJid that names its group, `<uid>-<sid>`.
_GROUP = 17
#: Sum of the pauses between the attempts to start an agent.
_BETWEEN_STARTS_SECS = 2.0

T = TypeVar("T")


class RunService:
    """Submits, cancels and describes runs for all handlers."""

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
        names: Callable[[str], str | None] = lambda uid: None,
        cluster_news: Callable[[str], dict[str, ClusterStatus]] = lambda uid: {},
        logins: RegistryLogins | None = None,
    ) -> None:
        """container: returns the name of a task's container, if it has one.

        batch: returns a run with its complete batch request, as it is stored; raises Refusal. For
        drivers without clusters it returns the run unchanged. names: returns the name of a uid.
        cluster_news: returns the reports about clusters for a uid.
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
        self.shared_statuses = SharedStatuses(self.describe, progress)
        self.user_root, self.apps, self.drivers, self.evidence_root = (
            user_root,
            apps,
            drivers,
            evidence_root,
        )
        self._container, self._batch = container, batch
        self._names, self._cluster_news = names, cluster_news
        self.logins = RegistryLogins(Redactor()) if logins is None else logins
        self.draining = False
        #: starts of agents that no run needs yet
        self._early: dict[AgentKey, asyncio.Task[None]] = {}
        self._handles = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        #: handles of bulk requests: their replies are short, because a full status of a waiting run
        #: counts the runs ahead of it
        self._brief: set[int] = set()
        self._watchers: dict[str, set[asyncio.Event]] = {}
        #: raises Refusal for a user of another shard
        self.check_user: Callable[[str], None] = lambda uid: None
        #: called with the computeJid of each status that a front end may keep
        self.kept: Callable[[str], None] = lambda jid: None
        #: return why a user may start no new run (plan: of the request), and a warning for the reply
        self.quota_refusal: Callable[[str, str | None], Refusal | None] = lambda uid, plan: None
        #: raises Refusal if this site does not accept an option of the run
        self.check_options: Callable[[RunSpec], None] = lambda spec: None
        self.quota_warning: Callable[[str], str | None] = lambda uid: None
        self.outcomes = OutcomeCache(engine.store)
        self.summaries = CommandSummaries(engine.store)
        self.searches = SearchSlots()
        self.checks = SearchSlots("checks")

    def sizes(self) -> dict[str, int]:
        """Return the sizes of queues and caches."""
        return {
            "waiting": len(self._waiting),
            "brief": len(self._brief),
            "watched": len(self._watchers),
            "early": len(self._early),
            "reported": self.progress.size,
            "ends": len(self.outcomes),
            "summaries": len(self.summaries),
            **self.searches.sizes(),
            **self.checks.sizes(),
            "logins": len(self.logins),
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
            future.set_result(self._status_reply(effect, brief))
        except Refusal as e:
            future.set_exception(e)

    def _status_reply(self, effect: ReplyStatus, brief: bool) -> dict[str, Any]:
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
        """Wake the watchers of a job that changed durably, and the watchers of its group."""
        self.progress.settle(job)
        for watched in (job.jid, job.jid[:_GROUP]):
            for event in self._watchers.get(watched, ()):
                event.set()

    # ---- requests

    async def submit(self, request: RunSimulation) -> dict[str, Any]:
        future, input_ = self._submission(request)
        self.engine.tell(input_)
        reply = await self._answer(input_.handle, future)
        return self._with_warning(reply, request.run.uid)

    async def submit_many(self, request: RunMany) -> list[dict[str, Any]]:
        return await self.submit_each(
            RunSimulation(req_id=f"{request.req_id}.{n}", run=spec)
            for n, spec in enumerate(request.runs)
        )

    async def submit_each(self, requests: Iterable[RunSimulation]) -> list[dict[str, Any]]:
        """Submit runs in order. Return a reply or a refusal for each. The first reply has the
        warning, if there is one.

        `requests` is consumed slice by slice, so a generator never holds all runs in memory.
        """
        replies = await self._each(requests, self._submission)
        for n, reply in enumerate(replies):
            if "code" not in reply:
                replies[n] = self._with_warning(reply, split_jid(reply["computeJid"])[0])
                break
        return replies

    def _with_warning(self, reply: dict[str, Any], uid: str) -> dict[str, Any]:
        """Return the reply to a submission with a warning about the user's quota."""
        warning = self.quota_warning(uid)
        return reply if warning is None else {**reply, "quotaWarning": warning}

    async def cancel_each(self, requests: Iterable[RunCancel]) -> list[dict[str, Any]]:
        """Cancel runs in order. Return a reply or a refusal for each."""
        return await self._each(requests, self._cancellation)

    async def _each(
        self,
        requests: Iterable[T],
        prepare: Callable[[T], tuple[asyncio.Future[dict[str, Any]], Submit | Cancel]],
    ) -> list[dict[str, Any]]:
        pending: list[tuple[int, asyncio.Future[dict[str, Any]]] | Refusal] = []
        left = iter(requests)
        while slice_ := tuple(itertools.islice(left, SLICE)):
            inputs: list[Input] = []
            for request in slice_:
                try:
                    future, input_ = prepare(request)
                    self._brief.add(input_.handle)
                    pending.append((input_.handle, future))
                    inputs.append(input_)
                except Refusal as e:
                    self.counters.add("refused." + e.code)
                    pending.append(e)
            if inputs:
                self.engine.tell(*inputs)
            await asyncio.sleep(0)
        until = asyncio.get_running_loop().time() + ANSWER_SECS
        replies: list[dict[str, Any]] = []
        for p in pending:
            replies.append(
                p.body()
                if isinstance(p, Refusal)
                else await _or_refusal(self._answer(*p, until=until))
            )
            if len(replies) % SLICE == 0:
                # A future that is done does not suspend this coroutine.
                await asyncio.sleep(0)
        return replies

    async def cancel(self, request: RunCancel) -> dict[str, Any]:
        future, input_ = self._cancellation(request)
        self.engine.tell(input_)
        return await self._or_similar(request, self._answer(input_.handle, future))

    async def release(self, request: RunRelease) -> dict[str, Any]:
        handle, future = self._handle()
        self.engine.tell(ReleaseHold(handle, request))
        return await self._or_similar(request, self._answer(handle, future))

    async def tag(self, request: JobTag) -> tuple[str, ...]:
        """Change the tags of a job. Return all its tags. Raises Refusal."""
        handle, future = self._handle()
        self.engine.tell(ChangeTags(handle, request))
        await self._or_similar(request, self._answer(handle, future))
        return self.job(request.uid, request.compute_jid).job.tags

    async def _or_similar(
        self, request: RunCancel | RunRelease | JobTag, answer: Awaitable[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the answer. If this user has no such job, raise a refusal that lists similar jobs."""
        try:
            return await answer
        except Refusal as e:
            if e.code == "notFound":
                self.job(request.uid, request.compute_jid)
            raise

    async def _answer(
        self, handle: int, future: asyncio.Future[dict[str, Any]], *, until: float | None = None
    ) -> dict[str, Any]:
        """Return the decision when it is durable. Raises Refusal."""
        try:
            async with asyncio.timeout_at(
                asyncio.get_running_loop().time() + ANSWER_SECS if until is None else until
            ):
                return await future
        except TimeoutError:
            code = "storageUnavailable" if self.engine.store.stalled() else "deadline"
            raise Refusal(
                code,
                f"the store did not answer within {ANSWER_SECS:g} s, and the outcome is not known; send the same"
                " request (reqId) again, it is done at most once",
            ) from None
        finally:
            self._waiting.pop(handle, None)
            self._brief.discard(handle)

    def check(self, spec: RunSpec) -> None:
        """Check that this site can accept the run. Raises Refusal."""
        self.check_user(spec.uid)
        can = self.drivers[self.driver(spec.driver)].capabilities
        check_spec(
            spec,
            self.apps,
            containers=can.containers,
            volumes=can.volumes,
            user_dir=os.path.join(self.user_root, spec.uid),
        )
        self.check_options(spec)

    def driver(self, asked: str) -> str:
        """Return the name of the requested driver, or of the first one if `asked` is empty.

        Raises Refusal("badRequest") for an unknown driver.
        """
        name = asked or next(iter(self.drivers))
        if name not in self.drivers:
            raise Refusal(
                "badRequest", f"unknown driver {name!r}; choose one of: {', '.join(self.drivers)}"
            )
        return name

    def _cancellation(self, request: RunCancel) -> tuple[asyncio.Future[dict[str, Any]], Cancel]:
        handle, future = self._handle()
        return future, Cancel(handle, request)

    def _submission(self, request: RunSimulation) -> tuple[asyncio.Future[dict[str, Any]], Submit]:
        request = msgspec.structs.replace(request, run=self.checked(request.run))
        handle, future = self._handle()
        refused = self.quota_refusal(request.run.uid, request.run.active_plan)
        return future, Submit(handle, request, self.run_dir(request.run), refused=refused)

    def checked(self, spec: RunSpec) -> RunSpec:
        """Return the run as it would be stored. Raises Refusal.

        The site's driver and limits are filled in where the run has none, so that later changes of
        the configuration do not affect it.
        """
        self.check(spec)
        policy = self.engine.policy
        spec = self._batch(msgspec.structs.replace(spec, driver=self.driver(spec.driver)))
        # the site's limit is for jobscribe's own queue, not for the queue of a cluster
        site_limit = None if spec.driver in policy.batch else policy.queue_limit_secs
        return msgspec.structs.replace(
            spec,
            time_limit_secs=spec.time_limit_secs or policy.time_limit_secs,
            queue_limit_secs=spec.queue_limit_secs or site_limit,
        )

    def _handle(self) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        if self.draining:
            raise Refusal("draining", "the supervisor is stopping")
        if self.engine.store.stalled():
            # nothing of this request was decided
            raise Refusal(
                "storageUnavailable", "the event store has not answered for some seconds; try again"
            )
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
        """Return the agent that answers this user's calls, on this host if possible.

        Raises Refusal("badRequest") for an unknown driver.
        """
        name = self.driver(driver)
        return self.engine.world.host_assignment.agent_for_calls(name, uid, host)

    async def agent(self, key: AgentKey) -> None:
        """Start the agent if it does not run, and return when it is connected.

        Raises Refusal (agentUnavailable, tooManyRequests, draining).
        """
        view = self.engine.world.agents.get(key)
        if view is not None and view.phase == AgentPhase.UP and view.synced and not self.draining:
            return
        policy = self.engine.policy
        secs = policy.agent_start_secs * policy.agent_start_tries + _BETWEEN_STARTS_SECS
        late = Refusal("agentUnavailable", f"the agent did not connect within {secs:g} s")
        await self._answered(lambda handle: RequireAgent(handle, key), secs, late)

    async def stop_agent(self, key: AgentKey) -> None:
        """Stop the agent. Returns when the request is durable.

        Raises Refusal (agentBusy, agentUnavailable, storageUnavailable, draining).
        """
        late = Refusal(
            "storageUnavailable",
            "the store did not answer in time; it is unknown whether the agent stops",
        )
        await self._answered(lambda handle: AgentStopRequested(handle, key), ANSWER_SECS, late)

    async def _answered(self, input_: Callable[[int], Input], secs: float, late: Refusal) -> None:
        """Send an input to the engine and wait for the answer. Raises `late` after `secs` seconds."""
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
        """Start the agent in the background."""
        if self.draining:
            raise Refusal("draining", "the supervisor is stopping")
        if key not in self._early:
            self._early[key] = asyncio.get_running_loop().create_task(self._start_early(key))

    async def _start_early(self, key: AgentKey) -> None:
        log = self.log.bound(**agent_log_ids(key))
        try:
            await self.agent(key)
        except Refusal as e:
            self.counters.add("refused." + e.code)
            log("cannot start agent {}: {}", str(key), e.sentence)
        finally:
            del self._early[key]

    # ---- reads

    def job(self, uid: str, jid: str) -> DurableJob:
        """Return the durable job.

        Raises Refusal("notFound"), with the same sentence for an unknown job and for a job of
        another user.
        """
        if split_jid(jid)[0] != uid:
            raise Refusal("notFound", f"there is no job {jid}")
        entry = self.engine.durable(jid)
        if entry is None:
            raise no_job(self.engine.store, jid)
        return entry

    def name_of(self, uid: str) -> str | None:
        """Return the name of a user, or None if it is unknown."""
        return self._names(uid) if self._names is not None else None

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
        if entry.job.tags:
            reply["tags"] = entry.job.tags
        run = entry.job.run
        if run is None or reply.get("computeJobSerial") != run.serial:
            return {**reply, "parallelStatus": None}
        if run.status == PURGED:
            return {**reply, "parallelStatus": {"frameCount": 0, "percentComplete": 0.0}}
        return {**reply, "parallelStatus": self.progress.of(entry.job)}

    def status_now(self, request: RunStatusRequest) -> dict[str, Any]:
        entry = self.job(request.uid, request.compute_jid)
        reply = self.describe(
            entry, hash_=request.compute_job_hash, serial=request.compute_job_serial
        )
        if is_cacheable(self.engine.world, entry.job, reply):
            self.kept(request.compute_jid)
            reply["cacheable"] = True
        return reply

    async def status(self, request: RunStatusRequest) -> dict[str, Any]:
        """Return the status at once, or when the run has ended, after `wait_secs` at most."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.wait_secs
        with self.watching(request.compute_jid) as changed:
            while True:
                late = loop.time() >= deadline
                if late or not self._is_busy(request):
                    reply = self.status_now(request)
                    if late or reply["over"]:
                        return reply
                changed.clear()
                await _wait(changed, deadline - loop.time())

    def _is_busy(self, request: RunStatusRequest) -> bool:
        """Return whether the request is about the current run of the job, which has not ended."""
        run, hash_ = self.job(request.uid, request.compute_jid).job.run, request.compute_job_hash
        return (
            run is not None
            and run.busy
            and request.compute_job_serial in (0, run.serial)
            and hash_ in (None, run.spec.compute_job_hash)
        )

    async def read_log(self, request: JobLog) -> tuple[LogChunk, Token | None]:
        """Return output and the token of the task that wrote it. Raises Refusal.

        Waits until the run starts, for `wait_secs` at most.
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

    async def read_core(self, request: JobCore) -> tuple[bytes, int]:
        """Return a piece of a core file, and the size of the file. Raises Refusal."""
        job = self.job(request.uid, request.compute_jid).job
        if job.run is None or request.compute_job_serial not in (0, job.run.serial):
            raise Refusal(
                "staleSerial",
                f"run {request.compute_job_serial} of {job.jid} is not the current one",
            )
        return await self.outputs.read_core(job, request)

    @contextlib.contextmanager
    def watching(self, jid: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set when the job changes durably.

        jid: a computeJid, or `<uid>-<sid>` for all jobs of a group.
        """
        changed = asyncio.Event()
        self.engine.tell_deferred()  # the job may have ended
        watchers = self._watchers.setdefault(jid, set())
        watchers.add(changed)
        try:
            yield changed
        finally:
            watchers.discard(changed)
            if not watchers:
                self._watchers.pop(jid, None)

    def is_watched(self, jid: str) -> bool:
        """Return whether anybody waits for a change of this job."""
        return jid in self._watchers or jid[:_GROUP] in self._watchers

    def why(self, request: RunStatusRequest) -> dict[str, Any]:
        entry = self.job(request.uid, request.compute_jid)
        reply = self.describe(
            entry, hash_=request.compute_job_hash, serial=request.compute_job_serial
        )
        run = entry.job.run
        tasks = run.attempts[-1].tasks if run and run.attempts else ()
        task = (run.telling if run is not None else None) or (tasks[0] if tasks else None)
        folder = None if task is None else self.evidence_folder(task)
        about = Surroundings(
            folder=folder,
            files=None if task is None or folder is None else files_of(task, folder),
            name=self._names,
            partition=None if run is None else partition_of(run, self._cluster_news),
            store_fails_since=self._fails_since(),
        )
        return {**why(reply, entry.job, about), "status": reply}

    def _fails_since(self) -> float | None:
        """Return the time (unix seconds) of the first failed write of the event store, or None
        while it works.
        """
        return self.engine.fails_since if self.engine.paused else None

    def evidence_folder(self, task: Task) -> str:
        """Return the folder with the evidence of one execution, on the machine of its agent."""
        handle = self.engine.agent_record(task.agent_key).handle or {}
        agent: str = handle.get("folder") or os.path.join(self.evidence_root, str(task.agent_key))
        return os.path.join(agent, "run", task.token.name)

    def tasks(self, request: JobTasks) -> dict[str, Any]:
        """Return the attempts of the current run, and the tasks of one attempt (0: the latest).

        Raises Refusal (staleSerial, notFound).
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
                {"advice": "'jobscribe job tasks JOB' lists the attempts"},
            )
        return {
            "computeJid": entry.job.jid,
            "computeJobSerial": run.serial,
            "state": run.status,
            "attempt": wanted,
            "roles": roles(run),
            "ssh": bool(run.spec.ssh),
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
    """Return the run directory of a task, on its cluster or here; None if there is none."""
    if t.started_at is None or run.status == PURGED:
        return None
    if t.batch_said is not None and t.batch_said.run_dir:
        return t.batch_said.run_dir
    return task_dir(run.run_dir, t.token.role, t.token.index) if run.spec.roles else run.run_dir


async def _wait(event: asyncio.Event, secs: float) -> None:
    try:
        async with asyncio.timeout(max(0.0, secs)):  # `wait_for` would make a task of it
            await event.wait()
    except TimeoutError:
        return  # the caller checks the deadline


async def _or_refusal(answer: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    try:
        return await answer
    except Refusal as e:
        return e.body()
