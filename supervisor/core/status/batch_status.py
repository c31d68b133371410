"""Status of runs in a batch scheduler: the place in its queue, the reason to wait, and unknown
states. Pure.
"""

import datetime

import msgspec

from ....db.events.state import Run, Task
from ....diagnosis.causes import QueueState
from ....protocol.clusters.batch import BatchState
from ....protocol.ids import AgentKey
from ..state.agent_phase import AgentPhase
from ..state.agent_state import AgentState
from ..state.world import World


def last_report(world: World, run: Run) -> BatchState | None:
    """Return the scheduler's newest report, else the recorded one. All tasks of a gang are one
    batch job.
    """
    live = run.live_tasks
    newest = next((world.batch[t.token] for t in live if t.token in world.batch), None)
    if newest is not None:
        return _of_gang(run, newest)
    tasks: tuple[Task, ...] = live or ((run.telling,) if run.telling is not None else ())
    found = next((report for t in tasks if (report := t.batch_said) is not None), None)
    return None if found is None else _of_gang(run, found)


def _of_gang(run: Run, report: BatchState) -> BatchState:
    """Return the report for the whole gang, without the fields of a single task (its node and its
    part of the run directory).
    """
    if not run.spec.roles:
        return report
    return msgspec.structs.replace(
        report, node="", run_dir="/".join(report.run_dir.split("/")[:-2])
    )


def sign_in(view: AgentState, key: AgentKey) -> str:
    """Return the sentence for a run that waits for its user's sign-in."""
    return f"it waits until its user signs in to {key.host}{_why(view)}"


def _why(view: AgentState) -> str:
    return f": {view.sign_in}" if view.sign_in else ""


def sign_in_to(world: World, run: Run) -> str | None:
    """Return the cluster that the user must sign in to so that the run continues or its state
    becomes known.
    """
    if run.spec.driver not in world.policy.batch or not run.busy:
        return None
    key = run.live_tasks[0].agent_key if run.live_tasks else world.key_of(run)
    view = world.agents.get(key)
    return key.host if view is not None and view.phase == AgentPhase.SIGNED_OUT else None


def queued(world: World, run: Run) -> tuple[QueueState, str]:
    """Return (queueState, sentence) of a run that was submitted to its scheduler and has not begun."""
    report, key = last_report(world, run), run.live_tasks[0].agent_key
    if report is None:
        return "starting", f"its agent was asked to submit it to {key.host}" + unknown_clause(
            world, run
        )
    if report.job_id is None:
        why = report.sentence or report.reason
        return "slurm", f"it is being submitted to {report.cluster}" + (
            f": {why}" if why else ""
        ) + unknown_clause(world, run)
    return "slurm", _place(report) + unknown_clause(world, run)


def _place(report: BatchState) -> str:
    """Return the place in the queue, the reason, and the expected start, as far as known."""
    partition = f", partition {report.partition}" if report.partition else ""
    why = report.sentence or report.reason or report.state
    expected = (
        "" if report.starts_at is None else f"; expected to start at {_time(report.starts_at)}"
    )
    return (
        f"in the queue of {report.cluster}{partition}, Slurm job {report.job_id}"
        + (f": {why}" if why else "")
        + expected
    )


def running(world: World, run: Run) -> str | None:
    """Return where the run is running, or that Slurm has requeued it."""
    report = last_report(world, run)
    if report is None or report.job_id is None:
        return None
    if report.queued:
        return f"Slurm requeued it: it is {_place(report)}" + unknown_clause(world, run)
    on = f"on {report.nodes} of {report.cluster}" if report.nodes else f"on {report.cluster}"
    return f"it runs {on} (Slurm job {report.job_id})" + unknown_clause(world, run)


def unknown_clause(world: World, run: Run) -> str:
    """Return a clause about an unknown state: since when, and what helps."""
    key = run.live_tasks[0].agent_key
    if world.policy.place(key.driver, key.host) is None:
        return f"; the cluster {key.host} is no longer configured, so its state is unknown"
    view = world.agents.get(key)
    if view is not None and view.phase == AgentPhase.SIGNED_OUT:
        return f"; its state is unknown{_since(view.unknown_since)}: its user must sign in to {key.host}{_why(view)}"
    if view is None or view.phase != AgentPhase.UP or not view.synced:
        return f"; its state is unknown{_since(None if view is None else view.unknown_since)}: its agent is not connected"
    since = unknown_since(world, run.live_tasks)
    return (
        ""
        if since is None
        else f"; its state is unknown{_since(since)}: the scheduler of {key.host} does not answer"
    )


def unknown_since(world: World, tasks: tuple[Task, ...]) -> float | None:
    """Return since when the scheduler could not be asked about these tasks."""
    times = (world.batch[t.token].unknown_since for t in tasks if t.token in world.batch)
    return min((at for at in times if at is not None), default=None)


def _since(at: float | None) -> str:
    return "" if at is None else f" since {_time(at)}"


def _time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
