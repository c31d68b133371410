"""What people are told of a run that a batch scheduler has, or is to have: its place there, why it
waits, what is not known. Pure.
"""

import datetime

import msgspec

from ....db.events.state import Run, Task
from ....protocol.clusters.batch import BatchState
from ....protocol.ids import AgentKey
from ..state.world import AgentState, World


def last_word(world: World, run: Run) -> BatchState | None:
    """Of its scheduler: the newest there is, else what is on record. All tasks of a gang are one
    job there.
    """
    live = run.live_tasks
    heard = next((world.batch[t.token] for t in live if t.token in world.batch), None)
    if heard is not None:
        return _of_all(run, heard)
    told: tuple[Task, ...] = live or ((run.telling,) if run.telling is not None else ())
    found = next((said for t in told if (said := t.batch_said) is not None), None)
    return None if found is None else _of_all(run, found)


def _of_all(run: Run, said: BatchState) -> BatchState:
    """Without what is true of one task alone: its node, and its part of the run directory."""
    if not run.spec.roles:
        return said
    return msgspec.structs.replace(said, node="", run_dir="/".join(said.run_dir.split("/")[:-2]))


def sign_in(view: AgentState, key: AgentKey) -> str:
    """It waits for its user."""
    return f"it waits until its user signs in to {key.host}{_why(view)}"


def _why(view: AgentState) -> str:
    return f": {view.sign_in}" if view.sign_in else ""


def sign_in_to(world: World, run: Run) -> str | None:
    """The cluster that its user has to sign in to, for it to go on or to be known."""
    if run.spec.driver not in world.policy.batch or not run.busy:
        return None
    key = run.live_tasks[0].agent_key if run.live_tasks else world.key_of(run)
    view = world.agents.get(key)
    return key.host if view is not None and view.phase == "signed_out" else None


def queued(world: World, run: Run) -> tuple[str, str]:
    """(queueState, sentence) of a run that was given to its scheduler and has not begun."""
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
    """In the queue: where, why, and until when, as far as that is known."""
    partition = f", partition {said.partition}" if said.partition else ""
    why = said.sentence or said.reason or said.state
    expected = "" if said.starts_at is None else f"; expected to start at {_time(said.starts_at)}"
    return (
        f"in the queue of {said.cluster}{partition}, Slurm job {said.job_id}"
        + (f": {why}" if why else "")
        + expected
    )


def running(world: World, run: Run) -> str | None:
    """Where it runs; or that Slurm, which had said so, has it in its queue again."""
    said = last_word(world, run)
    if said is None or said.job_id is None:
        return None
    if said.queued:
        return f"Slurm has taken it back: it is {_place(said)}" + doubts(world, run)
    on = f"on {said.nodes} of {said.cluster}" if said.nodes else f"on {said.cluster}"
    return f"it runs {on} (Slurm job {said.job_id})" + doubts(world, run)


def doubts(world: World, run: Run) -> str:
    """Behind a sentence: what is not known of it, since when, and what helps."""
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
    """Since when nobody could ask the scheduler about these."""
    heard = (world.batch[t.token].unknown_since for t in tasks if t.token in world.batch)
    return min((at for at in heard if at is not None), default=None)


def _since(at: float | None) -> str:
    return "" if at is None else f" since {_time(at)}"


def _time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
