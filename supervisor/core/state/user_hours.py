"""Hours of a user in the current UTC calendar month, compared with the limits. Pure.

What runs now counts from its start, as if it ended now: the accounting charges an execution to the
month of its end. So the sum never falls when a run ends.
"""

import datetime
from typing import NamedTuple

from ....db.events.reserved import by_task
from ....db.events.state import Job, Task
from ....db.events.usage import allocated_secs
from ....protocol.errors import Refusal
from ..interface.inputs import Now
from ..resources.monthly_usage import next_month
from .world import World, owner, request_of


class HoursUsedUp(NamedTuple):
    """unit: `core` or `GPU`. running: the part of `used` of what runs now. resets_at: unix seconds."""

    unit: str
    used: float
    running: float
    limit: float
    resets_at: int

    @property
    def sentence(self) -> str:
        resets = datetime.datetime.fromtimestamp(self.resets_at, datetime.UTC)
        return (
            f"the user has used {self.used:.1f} of {self.limit:g} {self.unit} hours of this month"
            f" ({self.running:.1f} of them by what runs now); the next month begins at {resets:%Y-%m-%d %H:%M} UTC"
        )

    def refusal(self) -> Refusal:
        return Refusal(
            "hoursUsedUp",
            self.sentence,
            {
                "unit": self.unit,
                "usedHours": round(self.used, 3),
                "limitHours": self.limit,
                "resetsAt": self.resets_at,
            },
        )


def used_up(world: World, uid: str, plan: str | None, now: Now) -> HoursUsedUp | None:
    """Return which hours of the month the user has used up, or None."""
    if not world.limits_hours:
        return None
    limits = world.policy.queues.limits_of(plan, uid)
    if limits.core_hours is None and limits.gpu_hours is None:
        return None
    ended, (cores, gpus) = world.hours.of(uid, now.wall), running_secs(world, uid, now)
    for unit, ended_ms, running, limit in (
        ("core", ended.core_ms, cores, limits.core_hours),
        ("GPU", ended.gpu_ms, gpus, limits.gpu_hours),
    ):
        used = (ended_ms / 1000 + running) / 3600
        if limit is not None and used >= limit:
            return HoursUsedUp(unit, used, running / 3600, limit, next_month(now.wall))
    return None


def running_secs(world: World, uid: str, now: Now) -> tuple[float, float]:
    """Return the core-seconds and GPU-seconds of the user's executions that have not ended."""
    cores = gpus = 0.0
    for jid, serial in world.task_counts:
        if owner(jid) != uid:
            continue
        job = world.jobs[jid]
        for task in job.live_tasks():
            if task.token.serial == serial:
                reserved = by_task(request_of(job, serial), task.token.role, len(task.gpus))
                secs = _secs(world, job, task, now)
                cores += secs * reserved.cores
                gpus += secs * reserved.gpus
    return cores, gpus


def _secs(world: World, job: Job, task: Task, now: Now) -> float:
    """Return for how long the command of a task runs or ran; 0 if it has not started."""
    exit_ = task.exit or task.exited
    if exit_ is not None and exit_.started_at is not None and exit_.ended_at is not None:
        return max(0.0, exit_.ended_at - exit_.started_at) + allocated_secs(task, now.wall)
    if task.token in world.began:
        return max(0.0, now.mono - world.began[task.token])
    if task.started_at is None:
        return 0.0
    # after a restart, until its agent has reported: the wall clock may have been set meanwhile
    secs, run = max(0.0, now.wall - task.started_at), job.run
    if (
        run is not None
        and run.serial == task.token.serial
        and run.queued_mono is not None
        and run.queued_boot_id == now.boot_id
    ):
        secs = min(secs, max(0.0, now.mono - run.queued_mono))
    return secs
