"""Executions through Slurm, with the promises of a keeper: each token is launched at most once,
watched, stopped when told or late, and its end is remembered until it is forgotten. Nothing of this
is in memory alone: an agent that is killed at any instant is followed by one that takes everything
over from the ledger, the evidence and what Slurm says.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from ...protocol.clusters.batch import ClusterStatus
from ...protocol.clusters.cluster import Cluster
from ...protocol.errors import Refusal
from ...protocol.ids import Token, about
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.wire.messages import Execution, Shared, TaskSpec
from ...runtime.execution.output_limit import DEFAULT_HEAD, DEFAULT_TAIL, OutputCap
from ...runtime.log.logger import Log
from ..files.output_reader import Evidence
from ..host.login_environment import LoginEnvironment, current_account
from ..keeper.linux.oom_detection import describe_fault
from . import cluster_facts
from .command_runner import Commands, Run, environment
from .exit_info import NEVER_TO_START, never
from .ledger import BatchLedger
from .poll_loop import BatchPollLoop
from .preparation import Asked, Preparation, Unprepared
from .reconciliation import Reconciler
from .scheduler_queries import SchedulerQueries
from .start import Submitter
from .state import BatchJob, Task, ended, execution
from .stop import BatchStopper

NEVER_SUBMITTED = "the agent ended before it was submitted"
OTHERS_USED = "other tasks of its gang were launched before"
#: What is told of a place that is about to end waits no longer for Slurm than this (seconds).
_STOP_ALL_SECS = 30.0
_REFUSED_KEPT = 10_000
#: Where a part of the watch failed, it goes on after so long.
_AGAIN_SECS = 5.0

Say = Callable[[Execution], None]


class BatchController:
    """folder: the agent's. say: hears every change. base: what agents of this unix user share;
    None: nothing.
    """

    def __init__(
        self,
        folder: Path,
        evidence: Evidence,
        login: LoginEnvironment,
        apps: tuple[str, ...],
        cluster: Cluster,
        deployment: str,
        log: Log,
        say: Say,
        *,
        run: Run | None = None,
        base: Path | None = None,
        run_dirs: bool = False,
        user: str | None = None,
        on_news: Callable[[ClusterStatus], None] | None = None,
        cap: tuple[int, int] = (DEFAULT_HEAD, DEFAULT_TAIL),
    ) -> None:
        self._evidence, self._login, self._cluster, self._log, self._say = (
            evidence,
            login,
            cluster,
            log,
            say,
        )
        self._user = user or current_account().name
        self._run = run or Commands(lambda: environment(login.known or {}, cluster.environment))
        self._on_news = on_news
        self._news: ClusterStatus | None = None
        self._ledger = BatchLedger(str(folder))
        self._preparing = Preparation(self._ledger, cluster, deployment, apps)
        self._stopping = BatchStopper(
            cluster, self._ledger, self._run, log, lambda job: self._tending.soon(job)
        )
        self._submitting = Submitter(
            cluster,
            self._ledger,
            self._run,
            log,
            accepted=self._accepted,
            refused=self._refused,
            unsure=self._unsure,
        )
        self.polling = SchedulerQueries(cluster, self._user, self._run, base)
        self._tending = BatchPollLoop(
            cluster,
            self._ledger,
            self.polling,
            self._stopping,
            self._submitting,
            Reconciler(cluster, run_dirs=run_dirs),
            OutputCap(log, *cap),
            log,
            self._changed,
        )
        #: every execution that was not forgotten: with the batch job it is in, or just its end
        self._known: dict[Token, tuple[BatchJob, Task] | ExitInfo] = {}
        self._refusals: dict[str, None] = {}
        self._working: set[asyncio.Task[None]] = set()
        self._something = asyncio.Event()

    # ---- begin and end

    async def start(self) -> list[Execution]:
        """Take over what earlier agents left; from now on everything is watched."""
        await asyncio.to_thread(self._ledger.make)
        if any(
            self._ledger.entries()
        ):  # else nobody waits here for a login's profile: it may take long
            await self._logged_in()
        self._recover()
        self._spawn(self._for_ever(self._tending.run))
        self._spawn(self._for_ever(self._tell_news))
        return self.executions()

    async def close(self) -> None:
        """What runs in Slurm runs on."""
        working = list(self._working)
        for task in working:
            task.cancel()
        self._stopping.close()
        self._submitting.close()
        await asyncio.gather(*working, return_exceptions=True)

    def executions(self) -> list[Execution]:
        return [self._execution(token) for token in self._known]

    def news(self) -> ClusterStatus | None:
        """The newest; None before there is any."""
        return self._news

    # ---- orders

    def use_apps(self, apps: tuple[str, ...]) -> None:
        """Runs from now on find these apps, besides the installed ones."""
        self._preparing.apps = apps

    def launch(self, token: Token, spec: TaskSpec) -> None:
        """Have Slurm start it, unless its token was used before; then say what became of it."""
        self._launch([(token, spec)], None)

    def launch_gang(self, shared: Shared, tasks: Sequence[tuple[Token, TaskSpec]]) -> None:
        """All of them in one batch job."""
        self._launch(list(tasks), shared)

    def stop(self, token: Token, reason: str, grace_secs: float) -> None:
        """Stop it. What was not launched yet never will be."""
        if not self._find(token):
            try:
                self._ledger.consume(token, token.name)
            except OSError as e:
                self._end_unlaunched(
                    token,
                    never(f"{NEVER_TO_START}, but {describe_fault(e)[1]}", stop_reason=reason),
                )
                return
            self._end_consumed(token, never(NEVER_TO_START, stop_reason=reason))
            return
        known = self._known[token]
        if isinstance(known, ExitInfo) or known[1].ended:
            self._say(self._execution(token))
            return
        self._stopping.stop(*known, reason, grace_secs)
        if known[1].stop_reason is None:  # it has ended by itself, and Slurm has not finished it
            self._say(self._execution(token))
        self._tending.soon(known[0])

    def forget(self, tokens: Sequence[Token]) -> None:
        """The end of these is known where it counts. Their evidence stays."""
        for token in tokens:
            known = self._known.get(token)
            if isinstance(known, ExitInfo) or (known is not None and known[1].ended):
                self._ledger.strike(token.name)
                del self._known[token]

    async def stop_all(self, reason: str, grace: float) -> None:
        """Everything that is not over; returns when it is, or after a while."""
        for token, known in list(self._known.items()):
            if not isinstance(known, ExitInfo) and not known[1].ended:
                self.stop(token, reason, grace)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace + _STOP_ALL_SECS):
                while any(e.state != "ended" for e in self.executions()):
                    self._something.clear()
                    await self._something.wait()

    # ---- launching

    def _launch(self, tasks: list[tuple[Token, TaskSpec]], shared: Shared | None) -> None:
        used = [token for token, _ in tasks if self._find(token)]
        for token in used:
            self._say(self._execution(token))
        tasks = [t for t in tasks if t[0] not in used]
        if used or not tasks:
            for token, _ in tasks:  # a gang is one job of Slurm's, and that has been
                self._end_unlaunched(token, never(OTHERS_USED))
            return
        asked = Asked(tasks, shared, self._login.umask)
        job = self._preparing.job(asked)
        consumed: list[Token] = []
        try:
            for token, _ in tasks:
                self._ledger.consume(token, job.lead.name)
                consumed.append(token)
        except OSError as e:
            word, sentence = describe_fault(e)
            exit_ = never(f"its evidence cannot be written: {sentence}", fault=word)
            for token, _ in tasks:
                (self._end_consumed if token in consumed else self._end_unlaunched)(token, exit_)
            return
        for task in job.tasks:
            self._known[task.token] = (job, task)
        job.submitting = True
        self._spawn(self._prepare(job, asked))

    async def _prepare(self, job: BatchJob, asked: Asked) -> None:
        try:
            await self._login.load()
            if not job.stopping:
                await asyncio.to_thread(
                    self._preparing.lay_out, job, asked._replace(umask=self._login.umask)
                )
        except (Refusal, Unprepared) as e:
            sentence, word = (e.sentence, None) if isinstance(e, Refusal) else (str(e), e.fault)
            for task in job.live:
                self._tending.end(
                    job, task, never(sentence, stop_reason=task.stop_reason, fault=word)
                )
            return
        self._log(
            "cmd=('sbatch', {}) jid={} runDir={}",
            f"{job.lead.name}/batch.sh",
            job.lead.token.jid,
            job.lead.run_dir,
            **about(job.lead.token),
        )
        self._tending.add(job)
        self._submitting.submit(job)

    def _accepted(self, job: BatchJob) -> None:
        job.state = msgspec.structs.replace(
            job.state, job_id=job.job_id, submitted_at=job.asked_at, unknown_since=None, sentence=""
        )
        self._changed(job)
        self._tending.just(job)

    def _refused(self, job: BatchJob, word: str, sentence: str) -> None:
        for task in job.live:
            self._tending.end(
                job, task, never(sentence, job, stop_reason=task.stop_reason, fault=word)
            )

    def _unsure(self, job: BatchJob, sentence: str) -> None:
        """sentence "": it was told to end before it was submitted."""
        if job.asked == 0 and job.stopping:
            for task in job.live:
                self._tending.end(job, task, never(NEVER_TO_START, stop_reason=task.stop_reason))
            return
        if sentence:
            self._log(
                "what became of the submission of {} is not known: {}",
                str(job.lead.token),
                sentence,
                **about(job.lead.token),
            )
            self._tending.unknown(job, sentence)
        self._tending.soon(job)

    # ---- what was before

    def _find(self, token: Token) -> bool:
        """Was this token used before? Then it is in `_known` from now on."""
        if token in self._known:
            return True
        if os.path.lexists(self._ledger.evidence(token.name)):
            self._take_over(token, token.name)
            return True
        if token.name in self._refusals:
            self._known[token] = never("its start failed before and is not tried again")
            return True
        return False

    def _recover(self) -> None:
        for entry in list(self._ledger.entries()):
            if not os.path.isdir(
                self._ledger.evidence(entry.token.name)
            ):  # that agent ended before it took the token
                self._ledger.strike(entry.token.name)
            elif entry.token not in self._known:
                self._take_over(entry.token, entry.lead)

    def _take_over(self, token: Token, lead: str) -> None:
        exit_ = self._ledger.exit(token.name)
        job = self._ledger.read(lead) if exit_ is None else None
        task = None if job is None else next((t for t in job.tasks if t.token == token), None)
        if job is None or task is None:
            if exit_ is None:
                exit_ = never(NEVER_SUBMITTED)
                self._ledger.close(self._ledger.evidence(token.name), exit_)
            self._known[token] = exit_
            return
        for t in job.live:
            self._known[t.token] = (job, t)
        self._log(
            "{} was launched by an earlier agent; Slurm's job {}",
            str(token),
            job.job_id or "is not known yet",
            **about(token),
        )
        self._tending.add(job)
        if job.asked == 0:
            self._submitting.submit(job)
        else:
            self._tending.soon(job)
        for t in [t for t in job.live if t.stop_reason is not None]:
            self._stopping.stop(job, t, t.stop_reason or "", t.grace)

    # ---- ends, reports

    def _end_consumed(self, token: Token, exit_: ExitInfo) -> None:
        self._ledger.close(self._ledger.evidence(token.name), exit_)
        self._known[token] = exit_
        self._say(self._execution(token))

    def _end_unlaunched(self, token: Token, exit_: ExitInfo) -> None:
        """It leaves no evidence, so it is remembered that it is not to be tried again."""
        self._refusals[token.name] = None
        if len(self._refusals) > _REFUSED_KEPT:
            del self._refusals[next(iter(self._refusals))]
        self._known[token] = exit_
        self._say(self._execution(token))

    def _execution(self, token: Token) -> Execution:
        known = self._known[token]
        return (
            ended(token, known)
            if isinstance(known, ExitInfo)
            else execution(*known, time.monotonic())
        )

    def _changed(self, job: BatchJob) -> None:
        """Say what is different from what was said last."""
        self._something.set()
        now = time.monotonic()
        for task in job.tasks:
            if task.token not in self._known or (
                task.said is not None and task.said.state == "ended"
            ):
                continue
            e = execution(job, task, now)
            if (
                task.said is None
                or msgspec.structs.replace(e, elapsed_secs=task.said.elapsed_secs) != task.said
            ):
                task.said = e
                self._say(e)

    async def _logged_in(self) -> None:
        """Slurm's commands may be found, and its cluster be named, by the login environment alone."""
        with contextlib.suppress(Refusal):
            await self._login.load()

    async def _tell_news(self) -> None:
        await self._logged_in()
        while True:
            news = self._news = await cluster_facts.news(self._cluster, self._user, self._run)
            if self._on_news is not None:
                self._on_news(news)
            await asyncio.sleep(
                cluster_facts.EVERY_SECS if news.scheduler == "up" else cluster_facts.AGAIN_SECS
            )

    async def _for_ever(self, part: Callable[[], Awaitable[None]]) -> None:
        """Nothing ends the watch but the agent's own end: whatever goes wrong in it is told, and it
        goes on.
        """
        while True:
            try:
                await part()
            except Exception as e:
                self._log.exception(
                    "a part of the watch over batch jobs failed; it goes on in {:g} s",
                    _AGAIN_SECS,
                    error=e,
                )
            await asyncio.sleep(_AGAIN_SECS)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._working.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.exception("a part of the watch over batch jobs ended", error=error)
