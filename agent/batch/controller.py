"""Executions through Slurm, with a keeper's guarantees: each token is launched at most once,
watched, stopped on request or at its time limit, and its exit is remembered until it is forgotten.

No state is only in memory: when the agent is killed at any instant, the next agent recovers
everything from the ledger, the evidence and Slurm.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from ...protocol.clusters.batch import ClusterStatus
from ...protocol.clusters.cluster import Cluster
from ...protocol.errors import Refusal
from ...protocol.execution.phases import Phase
from ...protocol.execution.table import REFUSED_BEFORE, STOPPED_BEFORE, ExecutionTable, Use
from ...protocol.ids import Token
from ...protocol.jobs.execution_state import ExecutionState
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.wire.messages import Execution, Samples, Shared, TaskSpec
from ...runtime.execution.folder import SCRIPT
from ...runtime.execution.output_limit import DEFAULT_HEAD, DEFAULT_TAIL, OutputCap
from ...runtime.log.logger import Log
from ..files.output_reader import Evidence
from ..host.login_environment import LoginEnvironment, current_account
from ..keeper.linux.oom_detection import describe_fault
from ..slurm import command_lines
from ..slurm.job_states import StatusKind
from . import cluster_facts
from .command_runner import Commands, Run, environment
from .exit_info import never_started
from .ledger import BatchLedger
from .poll_loop import BatchPollLoop
from .preparation import LaunchRequest, Preparation, Unprepared
from .reconciliation import Reconciler
from .scheduler_queries import SchedulerQueries
from .start import Submitter
from .state import BatchJob, Task, report, state_of
from .stop import BatchStopper
from .usage import BatchUsage

NEVER_SUBMITTED = "the agent ended before it submitted the job"
OTHERS_USED = "other tasks of its gang were launched before"
#: `stop_all` waits for Slurm at most this much longer than the grace (seconds).
_STOP_ALL_SECS = 30.0
#: Pause before a failed background task is restarted (seconds).
_RESTART_SECS = 5.0

Report = Callable[[Execution], None]


class BatchController:
    """Owner of this agent's batch jobs. folder: the agent's folder. report: receives every changed
    execution. base: folder shared by the agents of this unix user, or None.
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
        report: Report,
        *,
        run: Run | None = None,
        base: Path | None = None,
        run_dirs: bool = False,
        user: str | None = None,
        on_cluster_status: Callable[[ClusterStatus], None] | None = None,
        on_samples: Callable[[Samples], None] = lambda samples: None,
        cap: tuple[int, int] = (DEFAULT_HEAD, DEFAULT_TAIL),
    ) -> None:
        self._evidence, self._login, self._cluster, self._log, self._report = (
            evidence,
            login,
            cluster,
            log,
            report,
        )
        self._user = user or current_account().name
        #: the environment of Slurm's commands
        self.command_environment: Callable[[], dict[str, str]] = lambda: environment(
            login.known or {}, cluster.environment
        )
        self._run = run or Commands(self.command_environment)
        self._on_cluster_status = on_cluster_status
        self._cluster_status: ClusterStatus | None = None
        self._ledger = BatchLedger(str(folder), log)
        self._preparation = Preparation(
            self._ledger, cluster, deployment, apps, log, run_dirs=run_dirs
        )
        self._stopper = BatchStopper(
            cluster, self._ledger, self._run, log, lambda job: self._poll_loop.query_soon(job)
        )
        self._submitter = Submitter(
            cluster,
            self._ledger,
            self._run,
            accepted=self._accepted,
            refused=self._refused,
            unsure=self._outcome_unknown,
        )
        self.queries = SchedulerQueries(cluster, self._user, self._run, base)
        self._poll_loop = BatchPollLoop(
            cluster,
            self._ledger,
            self.queries,
            self._stopper,
            self._submitter,
            Reconciler(cluster, run_dirs=run_dirs),
            OutputCap(log, *cap),
            log,
            self._report_changes,
        )
        self._table = ExecutionTable()
        self._usage = BatchUsage(self._running, on_samples)
        self._tasks: set[asyncio.Task[None]] = set()
        self._change = asyncio.Event()

    # ---- lifecycle

    async def start(self) -> list[Execution]:
        """Recover the executions of earlier agents and start watching. Returns all known
        executions.
        """
        await asyncio.to_thread(self._ledger.make)
        if any(self._ledger.entries()):  # without entries, do not wait for a slow login profile
            await self._load_login_environment()
        self._recover()
        self._spawn(self._run_forever(self._poll_loop.run))
        self._spawn(self._run_forever(self._poll_cluster))
        self._spawn(self._run_forever(self._usage.run))
        return self.executions()

    async def close(self) -> None:
        """Stop watching. Jobs in Slurm continue."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        self._stopper.close()
        self._submitter.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def executions(self) -> list[Execution]:
        now = time.monotonic()
        return [report(task, now) for task in self._table.known.values()]

    def _running(self) -> Iterator[tuple[Token, str]]:
        """Yield tokens and evidence folders of tasks whose script runs."""
        for task in self._table.known.values():
            if task.started is not None and not task.life.ended:
                yield task.token, task.folder

    def cluster_status(self) -> ClusterStatus | None:
        """Return the newest cluster status, or None before the first one."""
        return self._cluster_status

    # ---- requests

    def use_apps(self, apps: tuple[str, ...]) -> None:
        """Use these apps, besides the installed ones, for later launches."""
        self._preparation.apps = apps

    def launch(self, token: Token, spec: TaskSpec) -> None:
        """Submit the execution unless its token was used before. Then report its state."""
        self._launch([(token, spec)], None)

    def launch_gang(self, shared: Shared, tasks: Sequence[tuple[Token, TaskSpec]]) -> None:
        """Submit all tasks as one batch job."""
        self._launch(list(tasks), shared)

    def stop(self, token: Token, reason: str, grace_secs: float) -> None:
        """Stop the execution. A token that was not launched is consumed and never runs."""
        if not self._is_known(token):
            task, detail = self._unlaunched(token), STOPPED_BEFORE
            try:
                self._ledger.consume(token, token.name)
                task.life.claimed()
            except OSError as e:
                detail = f"{STOPPED_BEFORE}, but {describe_fault(e)[1]}"
            self._end(task, never_started(detail, reason))
            return
        task = self._table.known[token]
        # after its own exit, Slurm may still complete the job
        if not task.life.ended and task.held_until is not None:
            self.release(token)
        elif task.life.ended or not self._stopper.stop(task.job, task, reason, grace_secs):
            self._report_now(task)
        if not task.life.ended:
            self._poll_loop.query_soon(task.job)

    def release(self, token: Token) -> None:
        """End the debug hold of a failed task. Without one, this has no effect."""
        task = self._table.known.get(token)
        if task is not None and task.held_until is not None and not task.life.ended:
            self._poll_loop.holds.release(task)

    def forget(self, tokens: Sequence[Token]) -> None:
        """Forget executions whose exit is durable elsewhere. Their evidence stays."""
        for token in self._table.settle(tokens):
            self._ledger.remove_entry(token.name)

    def enter(self, token: Token, node: str) -> tuple[list[str], Mapping[str, str]]:
        """Return the command that enters a node of an execution, and the environment for it. node:
        "" for the first one. A task of a gang has only one.

        Raises Refusal: notReady before its start, notHere after the end of its allocation.
        """
        # a task of a gang may have ended, and be forgotten, while the allocation lasts
        known = self._table.known.values()
        jobs = (t.job for t in known if _attempt(t.token) == _attempt(token))
        job = next((j for j in jobs if j is not None), None)
        task = next((t for t in job.tasks if t.token == token), None) if job is not None else None
        running = (
            job is not None
            and job.job_id is not None
            and job.slurm_status is not None
            and job.slurm_status.kind is StatusKind.RUNNING
        )
        if task is None or job is None or (task.life.ended and not running):
            raise Refusal(
                "notHere",
                f"its allocation on {self._cluster.name} is over; its files are there: log in to"
                f" {self._cluster.name} and run: /bin/sh {self._evidence.path(token.name, SCRIPT)} --shell",
            )
        if not running:
            raise Refusal(
                "notReady",
                f"it waits for Slurm on {self._cluster.name}; 'jobscribe job why' gives the reason",
            )
        assert job.job_id is not None
        node = state_of(job, task).node if job.gang else node
        return command_lines.enter(job.job_id, node, terminal=True), self.command_environment()

    async def stop_all(self, reason: str, grace: float) -> None:
        """Stop every live execution. Returns when all have ended, or after a time limit."""
        for task in self._table.live():
            self.stop(task.token, reason, grace)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace + _STOP_ALL_SECS):
                while any(self._table.live()):
                    self._change.clear()
                    await self._change.wait()

    # ---- launching

    def _launch(self, tasks: list[tuple[Token, TaskSpec]], shared: Shared | None) -> None:
        used = [token for token, _ in tasks if self._is_known(token)]
        for token in used:
            self._report_now(self._table.known[token])
        tasks = [t for t in tasks if t[0] not in used]
        if used or not tasks:
            for token, _ in tasks:  # a gang is one Slurm job, which was submitted before
                self._end(self._unlaunched(token), never_started(OTHERS_USED))
            return
        request = LaunchRequest(tasks, shared, self._login.umask)
        job = self._preparation.job(request)
        try:
            for task in job.tasks:
                self._ledger.consume(task.token, job.first_task.name)
                task.life.claimed()
        except OSError as e:
            fault_code, sentence = describe_fault(e)
            for task in job.tasks:
                detail = f"cannot write its evidence: {sentence}"
                self._end(task, never_started(detail, fault=fault_code))
            return
        self._table.known |= {t.token: t for t in job.tasks}
        job.submitting = True
        self._spawn(self._prepare(job, request))

    async def _prepare(self, job: BatchJob, request: LaunchRequest) -> None:
        try:
            await self._login.load()
            if not job.stopping:
                await asyncio.to_thread(
                    self._preparation.write_files, job, request._replace(umask=self._login.umask)
                )
        except (Refusal, Unprepared) as e:
            sentence, fault_code = (
                (e.sentence, None) if isinstance(e, Refusal) else (str(e), e.fault)
            )
            self._poll_loop.end_unstarted(job, sentence, fault_code)
            return
        job.first_task.log(
            "cmd=('sbatch', {}) jid={} runDir={}",
            f"{job.first_task.name}/batch.sh",
            job.first_task.token.jid,
            job.first_task.run_dir,
        )
        self._poll_loop.add(job)
        self._submitter.submit(job)

    def _accepted(self, job: BatchJob) -> None:
        job.state = msgspec.structs.replace(
            job.state,
            job_id=job.job_id,
            submitted_at=job.sbatch_at,
            unknown_since=None,
            sentence="",
        )
        self._report_changes(job)
        self._poll_loop.query_soon_after_start(job)

    def _refused(self, job: BatchJob, fault_code: str, sentence: str) -> None:
        self._poll_loop.end_unstarted(job, sentence, fault_code)

    def _outcome_unknown(self, job: BatchJob, sentence: str) -> None:
        """Handle an unknown outcome of sbatch. An empty sentence: the job was stopped before it was
        submitted.
        """
        if job.sbatch_runs == 0 and job.stopping:
            self._poll_loop.end_unstarted(job, STOPPED_BEFORE)
            return
        if sentence:
            job.first_task.log(
                "outcome of the submission of {} unknown: {}",
                str(job.first_task.token),
                sentence,
            )
            self._poll_loop.mark_unknown(job, sentence)
        self._poll_loop.query_soon(job)

    # ---- recovery

    def _is_known(self, token: Token) -> bool:
        """Return whether this token was used before. If so, load it into the table."""
        evidence = self._ledger.evidence(token.name)
        use = self._table.use_of(token, lambda: os.path.lexists(evidence))
        if use is Use.USED:
            self._recover_token(token, token.name)
        elif use is Use.REFUSED:
            self._add_ended(self._unlaunched(token), never_started(REFUSED_BEFORE))
        return use is not Use.FREE

    def _recover(self) -> None:
        for entry in list(self._ledger.entries()):
            # without a folder, the earlier agent ended before it consumed the token
            if not os.path.isdir(self._ledger.evidence(entry.token.name)):
                self._ledger.remove_entry(entry.token.name)
            elif entry.token not in self._table.known:
                self._recover_token(entry.token, entry.first_name)

    def _recover_token(self, token: Token, first_name: str) -> None:
        exit_ = self._ledger.exit(token.name)
        job = self._ledger.read(first_name) if exit_ is None else None
        task = None if job is None else next((t for t in job.tasks if t.token == token), None)
        if job is None or task is None:
            if exit_ is None:
                exit_ = never_started(NEVER_SUBMITTED)
                self._ledger.close(self._ledger.evidence(token.name), exit_)
            self._add_ended(self._unlaunched(token), exit_)
            return
        self._table.known |= {t.token: t for t in job.live}
        task.log(
            "{} was launched by an earlier agent as Slurm job {}",
            str(token),
            job.job_id or "(id not known yet)",
        )
        self._poll_loop.add(job)
        if job.sbatch_runs == 0:
            self._submitter.submit(job)
        else:
            self._poll_loop.query_soon(job)
        if any(t.life.stopping for t in job.live):
            self._stopper.work(job)

    # ---- ends and reports

    def _unlaunched(self, token: Token) -> Task:
        """Return an execution that has no batch job."""
        return Task(token, self._ledger.evidence(token.name), "", None, 0.0, self._log)

    def _end(self, task: Task, exit_: ExitInfo) -> None:
        """End and report an execution before its launch. It must not be retried."""
        if task.life.phase is Phase.NEW:  # it has no evidence
            self._table.refuse(task.token)
        else:
            self._ledger.close(task.folder, exit_)
        self._add_ended(task, exit_)
        self._report_now(task)

    def _add_ended(self, task: Task, exit_: ExitInfo) -> None:
        task.life.finish(exit_)
        self._table.known[task.token] = task

    def _report_now(self, task: Task) -> None:
        self._report(report(task, time.monotonic()))

    def _report_changes(self, job: BatchJob) -> None:
        """Report the tasks of this job that changed since their last report."""
        self._change.set()
        now = time.monotonic()
        for task in job.tasks:
            if task.token not in self._table.known or (task.released and not task.life.ended):
                continue  # the supervisor may have recorded its end already
            if task.last_report is not None and task.last_report.state == ExecutionState.ENDED:
                continue
            e = report(task, now)
            if (
                task.last_report is None
                or msgspec.structs.replace(e, elapsed_secs=task.last_report.elapsed_secs)
                != task.last_report
            ):
                task.last_report = e
                self._report(e)

    async def _load_login_environment(self) -> None:
        """Load the login environment, which may provide the path of Slurm's commands or the name of
        the cluster.
        """
        with contextlib.suppress(Refusal):
            await self._login.load()

    async def _poll_cluster(self) -> None:
        await self._load_login_environment()
        while True:
            status = self._cluster_status = await cluster_facts.cluster_status(
                self._cluster, self._user, self._run
            )
            if self._on_cluster_status is not None:
                self._on_cluster_status(status)
            await asyncio.sleep(
                cluster_facts.EVERY_SECS if status.scheduler == "up" else cluster_facts.AGAIN_SECS
            )

    async def _run_forever(self, part: Callable[[], Awaitable[None]]) -> None:
        """Run a background task until the agent ends. A failure is logged, and the task is
        restarted.
        """
        while True:
            try:
                await part()
            except Exception as e:
                self._log.exception(
                    "a background task for batch jobs failed; it restarts in {:g} s",
                    _RESTART_SECS,
                    error=e,
                )
            await asyncio.sleep(_RESTART_SECS)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.exception("a background task for batch jobs ended", error=error)


def _attempt(token: Token) -> tuple[str, int, int]:
    return token.jid, token.serial, token.attempt
