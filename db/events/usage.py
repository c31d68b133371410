"""The usage that an event of a job adds. Pure.

An execution is charged when its end is recorded, and a run when its status becomes final, each
once: a repeated end changes no job and adds nothing. So the usage of a log is the sum over its
events, and a store keeps it as a table.
"""

from ...protocol.ids import DEFAULT_QUEUE, split_jid
from ...protocol.jobs.exit_info import ExitFacts, ExitInfo
from ...protocol.jobs.status import CANCELED, COMPLETED
from .events import JobEvent, RunEnded, TaskEnded
from .reserved import by_task
from .state import Job, PastRun, Run, Task
from .usage_row import UsageRow, hour_of, limited

_MIB = 2**20


def increment(before: Job, event: JobEvent) -> UsageRow | None:
    """Return the usage that the event adds to a job that is in the state `before`."""
    match event:
        case TaskEnded(token=token):
            task = before.task(token)
            return None if task is None or not task.live else _execution(before, task, event)
        case RunEnded(serial=serial, status=status):
            run = before.run
            if run is None or run.serial != serial or not run.active:
                return None
            return _row(
                before,
                run,
                run.spec.driver,
                event.at,
                completed=int(status == COMPLETED),
                canceled=int(status == CANCELED),
                failed=int(status not in (COMPLETED, CANCELED)),
            )
        case _:
            return None


def _execution(before: Job, task: Task, event: TaskEnded) -> UsageRow:
    exit_, run = event.exit, _run_of(before, task)
    reserved = by_task(run.spec if isinstance(run, Run) else run, task.token.role, len(task.gpus))
    wall = _wall_ms(task, exit_)
    if wall is not None:
        wall += allocated_secs(task, event.at) * 1000
    cpu, peak = _cpu_ms(exit_), _peak_bytes(exit_)
    memory: float | None = None
    if wall is not None and reserved.mib is not None:
        memory = reserved.mib * wall
    elif wall is not None and peak is not None:
        memory = peak * wall / _MIB
    output = (
        None
        if exit_.stdout_bytes is None and exit_.stderr_bytes is None
        else (exit_.stdout_bytes or 0) + (exit_.stderr_bytes or 0) - exit_.dropped_bytes
    )
    return _row(
        before,
        run,
        task.agent_key.driver,
        event.at,
        executions=1,
        wall_ms=limited(wall or 0),
        wall_unknown=int(wall is None),
        core_ms=limited((wall or 0) * reserved.cores),
        gpu_ms=limited((wall or 0) * reserved.gpus),
        cpu_ms=limited(cpu or 0),
        cpu_unknown=int(cpu is None),
        memory_mib_ms=limited(memory or 0),
        memory_unknown=int(memory is None),
        peak_bytes=limited(peak or 0),
        output_bytes=limited(output or 0),
        output_unknown=int(output is None),
    )


def allocated_secs(task: Task, now: float) -> float:
    """Return for how long the allocation of a failed task was held by its batch scheduler. The
    resources that only this system holds for debugging are not charged.
    """
    if task.held is None or task.batch is None:
        return 0.0
    return min(task.held.secs, max(0.0, now - task.held.at))


def _row(before: Job, run: Run | PastRun, driver: str, at: float, **sums: int) -> UsageRow:
    request = run.spec if isinstance(run, Run) else run
    return UsageRow(
        start=hour_of(at),
        span="hour",
        uid=split_jid(before.jid)[0],
        queue=request.queue or DEFAULT_QUEUE,
        driver=driver,
        kind=request.job_run_mode,
        simulation_type=request.simulation_type,
        **sums,
    )


def _run_of(job: Job, task: Task) -> Run | PastRun:
    serial = task.token.serial
    if job.run is not None and job.run.serial == serial:
        return job.run
    return next(p for p in job.history if task in p.live_tasks)


def _wall_ms(task: Task, exit_: ExitInfo) -> float | None:
    """Return the time from start to end by the clock of the executor. None if one is unknown."""
    if exit_.source == "start":
        return 0.0
    started = exit_.started_at if exit_.started_at is not None else task.started_at
    if started is None or exit_.ended_at is None:
        return None
    return max(0.0, exit_.ended_at - started) * 1000


def _cpu_ms(exit_: ExitInfo) -> float | None:
    if exit_.source == "start":
        return 0.0
    if exit_.user_secs is None or exit_.system_secs is None:
        return None
    return (exit_.user_secs + exit_.system_secs) * 1000


def _peak_bytes(exit_: ExitInfo) -> int | None:
    """Return the larger one of the known peaks: of the largest process, and of all together."""
    if exit_.source == "start":
        return 0
    facts = exit_.facts.memory_peak_bytes if isinstance(exit_.facts, ExitFacts) else None
    known = [n for n in (exit_.max_rss_bytes, facts) if n is not None]
    return max(known) if known else None
