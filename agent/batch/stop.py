"""Stopping batch jobs or single tasks: SIGTERM to everything, grace, SIGKILL and scancel, repeated
until nothing is left.

A queued job gets no signal: the agent takes its fence, so that it never starts, and cancels it. The
stop reason is durable before the first signal. A task that has already written its exit code gets
no signal: the stop came too late and is not the cause.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from ...protocol.clusters.batch import SlurmState
from ...protocol.clusters.cluster import Cluster
from ...runtime import failpoints
from ...runtime.execution.folder import STOP
from ...runtime.log.logger import Log
from ..slurm import output_parser
from ..slurm.job_states import StatusKind
from .command_runner import Run
from .ledger import BatchLedger
from .observer import own_exit, refresh_folder, take_fence
from .state import BatchJob, Task

#: Tasks of a gang are stopped one by one. Wait this long for the others (seconds), because stopping
#: the job is cheaper than stopping all steps.
_COLLECT_SECS = 0.1
#: Pause between two tries (seconds): the initial and the maximum pause.
_RETRY_SECS, _RETRY_MAX_SECS = 2.0, 15.0
#: scancel's messages for a job that is over or does not exist.
_OVER = (
    "invalid job id",
    "already completed",
    "already completing",
    "job/step already",
    "not running",
    "not found",
)


class BatchStopper:
    """Stops tasks. changed(job): called after a signal or a fence, to poll the job soon."""

    def __init__(
        self,
        cluster: Cluster,
        ledger: BatchLedger,
        run: Run,
        log: Log,
        changed: Callable[[BatchJob], None],
    ) -> None:
        self._cluster, self._ledger, self._run, self._log, self._changed = (
            cluster,
            ledger,
            run,
            log,
            changed,
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._nudges: dict[str, asyncio.Event] = {}

    def stop(self, job: BatchJob, task: Task, reason: str, grace: float) -> None:
        """Stop a task. The first reason stays, and the shortest grace counts. Has no effect after
        the script's own exit.
        """
        if task.own is not None and not task.signaled:
            return
        now = time.monotonic()
        if task.kill_at is None:
            task.stop_reason = task.stop_reason or reason
            task.kill_at = now + grace
            task.grace = grace
            # before the first signal, so that an exit can always be attributed to its cause
            self._write_stop(task)
            failpoints.reached("keeper.stopping")
        task.kill_at = min(task.kill_at, now + grace)
        name = job.first_task.name
        if name in self._tasks:
            self.retry_now(job)
            return
        self._nudges[name] = asyncio.Event()
        worker = self._tasks[name] = asyncio.get_running_loop().create_task(self._work(job))
        worker.add_done_callback(lambda done: self._done(name, done))

    def _write_stop(self, task: Task) -> None:
        """Write stop.json. signaled: an exit from now on may be caused by this stop."""
        content = {
            "reason": task.stop_reason,
            "grace": task.grace,
            "at": time.time(),
            "signaled": task.signaled,
        }
        self._ledger.write_later(f"{task.folder}/{STOP}", content)

    def _may_signal(self, task: Task) -> bool:
        """Return whether the task may get a signal. False if it has written its exit code since the
        stop was requested.
        """
        if task.fenced or task.signaled:
            return True
        task.signaled = True
        self._write_stop(task)
        refresh_folder(task.folder)
        if own_exit(task.folder, task.started) is None:
            return True
        task.log("{} exited by itself before the stop ({})", str(task.token), task.stop_reason)
        task.signaled = False
        self._write_stop(task)
        task.stop_reason = task.kill_at = None
        return False

    async def cancel(self, job: BatchJob) -> bool:
        """Cancel a job. True if Slurm accepted, or if there is nothing to cancel."""
        return job.job_id is None or job.foreign or await self._cancel(job.job_id)

    def retry_now(self, job: BatchJob) -> None:
        """Retry now, because the state changed."""
        if job.first_task.name in self._nudges:
            self._nudges[job.first_task.name].set()

    def _done(self, name: str, work: asyncio.Task[None]) -> None:
        self._tasks.pop(name, None)
        self._nudges.pop(name, None)
        if not work.cancelled() and (error := work.exception()) is not None:
            self._log.exception("stopping {} failed", name, error=error)

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _work(self, job: BatchJob) -> None:
        """Repeat the stop steps until every task to stop has ended."""
        await asyncio.sleep(_COLLECT_SECS)
        pause = _RETRY_SECS
        while True:
            ending = [t for t in job.live if t.stop_reason is not None]
            if not ending:
                return
            try:
                done = await self._step(job, ending)
            except OSError as e:
                job.first_task.log(
                    "cannot stop {} now, will retry: {}", str(job.first_task.token), e.strerror
                )
                done = False
            self._changed(job)
            # after an accepted cancel, wait for Slurm's next report
            pause = (
                _RETRY_SECS + self._cluster.poll_secs if done else min(_RETRY_MAX_SECS, 2 * pause)
            )
            nudge = self._nudges[job.first_task.name]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause(job, pause)):
                    await nudge.wait()
            if nudge.is_set():
                nudge.clear()
                await asyncio.sleep(_COLLECT_SECS)

    def _pause(self, job: BatchJob, pause: float) -> float:
        """Return the seconds until the next grace period ends or the next retry is due."""
        now = time.monotonic()
        due = [t.kill_at - now for t in job.live if t.kill_at is not None and t.kill_at > now]
        return max(0.01, min([pause, *due]))

    async def _step(self, job: BatchJob, ending: list[Task]) -> bool:
        """Perform the next stop step. Return True if Slurm accepted it."""
        for task in ending:
            if task.started is None and not task.fenced:
                task.fenced = take_fence(task.folder)
        if job.job_id is None or job.foreign:  # if it starts, it finds the fences
            return False
        ending = [t for t in ending if self._may_signal(t)]
        if not ending or (
            job.state.state == SlurmState.COMPLETING and all(t.own is not None for t in ending)
        ):
            return True
        if len(ending) == len(job.live):
            return await self._stop_job(job, ending)
        accepted = [
            await self._stop_step(job, t)
            for t in ending
            if t.started is not None and t.step_over_mono is None
        ]
        return all(accepted)

    async def _stop_job(self, job: BatchJob, ending: list[Task]) -> bool:
        assert job.job_id is not None
        now = time.monotonic()
        waiting = job.slurm_status is None or job.slurm_status.kind in (
            StatusKind.WAITING,
            StatusKind.IMPOSSIBLE,
            StatusKind.ABSENT,
        )
        if waiting and all(t.fenced for t in ending):
            job.cancels_sent += 1
            return await self._cancel(job.job_id)
        if all(t.kill_at is not None and now >= t.kill_at for t in ending):
            job.cancels_sent += 1
            for t in ending:
                t.kills_sent += 1
            # the signal reaches steps and children of the batch script; the cancel reaches starting
            # steps and the allocation
            accepted = await self._cancel(job.job_id, signal="KILL", full=True)
            return await self._cancel(job.job_id) and accepted
        if any(not t.term_sent for t in ending):
            # a gang's batch script runs one srun per task; srun would kill its step at once on the
            # signal
            accepted = await self._cancel(job.job_id, signal="TERM", full=not job.gang)
            for t in ending:
                t.term_sent = t.term_sent or accepted
            return accepted
        return True

    async def _stop_step(self, job: BatchJob, task: Task) -> bool:
        """Stop the step of one task; the other tasks of the gang continue."""
        assert task.started is not None
        assert job.job_id is not None
        step = task.started.step or None
        if step is None:
            return False
        if task.kill_at is not None and time.monotonic() >= task.kill_at:
            task.kills_sent += 1
            return await self._cancel(job.job_id, step, "KILL")
        if not task.term_sent:
            task.term_sent = await self._cancel(job.job_id, step, "TERM")
            return task.term_sent
        return True

    async def _cancel(
        self, job_id: str, step: str | None = None, signal: str | None = None, *, full: bool = False
    ) -> bool:
        result = await self._run(
            output_parser.cancel(job_id, step, signal, full=full), "", self._cluster.call_secs
        )
        if result.code == 0 or any(word in result.err.lower() for word in _OVER):
            return True
        self._log(
            "scancel of Slurm job {} failed with exit code {}: {}",
            job_id,
            result.code,
            result.err.strip()[:500],
        )
        return False
