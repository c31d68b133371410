"""Retention: purges the run directories of runs that ended long ago."""

from ....db.events.events import RunPurged
from ....db.events.state import Run
from ....protocol.ids import AgentKey, Token
from ....protocol.jobs.status import PURGED
from ..interface.effects import RemoveRunDir
from ..interface.inputs import Purge
from ..state.transaction import Transaction


def purge(tx: Transaction, input_: Purge) -> None:
    """Purge exactly this run, unless a part of it still runs or its plan excludes it from
    purging.
    """
    job = tx.world.jobs.get(input_.jid)
    run = job.run if job is not None else None
    if (
        job is None
        or run is None
        or run.serial != input_.serial
        or job.busy
        or run.status == PURGED
    ):
        return
    if (
        run.ended_at is None
        or run.ended_at > input_.ended_before
        or run.spec.active_plan in tx.world.policy.kept_plans
    ):
        return
    tx.record(job.jid, RunPurged(at=tx.now.wall, serial=run.serial))
    tx.emit(RemoveRunDir(job.jid, run.serial, run.run_dir, executions(run)))


def executions(run: Run) -> tuple[tuple[AgentKey, Token], ...]:
    """Return all executions of a run, each with its agent."""
    return tuple((t.agent_key, t.token) for attempt in run.attempts for t in attempt.tasks)
