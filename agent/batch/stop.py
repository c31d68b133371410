"""Stopping batch jobs or single tasks: SIGTERM to everything, grace, SIGKILL and scancel, repeated
until nothing is left.

A queued job gets no signal: the agent takes its fence, so that it never starts, and cancels it. The
stop reason is durable before the first signal. A task that has already written its exit code gets
no signal: the stop came too late and is not the cause.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

from ...protocol.clusters.batch import SlurmState
from ...protocol.clusters.cluster import Cluster
from ...protocol.execution.lifecycle import Step
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

    def stop(self, job: BatchJob, task: Task, reason: str, grace: float) -> bool:
        """Stop a task. Return False if it has exited by itself, so that this has no effect."""
        if not task.life.stop(reason, grace, time.monotonic()):
            return False
        self.work(job)
        return True

    def work(self, job: BatchJob) -> None:
        """Continue the stops of the tasks of this job. New ones are recorded now, so that an exit
        can always be attributed to its cause.
        """
        for task in job.live:
            if task.life.next_step(time.monotonic()) is Step.RECORD_STOP:
                self._record(task)
        name = job.first_task.name
        if name in self._tasks:
            self.retry_now(job)
            return
        self._nudges[name] = asyncio.Event()
        worker = self._tasks[name] = asyncio.get_running_loop().create_task(self._work(job))
        worker.add_done_callback(lambda done: self._done(name, done))

    def _record(self, task: Task) -> None:
        self._write_stop(task, signaled=False)
        failpoints.reached("keeper.stopping")
        task.life.stop_recorded()

    def _write_stop(self, task: Task, *, signaled: bool) -> None:
        """Write stop.json. signaled: an exit from now on may be caused by this stop."""
        task.stop_at = time.time()
        content = {
            "reason": task.life.requested_reason,
            "grace": task.life.grace,
            "at": task.stop_at,
            "signaled": signaled,
        }
        self._ledger.pending.write(f"{task.folder}/{STOP}", content)

    def _next_signal(self, task: Task, *, reachable: bool) -> Step:
        """Perform the steps of its stop before the next signal. Return that signal, or NONE if no
        signal is due. reachable: Slurm has a job to which a signal can be sent.
        """
        life = task.life
        while True:
            match step := life.next_step(time.monotonic()):
                case Step.RECORD_STOP:
                    self._record(task)
                case Step.BAR_START:
                    (life.start_barred if take_fence(task.folder) else life.start_not_barred)()
                case Step.CHECK_EXIT if reachable:
                    refresh_folder(task.folder)
                    if own_exit(task.folder, task.started) is None:
                        life.exit_missing()
                    else:
                        life.exited(time.monotonic())
                case Step.RECORD_SIGNAL:
                    self._write_stop(task, signaled=True)
                    life.signal_recorded()
                case Step.WITHDRAW_STOP:  # its record stays: it says that no signal was sent
                    task.log("{} exited by itself before the stop", str(task.token))
                    life.stop_withdrawn()
                case Step.TERMINATE | Step.KILL:
                    return step
                case _:
                    return Step.NONE

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
        """Repeat the stop steps until no task has any."""
        await asyncio.sleep(_COLLECT_SECS)
        pause = _RETRY_SECS
        while any(t.life.next_step(time.monotonic()) is not Step.NONE for t in job.live):
            try:
                done = await self._step(job)
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
        return max(0.01, min([pause, *(t.life.wake_at(now) - now for t in job.live)]))

    async def _step(self, job: BatchJob) -> bool:
        """Send the signals that are due. Return True if Slurm accepted them."""
        reachable = job.job_id is not None and not job.foreign
        steps = {t: self._next_signal(t, reachable=reachable) for t in job.live}
        signals = {t: step for t, step in steps.items() if step is not Step.NONE}
        if not reachable:  # if it starts, it finds the fences
            return False
        if not signals or (
            job.state.state == SlurmState.COMPLETING and all(t.life.exiting for t in signals)
        ):
            return True
        if len(signals) == len(steps):
            return await self._stop_job(job, signals)
        accepted = [
            await self._stop_step(job, t, step)
            for t, step in signals.items()
            if t.started is not None and t.step_over_mono is None
        ]
        return all(accepted)

    async def _stop_job(self, job: BatchJob, signals: Mapping[Task, Step]) -> bool:
        assert job.job_id is not None
        waiting = job.slurm_status is None or job.slurm_status.kind in (
            StatusKind.WAITING,
            StatusKind.IMPOSSIBLE,
            StatusKind.ABSENT,
        )
        if waiting and all(t.life.barred for t in signals):
            return await self._cancel(job.job_id)
        if all(step is Step.KILL for step in signals.values()):
            for t in signals:
                t.life.signal_sent(Step.KILL)
            # the signal reaches steps and children of the batch script; the cancel reaches starting
            # steps and the allocation
            accepted = await self._cancel(job.job_id, signal="KILL", full=True)
            return await self._cancel(job.job_id) and accepted
        if all(t.life.terminated for t in signals):
            return True
        # a gang's batch script runs one srun per task; srun would kill its step at once on the
        # signal
        accepted = await self._cancel(job.job_id, signal="TERM", full=not job.gang)
        for t in signals if accepted else ():
            t.life.signal_sent(Step.TERMINATE)
        return accepted

    async def _stop_step(self, job: BatchJob, task: Task, signal: Step) -> bool:
        """Stop the step of one task; the other tasks of the gang continue."""
        assert task.started is not None and job.job_id is not None
        step = task.started.step
        if not step:
            return False
        if signal is Step.KILL:
            task.life.signal_sent(signal)
            return await self._cancel(job.job_id, step, "KILL")
        if not task.life.terminated and await self._cancel(job.job_id, step, "TERM"):
            task.life.signal_sent(signal)
        return task.life.terminated

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
