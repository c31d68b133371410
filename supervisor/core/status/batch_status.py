"""Status of runs in a batch scheduler: the place in its queue, the reason to wait, and unknown
states. Pure.
"""

import datetime

import msgspec

from ....db.events.state import Run, Task
from ....protocol.clusters.batch import BatchState
from ....protocol.ids import AgentKey
from ..state.agent_state import AgentState
from ..state.world import World


def last_word(world: World, run: Run) -> BatchState | None:
    """Return the scheduler's newest report, else the recorded one. All tasks of a gang are one
    batch job.
    """
    live = run.live_tasks
    heard = next((world.batch[t.token] for t in live if t.token in world.batch), None)
    if heard is not None:
        return _of_all(run, heard)
    told: tuple[Task, ...] = live or ((run.telling,) if run.telling is not None else ())
    found = next((said for t in told if (said := t.batch_said) is not None), None)
    return None if found is None else _of_all(run, found)


def _of_all(run: Run, said: BatchState) -> BatchState:
    """Return the report without fields of a single task: its node and its part of the run
    directory.
    """
    if not run.spec.roles:
        return said
    return msgspec.structs.replace(said, node="", run_dir="/".join(said.run_dir.split("/")[:-2]))


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
    return key.host if view is not None and view.phase == "signed_out" else None


def queued(world: World, run: Run) -> tuple[str, str]:
    """Return (queueState, sentence) of a run that was submitted to its scheduler and has not begun."""
    said, key = last_word(world, run), run.live_tasks[0].agent_key
    if said is None:
        return "starting", f"its agent was asked to submit it to {key.host}" + doubts(world, run)
    if said.job_id is None:
        why = said.sentence or said.reason
        return "slurm", f"it is being submitted to {said.cluster}" + (
            f": {why}" if why else ""
        ) + doubts(world, run)
    return "slurm", _place(said) + doubts(world, run)


def _place(said: BatchState) -> str:
    """Return the place in the queue, the reason, and the expected start, as far as known."""
    partition = f", partition {said.partition}" if said.partition else ""
    why = said.sentence or said.reason or said.state
    expected = "" if said.starts_at is None else f"; expected to start at {_time(said.starts_at)}"
    return (
        f"in the queue of {said.cluster}{partition}, Slurm job {said.job_id}"
        + (f": {why}" if why else "")
        + expected
    )


def running(world: World, run: Run) -> str | None:
    """Return where the run is running, or that Slurm has requeued it."""
    said = last_word(world, run)
    if said is None or said.job_id is None:
        return None
    if said.queued:
        return f"Slurm has taken it back: it is {_place(said)}" + doubts(world, run)
    on = f"on {said.nodes} of {said.cluster}" if said.nodes else f"on {said.cluster}"
    return f"it runs {on} (Slurm job {said.job_id})" + doubts(world, run)


def doubts(world: World, run: Run) -> str:
    """Return a clause about an unknown state: since when, and what helps."""
    key = run.live_tasks[0].agent_key
    if world.policy.place(key.driver, key.host) is None:
        return f"; the cluster {key.host} is not configured any more: nobody can ask it"
    view = world.agents.get(key)
    if view is not None and view.phase == "signed_out":
        return f"; what became of it is not known{_since(view.unknown_since)}: its user has to sign in to {key.host}{_why(view)}"
    if view is None or view.phase != "up" or not view.synced:
        return f"; what became of it is not known{_since(None if view is None else view.unknown_since)}: its agent is not connected"
    since = unknown_since(world, run.live_tasks)
    return (
        ""
        if since is None
        else f"; what became of it is not known{_since(since)}: the scheduler of {key.host} does not answer"
    )


def unknown_since(world: World, tasks: tuple[Task, ...]) -> float | None:
    """Return since when the scheduler could not be asked about these tasks."""
    heard = (world.batch[t.token].unknown_since for t in tasks if t.token in world.batch)
    return min((at for at in heard if at is not None), default=None)


def _since(at: float | None) -> str:
    return "" if at is None else f" since {_time(at)}"


def _time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
