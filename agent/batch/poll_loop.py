"""The watch over batch jobs: look at their files, ask Slurm about them, and say each execution's
end when nothing of it is left.

Files are looked at often and Slurm is asked seldom: no more often than its cluster allows, soon
after something happened, ever more seldom while nothing does.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec

from ...protocol.clusters.cluster import Cluster, fallback_secs
from ...protocol.ids import execution_log_ids
from ...protocol.jobs.exit_info import ExitInfo
from ...runtime import failpoints
from ...runtime.execution.output_limit import OutputCap
from ...runtime.filesystems import network_file_system
from ...runtime.log.logger import Log
from .exit_info import exit_of, never
from .ledger import BatchLedger
from .observer import Capping, Observation, PollPace, fresh, look, take_fence, taken
from .reconciliation import (
    ABSENT_SECS,
    AGAIN_ROUNDS,
    IMPOSSIBLE_ROUNDS,
    Reconciler,
    gone,
    wants_account,
)
from .scheduler_queries import SchedulerQueries
from .start import Submitter
from .state import BatchJob, Task
from .stop import BatchStopper

#: Slurm's own end of a job follows its script's so closely (seconds).
_AFTER_CODE_SECS = 0.3
#: What was submitted or started just now has little to tell, and may be over soon: asked at once,
#: Slurm may be asked again only when a short job's end has waited for it. So that much later, but
#: no later than after half of the shortest interval (seconds).
_JUST_SECS = 1.0
#: A file that was written just before the job was over is seen so much later, at the most: here,
#: and over a network (seconds).
_LATE_SECS, _LATE_NETWORK_SECS = 1.0, 15.0
_GROWTH = 1.5


class BatchPollLoop:
    """changed(job): something is known of it that was not."""

    def __init__(
        self,
        cluster: Cluster,
        ledger: BatchLedger,
        polling: SchedulerQueries,
        stopping: BatchStopper,
        submitting: Submitter,
        rounds: Reconciler,
        cap: OutputCap,
        log: Log,
        changed: Callable[[BatchJob], None],
    ) -> None:
        self._cluster, self._ledger, self._polling, self._stopping = (
            cluster,
            ledger,
            polling,
            stopping,
        )
        self._submitting, self._rounds, self._cap, self._log, self._changed = (
            submitting,
            rounds,
            cap,
            log,
            changed,
        )
        self._jobs: dict[str, BatchJob] = {}
        self._capping, self._pace = Capping(cap), PollPace()
        self._nudged = asyncio.Event()
        self._late: dict[str, float] = {}
        #: jobs of whom it was said that they cannot be looked after
        self._faulty: set[str] = set()
        #: when Slurm was asked last, and when it is to be asked again (monotonic)
        self._asked, self._due, self._interval = float("-inf"), 0.0, cluster.poll_secs
        #: something happened since it was asked
        self._wanted = False

    def add(self, job: BatchJob) -> None:
        """There is nothing to ask before it was submitted; whoever does that calls `just` or
        `soon`.
        """
        if not self._askable():
            self._due = float("inf")
        self._jobs[job.lead.name] = job
        self._nudged.set()

    def just(self, job: BatchJob) -> None:
        """It was submitted or started a moment ago."""
        self.soon(job, min(_JUST_SECS, self._cluster.poll_secs / 2))

    def soon(self, job: BatchJob, delay: float = 0.0) -> None:
        """Something is happening with it: look, and ask Slurm as soon as it may be asked."""
        self._wanted, self._interval = True, self._cluster.poll_secs
        self._due = min(
            self._due, max(self._asked + self._cluster.poll_secs, time.monotonic() + delay)
        )
        self._pace.looked(changed=True)
        self._nudged.set()

    def unknown(self, job: BatchJob, sentence: str) -> None:
        self._rounds.unknown(job, sentence)
        self._changed(job)

    def end(self, job: BatchJob, task: Task, exit_: ExitInfo) -> None:
        """Nothing of it is left."""
        self._ledger.close(task.folder, exit_)
        failpoints.reached("keeper.ended")
        task.exit = exit_
        self._changed(job)
        if not job.live:
            self._jobs.pop(job.lead.name, None)
            self._faulty.discard(job.lead.name)
            self._ledger.note_when_possible(job)

    async def run(self) -> None:
        """For ever."""
        asking: asyncio.Task[None] | None = None
        try:
            while True:
                self._nudged.clear()
                await self._look()
                if asking is not None and asking.done():
                    error, asking = asking.exception(), None
                    if error is not None:
                        self._log.exception("Slurm could not be asked", error=error)
                        self._due = time.monotonic() + self._cluster.poll_max_secs
                if asking is None and time.monotonic() >= self._due and self._askable():
                    asking = asyncio.get_running_loop().create_task(self._ask())
                    asking.add_done_callback(lambda _: self._nudged.set())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(
                        self._pause(asking is not None)
                    ):  # (wait_for may swallow a cancellation)
                        await self._nudged.wait()
        finally:
            if asking is not None:
                asking.cancel()

    def _pause(self, asking: bool) -> float | None:
        if not self._jobs and not self._ledger.owed:
            return None
        now = time.monotonic()
        dues = [self._pace.secs, *(at - now for _, _, at in self._limits())]
        if not asking and self._askable():
            dues.append(self._due - now)
        return max(0.01, min(dues))

    def _askable(self) -> list[BatchJob]:
        return [j for j in self._jobs.values() if j.asked and not j.submitting]

    def _limits(self) -> list[tuple[BatchJob, Task, float]]:
        """Tasks with a time limit, and when Slurm should have ended each at the latest (monotonic)."""
        return [
            (j, t, t.began_mono + fallback_secs(t.limit, self._cluster.limit_slack_secs))
            for j in self._jobs.values()
            for t in j.live
            if t.limit is not None
            and t.began_mono is not None
            and t.stop_reason is None
            and t.own is None
        ]

    # ---- files

    async def _look(self) -> None:
        jobs = list(self._jobs.values())
        tasks = {t: j for j in jobs for t in j.live if j.asked}
        completing = {t for t, j in tasks.items() if j.state.state == "COMPLETING"}
        seen = await asyncio.to_thread(look, list(tasks), self._capping.due(), completing)
        for task, now in seen.items():
            self._saw(tasks[task], task, now)
        self._pace.looked(changed=bool(seen))
        for job, task, at in self._limits():
            if time.monotonic() >= at:
                self._stopping.stop(job, task, "timeLimit", task.grace)
        for job in jobs:
            try:
                await self._settle(job)
            except (
                Exception
            ) as e:  # the others are looked after all the same, and this one is tried again
                self._failed(job, e)
        self._ledger.pay()

    def _failed(self, job: BatchJob, error: Exception) -> None:
        if job.lead.name not in self._faulty:
            self._faulty.add(job.lead.name)
            token = job.lead.token
            self._log.exception(
                "{} cannot be looked after; it is tried again and again",
                str(token),
                error=error,
                **execution_log_ids(token),
            )

    def _saw(self, job: BatchJob, task: Task, now: Observation) -> None:
        clock = time.monotonic()
        if now.started is not None and task.started is None:
            if taken(now.started):
                task.fenced = True
            else:
                task.started, task.seen_at = now.started, time.time()
                age = max(0.0, time.time() - now.started.at) if now.started.at is not None else 0.0
                task.began_mono = clock - age
                if now.started.job_id != job.job_id:  # of two that Slurm has, this one runs
                    job.job_id, job.unsure, job.verdict, job.over_mono, job.absent_mono = (
                        now.started.job_id,
                        False,
                        None,
                        None,
                        None,
                    )
                    job.state = msgspec.structs.replace(job.state, job_id=job.job_id)
                    self._ledger.note_when_possible(job)
                    self._stopping.again(job)
                self.just(job)
        if now.own is not None and task.own is None:
            task.own, task.code_mono, task.code_at = now.own, clock, time.time()
            self.soon(job, _AFTER_CODE_SECS)
        if now.over and task.step_over_mono is None:
            task.step_over_mono, task.code_at = clock, min(task.code_at, time.time())
            self.soon(job, _AFTER_CODE_SECS)
        self._changed(job)

    # ---- ends

    async def _settle(self, job: BatchJob) -> None:
        if job.submitting or not job.asked:
            return
        if job.impossible_rounds >= IMPOSSIBLE_ROUNDS or (job.impossible and _out_of_it(job)):
            await self._end_impossible(job)
            return
        if job.again_rounds >= AGAIN_ROUNDS:
            await self._recall(job)
        over = self._over(job)
        for task in job.live:
            alone = job.gang and not job.stopping and task.fenced
            step = self._step_over(job, task)
            if (
                (over and (task.code_mono is not None or task.fenced or self._told(job, task)))
                or alone
                or step
            ):
                self.end(job, task, await asyncio.to_thread(exit_of, job, task, self._cap))

    def _step_over(self, job: BatchJob, task: Task) -> bool:
        """Has it ended alone? Its step may also have ended because Slurm ends the job: then Slurm's
        word is waited for.
        """
        if (
            not job.gang
            or task.step_over_mono is None
            or not (task.exited_first or task.stop_reason is not None)
        ):
            return False
        return self._written(task, task.step_over_mono)

    def _over(self, job: BatchJob) -> bool:
        """Is nothing of it left, by Slurm's word?"""
        if job.verdict is None:
            return False
        if job.verdict.kind == "over":
            return True
        if job.absent_mono is not None and all(t.code_mono is not None for t in job.live):
            return True  # its script was over before Slurm forgot it
        return gone(job)

    def _told(self, job: BatchJob, task: Task) -> bool:
        """Is all there that can tell how it ended?"""
        if gone(job):
            return True
        return (
            job.over_mono is not None
            and self._written(task, job.over_mono)
            and not wants_account(job)
        )

    def _written(self, task: Task, since: float) -> bool:
        """Would what it wrote before that moment be seen by now?"""
        if task.code_mono is not None:
            return True
        fresh(task.folder)
        return time.monotonic() - since >= self._lateness(task.folder)

    def _lateness(self, folder: str) -> float:
        parent = folder.rpartition("/")[0]
        if parent not in self._late:
            self._late[parent] = (
                _LATE_SECS if network_file_system(parent) is None else _LATE_NETWORK_SECS
            )
        return self._late[parent]

    async def _end_impossible(self, job: BatchJob) -> None:
        """It would wait for ever: it is canceled, and ends with the reason."""
        if not job.impossible:
            job.impossible = job.state.sentence
            self._ledger.note_when_possible(job)
        for task in job.live:
            task.fenced = task.fenced or await asyncio.to_thread(take_fence, task.folder)
        if not all(t.fenced for t in job.live):  # it started after all
            job.impossible, job.impossible_rounds = "", 0
            return
        if not _out_of_it(job) and not await self._stopping.cancel(job):
            job.impossible_rounds = 0  # when Slurm has said it again
            return
        for task in job.live:
            self.end(
                job,
                task,
                never(job.impossible, job, stop_reason=task.stop_reason, fault="neverPossible"),
            )

    async def _recall(self, job: BatchJob) -> None:
        """Somebody put it into the queue again: it would wait, to find that its token is used up."""
        job.again_rounds = 0  # if Slurm does not take it: when it has said it again
        if not job.recalled:
            job.recalled = True
            self._ledger.note_when_possible(job)
            self._log(
                "Slurm's job {} of {} has started and is in the queue again: it is canceled",
                job.job_id,
                str(job.lead.token),
                **execution_log_ids(job.lead.token),
            )
        await self._stopping.cancel(job)
        self.soon(job)

    # ---- Slurm

    async def _ask(self) -> None:
        self._asked, self._wanted = time.monotonic(), False
        jobs = self._askable()
        unsure = [j.first_asked_at for j in jobs if j.job_id is None]
        need = [j.job_id for j in jobs if j.job_id is not None and wants_account(j)]
        before = [_standing(j) for j in jobs]
        said = await self._polling.ask(
            [j.job_id for j in jobs if j.job_id is not None],
            since=min(unsure) if unsure else None,
            need_accounts=need,
        )
        accounting = self._polling.accounting is not False
        for job in jobs:
            if not job.live:
                continue
            if self._rounds.resubmit(job, said):
                self._looked_in_vain(job, said.began)
            if not job.submitting:
                known = job.job_id
                self._rounds.heard(job, said, accounting=accounting)
                if job.job_id != known:
                    self._ledger.note_when_possible(job)
                    self._stopping.again(job)
                self._changed(job)
        changed = before != [_standing(j) for j in jobs]
        self._plan(jobs, changed=changed and said.outage is None, outage=said.outage is not None)

    def _plan(self, jobs: list[BatchJob], *, changed: bool, outage: bool) -> None:
        """When it is asked again."""
        self._asked = time.monotonic()
        pending = not outage and any(_awaited(j) for j in jobs if j.live)
        shortest = self._cluster.poll_secs
        self._interval = (
            shortest
            if changed or pending or self._wanted
            else min(self._cluster.poll_max_secs, self._interval * _GROWTH)
        )
        self._due = self._asked + max(shortest, self._interval)

    def _looked_in_vain(self, job: BatchJob, began: float) -> None:
        """Handed over, and not there: again, unless it is to end anyway."""
        if job.stopping:
            for task in job.live:
                self.end(
                    job, task, never("stopped before it started", job, stop_reason=task.stop_reason)
                )
        else:
            self._log(
                "Slurm does not have {}, which was handed to it {:.0f} s ago: it is submitted again",
                str(job.lead.token),
                began - job.asked_at,
                **execution_log_ids(job.lead.token),
            )
            self._submitting.submit(job)


def _out_of_it(job: BatchJob) -> bool:
    """Is it in Slurm's queue no more?"""
    return job.verdict is not None and job.verdict.kind in ("over", "absent")


def _standing(job: BatchJob) -> tuple[object, ...]:
    """When this is another one, more is to be expected. (When a job will start, and behind whom it
    waits, Slurm says anew all the time.)
    """
    return job.job_id, job.state.state, job.verdict and job.verdict.kind


def _awaited(job: BatchJob) -> bool:
    """Is there something that the next answer is expected to say?"""
    absent = job.absent_mono is not None and time.monotonic() - job.absent_mono < 6 * ABSENT_SECS
    return (
        absent
        or job.unsure
        or job.over_mono is not None
        or any(t.code_mono is not None for t in job.live)
    )
