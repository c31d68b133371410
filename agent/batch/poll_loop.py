"""The poll loop over batch jobs: poll their files, query Slurm, and report each execution's exit
when nothing of it is left.

Files are polled often. Slurm is queried no more often than its cluster allows: soon after an event,
and less and less while nothing happens.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec

from ...protocol.clusters.batch import SlurmState
from ...protocol.clusters.cluster import Cluster, fallback_secs
from ...protocol.execution.lifecycle import Step
from ...protocol.execution.table import STOPPED_BEFORE
from ...protocol.jobs.exit_info import ExitInfo
from ...runtime import failpoints
from ...runtime.execution.output_limit import OutputCap
from ...runtime.filesystems import network_file_system
from ...runtime.log.logger import Log
from ..slurm.job_states import StatusKind
from .exit_info import build_exit_info, never_started
from .holds import DebugHolds
from .ledger import BatchLedger
from .observer import (
    CapInterval,
    Observation,
    PollPace,
    observe,
    refresh_folder,
    take_fence,
    taken_by_agent,
)
from .reconciliation import (
    ABSENT_SECS,
    IMPOSSIBLE_POLLS,
    REQUEUE_POLLS,
    Reconciler,
    is_gone,
    wants_account,
)
from .scheduler_queries import SchedulerQueries
from .start import Submitter
from .state import BatchJob, Task, is_held
from .stop import BatchStopper

#: Delay of Slurm's query after the script's exit (seconds). Slurm ends the job shortly after.
_AFTER_CODE_SECS = 0.3
#: Delay of Slurm's query after a submission or start (seconds). An immediate query learns little,
#: and a short job's exit would then wait for a whole interval. The delay is at most half of the
#: shortest interval.
_AFTER_START_SECS = 1.0
#: Maximum wait for accounting's answer about the usage of a gang's task that ended alone (seconds).
_USAGE_SECS = 1.5
#: Maximum delay until a file written before the job's end is visible: on a local file system, and
#: over a network (seconds).
_VISIBLE_SECS, _VISIBLE_NETWORK_SECS = 1.0, 15.0
_GROWTH = 1.5


class BatchPollLoop:
    """Polls the files of batch jobs and queries Slurm. changed(job): called when the known state of
    the job changes.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: BatchLedger,
        queries: SchedulerQueries,
        stopper: BatchStopper,
        submitter: Submitter,
        reconciler: Reconciler,
        cap: OutputCap,
        log: Log,
        changed: Callable[[BatchJob], None],
    ) -> None:
        self._cluster, self._ledger, self._queries, self._stopper = (
            cluster,
            ledger,
            queries,
            stopper,
        )
        self._submitter, self._reconciler, self._cap, self._log, self._changed = (
            submitter,
            reconciler,
            cap,
            log,
            changed,
        )
        self.holds = DebugHolds(ledger, stopper, self.query_soon)
        self._jobs: dict[str, BatchJob] = {}
        self._cap_interval, self._pace = CapInterval(cap), PollPace()
        self._wake = asyncio.Event()
        self._visibility: dict[str, float] = {}
        #: jobs whose failure was logged
        self._faulty: set[str] = set()
        #: time of the last query and of the next one (monotonic)
        self._queried_at, self._query_at, self._interval = float("-inf"), 0.0, cluster.poll_secs
        #: whether something happened since the last query
        self._wanted = False

    def add(self, job: BatchJob) -> None:
        """Watch this job. Slurm is queried only after the submission: then call
        `query_soon_after_start` or `query_soon`.
        """
        if not self._submitted_jobs():
            self._query_at = float("inf")
        self._jobs[job.first_task.name] = job
        for task in job.live:
            if task.limit is not None:  # Slurm enforces the limit of the order
                slack = self._cluster.limit_slack_secs
                task.life.limit = fallback_secs(task.limit, slack)
        self._wake.set()

    def query_soon_after_start(self, job: BatchJob) -> None:
        """Query Slurm a short time after a submission or a start."""
        self.query_soon(job, min(_AFTER_START_SECS, self._cluster.poll_secs / 2))

    def query_soon(self, job: BatchJob, delay: float = 0.0) -> None:
        """Poll the files now, and query Slurm as soon as the interval allows."""
        self._wanted, self._interval = True, self._cluster.poll_secs
        self._query_at = min(
            self._query_at,
            max(self._queried_at + self._cluster.poll_secs, time.monotonic() + delay),
        )
        self._pace.next_pause(changed=True)
        self._wake.set()

    def mark_unknown(self, job: BatchJob, sentence: str) -> None:
        self._reconciler.mark_unknown(job, sentence)
        self._changed(job)

    def end(self, job: BatchJob, task: Task, exit_: ExitInfo) -> None:
        """Record and report the exit of a task. Nothing of the task is left."""
        if task.life.ended:  # meanwhile
            return
        self._ledger.close(task.folder, exit_)
        failpoints.reached("keeper.ended")
        task.life.finish(exit_)
        self._changed(job)
        if not job.live:
            self._jobs.pop(job.first_task.name, None)
            self._faulty.discard(job.first_task.name)
            self._ledger.try_write(job)

    def end_unstarted(self, job: BatchJob, detail: str, fault: str | None = None) -> None:
        """End all tasks of a job that never started."""
        for task in job.live:
            exit_ = never_started(detail, task.life.requested_reason, fault)
            if job.sbatch_runs:
                exit_ = msgspec.structs.replace(exit_, batch=job.state)
            self.end(job, task, exit_)

    async def run(self) -> None:
        """Poll until canceled."""
        query: asyncio.Task[None] | None = None
        try:
            while True:
                self._wake.clear()
                await self._poll_files()
                if query is not None and query.done():
                    error, query = query.exception(), None
                    if error is not None:
                        self._log.exception("a query of Slurm failed", error=error)
                        self._query_at = time.monotonic() + self._cluster.poll_max_secs
                if query is None and time.monotonic() >= self._query_at and self._submitted_jobs():
                    query = asyncio.get_running_loop().create_task(self._query_slurm())
                    query.add_done_callback(lambda _: self._wake.set())
                with contextlib.suppress(TimeoutError):
                    # wait_for may swallow a cancellation
                    async with asyncio.timeout(self._pause(query is not None)):
                        await self._wake.wait()
        finally:
            if query is not None:
                query.cancel()

    def _pause(self, querying: bool) -> float | None:
        if not self._jobs and not self._ledger.pending:
            return None
        now = time.monotonic()
        dues = [t.life.wake_at(now) - now for j in self._jobs.values() for t in j.live]
        dues.append(self._pace.secs)
        if not querying and self._submitted_jobs():
            dues.append(self._query_at - now)
        return max(0.01, min(dues))

    def _submitted_jobs(self) -> list[BatchJob]:
        return [j for j in self._jobs.values() if j.sbatch_runs and not j.submitting]

    # ---- files

    async def _poll_files(self) -> None:
        jobs = list(self._jobs.values())
        tasks = {t: j for j in jobs for t in j.live if j.sbatch_runs}
        completing = {t for t, j in tasks.items() if j.state.state == SlurmState.COMPLETING}
        observations = await asyncio.to_thread(
            observe, list(tasks), self._cap_interval.due(), completing
        )
        for task, observation in observations.items():
            self._apply_observation(tasks[task], task, observation)
        self._pace.next_pause(changed=bool(observations))
        now = time.monotonic()
        for job in jobs:
            if any(t.life.next_step(now) is Step.RECORD_STOP for t in job.live):  # a time limit
                self._stopper.work(job)
            try:
                await self._settle(job)
            except Exception as e:  # continue with the other jobs; this one is retried
                self._log_failure(job, e)
        if self._ledger.pending:
            self._ledger.pending.retry()

    def _log_failure(self, job: BatchJob, error: Exception) -> None:
        if job.first_task.name not in self._faulty:
            self._faulty.add(job.first_task.name)
            task = job.first_task
            task.log.exception("cannot process {}; the agent retries", str(task.token), error=error)

    def _apply_observation(self, job: BatchJob, task: Task, observation: Observation) -> None:
        life, now = task.life, time.monotonic()
        if life.ended:  # meanwhile
            return
        if observation.started is not None and task.started is None:
            if taken_by_agent(observation.started):
                life.start_barred()
            else:
                task.started, task.seen_at = observation.started, time.time()
                age = (
                    max(0.0, time.time() - observation.started.at)
                    if observation.started.at is not None
                    else 0.0
                )
                life.started(observation.started.at, now - age)
                if observation.started.job_id != job.job_id:  # Slurm has two jobs; this one runs
                    job.job_id, job.unsure, job.slurm_status, job.over_mono, job.absent_mono = (
                        observation.started.job_id,
                        False,
                        None,
                        None,
                        None,
                    )
                    job.state = msgspec.structs.replace(job.state, job_id=job.job_id)
                    self._ledger.try_write(job)
                    self._stopper.retry_now(job)
                self.query_soon_after_start(job)
        if observation.own is not None and life.own_exit is None:
            life.exited(now)
            if life.exit_due(now):
                life.exit_reported(observation.own)
            task.code_at = time.time()
            self.query_soon(job, _AFTER_CODE_SECS)
        if observation.held_until is not None and task.held_until is None and life.exiting:
            self.holds.observed(task, observation.held_until)
        if observation.over and task.step_over_mono is None:
            task.step_over_mono, task.code_at = now, min(task.code_at, time.time())
            self.query_soon(job, _AFTER_CODE_SECS)
        self._changed(job)

    # ---- exits

    async def _settle(self, job: BatchJob) -> None:
        if job.submitting or not job.sbatch_runs:
            return
        if job.impossible_polls >= IMPOSSIBLE_POLLS or (job.impossible and _left_queue(job)):
            await self._end_impossible(job)
            return
        if job.requeue_polls >= REQUEUE_POLLS:
            await self._cancel_requeued(job)
        await self.holds.end_overdue(job)
        over = self._over(job)
        for task in job.live:
            alone = job.gang and not job.stopping and task.life.barred
            step = self._step_over(job, task)
            if (
                (over and (task.life.exiting or task.life.barred or self._exit_complete(job, task)))
                or alone
                or step
            ):
                self.end(job, task, await asyncio.to_thread(build_exit_info, job, task, self._cap))

    def _step_over(self, job: BatchJob, task: Task) -> bool:
        """Return whether the task ended alone. If Slurm ends the whole job, wait for Slurm's report
        instead.
        """
        if (
            not job.gang
            or task.step_over_mono is None
            or not (task.exited_first or task.life.stop_reason is not None)
        ):
            return False
        asked = job.usage_mono > task.step_over_mono or self._queries.accounting is False
        if not asked and time.monotonic() - task.step_over_mono < _USAGE_SECS:
            return False
        return self._writes_visible(task, task.step_over_mono)

    def _over(self, job: BatchJob) -> bool:
        """Return whether nothing of the job is left, according to Slurm."""
        if job.slurm_status is None:
            return False
        if job.slurm_status.kind == StatusKind.OVER:
            return True
        exited = all(t.life.exiting and not is_held(t) for t in job.live)
        if job.absent_mono is not None and exited:
            return True  # its script had exited before Slurm forgot it
        return is_gone(job)

    def _exit_complete(self, job: BatchJob, task: Task) -> bool:
        """Return whether all sources of the exit info have reported."""
        if is_gone(job):
            return True
        return (
            job.over_mono is not None
            and self._writes_visible(task, job.over_mono)
            and not wants_account(job)
        )

    def _writes_visible(self, task: Task, since: float) -> bool:
        """Return whether a file written before this time would be visible now."""
        if task.life.exiting:
            return True
        refresh_folder(task.folder)
        return time.monotonic() - since >= self._visibility_secs(task.folder)

    def _visibility_secs(self, folder: str) -> float:
        parent = folder.rpartition("/")[0]
        if parent not in self._visibility:
            self._visibility[parent] = (
                _VISIBLE_SECS if network_file_system(parent) is None else _VISIBLE_NETWORK_SECS
            )
        return self._visibility[parent]

    async def _end_impossible(self, job: BatchJob) -> None:
        """Cancel a job that can never start, and end its tasks with the reason."""
        if not job.impossible:
            job.impossible = job.state.sentence
            self._ledger.try_write(job)
        for task in job.live:
            if not task.life.barred and await asyncio.to_thread(take_fence, task.folder):
                task.life.start_barred()
        if not all(t.life.barred for t in job.live):  # it started after all
            job.impossible, job.impossible_polls = "", 0
            return
        if not _left_queue(job) and not await self._stopper.cancel(job):
            job.impossible_polls = 0  # retry when Slurm has reported it again
            return
        self.end_unstarted(job, job.impossible, "neverPossible")

    async def _cancel_requeued(self, job: BatchJob) -> None:
        """Cancel a job that was requeued after its start. It would only find its token consumed."""
        job.requeue_polls = 0  # if the cancel fails, retry when Slurm has reported it again
        if not job.requeue_canceled:
            job.requeue_canceled = True
            self._ledger.try_write(job)
            job.first_task.log(
                "Slurm job {} of {} was requeued after its start: canceling it",
                job.job_id,
                str(job.first_task.token),
            )
        await self._stopper.cancel(job)
        self.query_soon(job)

    # ---- Slurm

    async def _query_slurm(self) -> None:
        self._queried_at, self._wanted = time.monotonic(), False
        jobs = self._submitted_jobs()
        unsure = [j.first_sbatch_at for j in jobs if j.job_id is None]
        need_accounts = [j.job_id for j in jobs if j.job_id is not None and wants_account(j)]
        before = [_progress(j) for j in jobs]
        snapshot = await self._queries.query(
            [j.job_id for j in jobs if j.job_id is not None],
            since=min(unsure) if unsure else None,
            need_accounts=need_accounts,
        )
        accounting = self._queries.accounting is not False
        await self._query_usage(jobs)
        for job in jobs:
            if not job.live:
                continue
            if self._reconciler.needs_resubmission(job, snapshot):
                self._submit_again(job, snapshot.began)
            if not job.submitting:
                previous_id = job.job_id
                self._reconciler.apply(job, snapshot, accounting=accounting)
                if job.job_id != previous_id:
                    self._ledger.try_write(job)
                    self._stopper.retry_now(job)
                self._changed(job)
        changed = before != [_progress(j) for j in jobs]
        self._plan(
            jobs, changed=changed and snapshot.outage is None, outage=snapshot.outage is not None
        )

    async def _query_usage(self, jobs: list[BatchJob]) -> None:
        """Query accounting for the usage of jobs and steps that have ended."""
        ended = {j.job_id: j for j in jobs if j.job_id is not None and _has_usage(j)}
        for job in ended.values():
            job.usage_mono = time.monotonic()
        for id_, usage in (await self._queries.usage(list(ended))).items():
            # accounting may report the name late
            if id_ in ended and usage.name in (ended[id_].name, "allocation", ""):
                ended[id_].usage = usage

    def _plan(self, jobs: list[BatchJob], *, changed: bool, outage: bool) -> None:
        """Set the time of the next query."""
        self._queried_at = time.monotonic()
        pending = not outage and any(_expects_news(j) for j in jobs if j.live)
        shortest = self._cluster.poll_secs
        self._interval = (
            shortest
            if changed or pending or self._wanted
            else min(self._cluster.poll_max_secs, self._interval * _GROWTH)
        )
        self._query_at = self._queried_at + max(shortest, self._interval)

    def _submit_again(self, job: BatchJob, began: float) -> None:
        """Submit a job again that Slurm does not have, or end it if it is being stopped."""
        if job.stopping:
            self.end_unstarted(job, STOPPED_BEFORE)
        else:
            job.first_task.log(
                "Slurm does not have {}, submitted {:.0f} s ago: submitting it again",
                str(job.first_task.token),
                began - job.sbatch_at,
            )
            self._submitter.submit(job)


def _has_usage(job: BatchJob) -> bool:
    """Return whether Slurm may have stored the usage of a task that is not reported as ended."""
    over = job.slurm_status is not None and job.slurm_status.kind == StatusKind.OVER
    return not job.foreign and (over or any(t.life.exiting for t in job.live))


def _left_queue(job: BatchJob) -> bool:
    """Return whether the job has left Slurm's queue."""
    return job.slurm_status is not None and job.slurm_status.kind in (
        StatusKind.OVER,
        StatusKind.ABSENT,
    )


def _progress(job: BatchJob) -> tuple[object, ...]:
    """Return the values whose change makes another change likely. (Slurm updates expected start and
    reason continuously.)
    """
    return job.job_id, job.state.state, job.slurm_status and job.slurm_status.kind


def _expects_news(job: BatchJob) -> bool:
    """Return whether the next answer is likely to show a change."""
    absent = job.absent_mono is not None and time.monotonic() - job.absent_mono < 6 * ABSENT_SECS
    return (
        absent
        or job.unsure
        or job.over_mono is not None
        or any(t.life.exiting and not is_held(t) for t in job.live)
    )
