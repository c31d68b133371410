"""Ending batch jobs, or single tasks of them: SIGTERM to everything, grace, SIGKILL and scancel,
again until nothing is left.

What waits in Slurm's queue gets no signal: its fence is taken, so that it never starts, and it is
canceled. Why it ends is written down before the first signal. A task that has written its own exit
by then gets no signal: the stop came too late, and is not its cause.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from ...protocol.clusters.cluster import Cluster
from ...protocol.ids import execution_log_ids
from ...runtime import failpoints
from ...runtime.execution.folder import STOP
from ...runtime.log.logger import Log
from ..slurm import output_parser
from .command_runner import Run
from .ledger import BatchLedger
from .observer import fresh, own_exit, take_fence
from .state import BatchJob, Task

#: Tasks of one gang are told to end one by one; so long one waits for the others (seconds), because
#: to end a job is less than to end all its steps.
_TOGETHER_SECS = 0.1
#: Pause between two tries of what has to be said again: it grows up to the second (seconds).
_AGAIN_SECS, _LONGEST_SECS = 2.0, 15.0
#: Slurm's command says so of what is over, or was never there.
_OVER = (
    "invalid job id",
    "already completed",
    "already completing",
    "job/step already",
    "not running",
    "not found",
)


class BatchStopper:
    """changed(job): something was sent, or a fence was taken: look at it soon."""

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
        self._working: dict[str, asyncio.Task[None]] = {}
        self._nudges: dict[str, asyncio.Event] = {}

    def stop(self, job: BatchJob, task: Task, reason: str, grace: float) -> None:
        """The first reason stays; the shortest grace counts. It is too late for one whose own exit
        is known.
        """
        if task.own is not None and not task.signaled:
            return
        now = time.monotonic()
        if task.kill_at is None:
            task.stop_reason = task.stop_reason or reason
            task.kill_at = now + grace
            task.grace = grace
            # before the first signal, so that an exit can always be told from its cause
            self._note(task)
            failpoints.reached("keeper.stopping")
        task.kill_at = min(task.kill_at, now + grace)
        name = job.lead.name
        if name in self._working:
            self.again(job)
            return
        self._nudges[name] = asyncio.Event()
        working = self._working[name] = asyncio.get_running_loop().create_task(self._work(job))
        working.add_done_callback(lambda done: self._done(name, done))

    def _note(self, task: Task) -> None:
        """signaled: may an exit that is written from now on be due to this stop?"""
        said = {
            "reason": task.stop_reason,
            "grace": task.grace,
            "at": time.time(),
            "signaled": task.signaled,
        }
        self._ledger.owe(f"{task.folder}/{STOP}", said)

    def _in_time(self, task: Task) -> bool:
        """May it get a signal? Not where it has written its own exit since it was to be stopped."""
        if task.fenced or task.signaled:
            return True
        task.signaled = True
        self._note(task)
        fresh(task.folder)
        if own_exit(task.folder, task.started) is None:
            return True
        self._log(
            "{} had ended by itself before it could be stopped ({})",
            str(task.token),
            task.stop_reason,
            **execution_log_ids(task.token),
        )
        task.signaled = False
        self._note(task)
        task.stop_reason = task.kill_at = None
        return False

    async def cancel(self, job: BatchJob) -> bool:
        """Nothing of it is running, or has to. True where Slurm took it."""
        return job.job_id is None or job.foreign or await self._cancel(job.job_id)

    def again(self, job: BatchJob) -> None:
        """Something is different: what has to be said is said now."""
        if job.lead.name in self._nudges:
            self._nudges[job.lead.name].set()

    def _done(self, name: str, work: asyncio.Task[None]) -> None:
        self._working.pop(name, None)
        self._nudges.pop(name, None)
        if not work.cancelled() and (error := work.exception()) is not None:
            self._log.exception("a stop of {} ended", name, error=error)

    def close(self) -> None:
        for task in self._working.values():
            task.cancel()

    async def _work(self, job: BatchJob) -> None:
        """Until none of its tasks is to end any more, or all have."""
        await asyncio.sleep(_TOGETHER_SECS)
        pause = _AGAIN_SECS
        while True:
            ending = [t for t in job.live if t.stop_reason is not None]
            if not ending:
                return
            try:
                done = await self._step(job, ending)
            except OSError as e:
                self._log(
                    "a stop of {} has to wait: {}",
                    str(job.lead.token),
                    e.strerror,
                    **execution_log_ids(job.lead.token),
                )
                done = False
            self._changed(job)
            # what Slurm took it has still to say; it is not asked more often
            pause = _AGAIN_SECS + self._cluster.poll_secs if done else min(_LONGEST_SECS, 2 * pause)
            nudge = self._nudges[job.lead.name]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause(job, pause)):
                    await nudge.wait()
            if nudge.is_set():
                nudge.clear()
                await asyncio.sleep(_TOGETHER_SECS)

    def _pause(self, job: BatchJob, pause: float) -> float:
        """Until the grace of one is over, or one has to say it again."""
        now = time.monotonic()
        due = [t.kill_at - now for t in job.live if t.kill_at is not None and t.kill_at > now]
        return max(0.01, min([pause, *due]))

    async def _step(self, job: BatchJob, ending: list[Task]) -> bool:
        """What has to be said now. True where Slurm took it."""
        for task in ending:
            if task.started is None and not task.fenced:
                task.fenced = take_fence(task.folder)
        if (
            job.job_id is None or job.foreign
        ):  # it is looked for, or lost; what it finds when it starts are the fences
            return False
        ending = [t for t in ending if self._in_time(t)]
        if not ending or (
            job.state.state == "COMPLETING" and all(t.own is not None for t in ending)
        ):
            return True
        if len(ending) == len(job.live):
            return await self._whole(job, ending)
        taken = [
            await self._one(job, t)
            for t in ending
            if t.started is not None and t.step_over_mono is None
        ]
        return all(taken)

    async def _whole(self, job: BatchJob, ending: list[Task]) -> bool:
        assert job.job_id is not None
        now = time.monotonic()
        waiting = job.verdict is None or job.verdict.kind in ("waiting", "impossible", "absent")
        if waiting and all(t.fenced for t in ending):
            job.canceled += 1
            return await self._cancel(job.job_id)
        if all(t.kill_at is not None and now >= t.kill_at for t in ending):
            job.canceled += 1
            for t in ending:
                t.killed += 1
            # the signal reaches steps and children of the batch script, the cancel what is not up
            # yet and the allocation itself
            taken = await self._cancel(job.job_id, signal="KILL", full=True)
            return await self._cancel(job.job_id) and taken
        if any(not t.termed for t in ending):
            # a gang's batch script holds an srun for each task, which would kill its step at once
            # if it got the signal itself
            taken = await self._cancel(job.job_id, signal="TERM", full=not job.gang)
            for t in ending:
                t.termed = t.termed or taken
            return taken
        return True

    async def _one(self, job: BatchJob, task: Task) -> bool:
        """A task of a gang that goes on: its step."""
        assert task.started is not None
        assert job.job_id is not None
        step = task.started.step or None
        if step is None:
            return False
        if task.kill_at is not None and time.monotonic() >= task.kill_at:
            task.killed += 1
            return await self._cancel(job.job_id, step, "KILL")
        if not task.termed:
            task.termed = await self._cancel(job.job_id, step, "TERM")
            return task.termed
        return True

    async def _cancel(
        self, job_id: str, step: str | None = None, signal: str | None = None, *, full: bool = False
    ) -> bool:
        ran = await self._run(
            output_parser.cancel(job_id, step, signal, full=full), "", self._cluster.call_secs
        )
        if ran.code == 0 or any(word in ran.err.lower() for word in _OVER):
            return True
        self._log(
            "scancel of Slurm's job {} failed with exit code {}: {}",
            job_id,
            ran.code,
            ran.err.strip()[:500],
        )
        return False
