"""Debug holds: failed tasks whose batch script keeps the allocation (see slurm/hold_script).

The script ends a hold by itself. The agent only asks it to do so earlier, and cancels a job whose
script does not.
"""

import os
import time
from collections.abc import Callable

from ..slurm.script_markers import RELEASE
from .ledger import BatchLedger
from .state import BatchJob, Task
from .stop import BatchStopper

#: A batch script that has not ended a hold this long after its release or deadline is canceled
#: (seconds): its node may see the file late, or not at all.
_RELEASE_SECS = 60.0
#: Delay of Slurm's query after a release (seconds): the script looks each second.
_AFTER_RELEASE_SECS = 1.5


class DebugHolds:
    """query_soon(job, delay): query Slurm after this many seconds."""

    def __init__(
        self,
        ledger: BatchLedger,
        stopper: BatchStopper,
        query_soon: Callable[[BatchJob, float], None],
    ) -> None:
        self._ledger, self._stopper, self._query_soon = ledger, stopper, query_soon

    def observed(self, task: Task, until: float) -> None:
        """Record that the allocation of a failed task is held until this time (unix seconds). Its own
        exit is final: Slurm's end of the allocation is not the cause.
        """
        task.held_until, task.exited_first = until, True
        task.release_mono = time.monotonic() + max(0.0, until - time.time()) + _RELEASE_SECS
        if os.path.lexists(f"{task.folder}/{RELEASE}"):  # by an earlier agent
            self._released(task)

    def release(self, task: Task) -> None:
        """Let the batch script end the hold."""
        if not task.released:
            task.log("the debug hold of {} ends", str(task.token))
        self._ledger.pending.write(f"{task.folder}/{RELEASE}", {"at": time.time()})
        self._released(task)
        if task.job is not None:
            self._query_soon(task.job, _AFTER_RELEASE_SECS)

    async def end_overdue(self, job: BatchJob) -> None:
        """Cancel a job whose script has not ended its hold in time."""
        now = time.monotonic()
        if not job.live or any(t.release_mono > now for t in job.live):
            return
        for task in job.live:
            task.released, task.release_mono = True, now + _RELEASE_SECS
            task.log("{} is still held for debugging: canceling its Slurm job", str(task.token))
        await self._stopper.cancel(job)
        self._query_soon(job, 0.0)

    @staticmethod
    def _released(task: Task) -> None:
        task.released = True
        task.release_mono = min(task.release_mono, time.monotonic() + _RELEASE_SECS)
