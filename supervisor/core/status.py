"""What people are told about a run: the status reply and the one sentence that says why it waits. Pure."""

from typing import Any

import msgspec

from ...db.job import Job, PastRun, Run
from ...protocol.status import ACTIVE, PENDING
from . import slots
from .inputs import Now
from .slots import Wait
from .stopping import canceled_after
from .world import World

#: How soon a page should ask again, seconds.
NEXT_REQUEST_SECS = {"sequential": 1, "parallel": 2}


def missing(jid: str, reason: str) -> dict[str, Any]:
    return {"state": "missing", "computeJid": jid, "reason": reason, "known": True, "over": True}


def status(world: World, job: Job, position: int, now: Now, *, hash_: str | None = None, serial: int = 0) -> dict[str, Any]:
    """Status of a job's run for somebody who asked for this hash and serial; a mismatch is the normal answer `missing`."""
    run = job.run
    if run is None:
        return missing(job.jid, "noRun")
    if serial not in (0, run.serial):
        past = next((p for p in job.history if p.serial == serial), None)
        return missing(job.jid, "computeJobSerial-mismatch") if past is None else _past(job, past)
    if hash_ is not None and hash_ != run.spec.compute_job_hash:
        return missing(job.jid, "computeJobHash-mismatch")
    return _current(world, job, run, position, now)


def _current(world: World, job: Job, run: Run, position: int, now: Now) -> dict[str, Any]:
    known, since = knowledge(world, run)
    waits, sentence = (None, None) if run.status != PENDING else waiting(world, job, run)
    if run.live_tasks and not run.active:
        waits, sentence = "stopping", "its processes are being ended"
    exit_ = run.exit
    reply: dict[str, Any] = {
        "state": run.status, "computeJid": job.jid, "computeJobHash": run.spec.compute_job_hash, "computeJobSerial": run.serial,
        "simulationType": run.spec.simulation_type,
        "computeJobQueued": run.queued_at, "computeJobStart": run.started_at, "computeJobEnd": run.ended_at,
        "elapsedTime": _elapsed(run, now), "reason": run.reason, "error": run.error, "queueState": waits, "jobStatusMessage": sentence,
        "known": known, "since": since, "over": not run.busy, "exit": msgspec.to_builtins(exit_) if exit_ else None,
        "attempt": len(run.attempts), "runDir": run.run_dir, "position": position, "canceledAfterSecs": canceled_after(run),
        "nextRequestSeconds": NEXT_REQUEST_SECS[run.spec.job_run_mode] if run.busy else None,
    }
    if run.status in ACTIVE:
        reply["nextRequest"] = {
            "computeJobHash": run.spec.compute_job_hash, "computeJobSerial": run.serial, "computeJobStart": run.started_at,
            "simulationId": run.spec.simulation_id, "simulationType": run.spec.simulation_type, "report": run.spec.compute_model,
        }
    return reply


def _past(job: Job, past: PastRun) -> dict[str, Any]:
    """An earlier run by its serial: what is kept of it."""
    return {
        "state": past.status, "computeJid": job.jid, "computeJobHash": past.compute_job_hash, "computeJobSerial": past.serial,
        "computeJobQueued": past.queued_at, "computeJobStart": past.started_at, "computeJobEnd": past.ended_at, "reason": past.reason,
        "error": past.error, "known": True, "over": not past.live_tasks, "superseded": True,
        "exit": {"code": past.exit_code, "signal": past.exit_signal},
    }


def knowledge(world: World, run: Run) -> tuple[bool, float | None]:
    """(known, since): false while a live task's agent is not there to be asked."""
    for task in run.live_tasks:
        view = world.agents.get(task.agent_key)
        if view is None or view.phase != "up" or not view.synced:
            return False, view.unknown_since if view else None
    return True, None


def waiting(world: World, job: Job, run: Run) -> tuple[str, str]:
    """(queueState, sentence with numbers) of a pending run."""
    if run.attempts:
        return "starting", "its agent was asked to start it"
    key = world.key_of(run)
    view = world.agents.get(key)
    if view is None or view.phase != "up" or not view.synced:
        return "agent", _agent_sentence(view.phase if view else "absent", str(key), view.record.last_failure if view else None)
    wait = slots.wait_of(world.slots, (job.jid, run.serial))
    if wait is None:
        return "starting", "it is being placed"
    return _slot_sentence(wait)


def _agent_sentence(phase: str, key: str, failure: str | None) -> str:
    said = {
        "starting": "its agent is being started", "finding": "its agent is being looked for", "absent": "its agent is not there yet",
        "away": "its agent lives but is not connected", "stopping": "its agent did not connect and is being ended",
        "up": "its agent is telling what it runs",
    }[phase]
    return f"{said} ({key})" + (f"; last failure: {failure}" if failure else "")


def _slot_sentence(wait: Wait) -> tuple[str, str]:
    numbers = f"{wait.in_use} of {wait.capacity} in use, {wait.ahead} ahead"
    match wait.pool.split("/", 1)[0]:
        case "op":
            return "op_slot", f"waiting for another run of this user to end ({numbers})"
        case "cpu":
            return "cpu_slot", f"waiting for CPU resources ({numbers})"
        case _:
            return "run_dir", "waiting for the earlier run of this simulation to be ended"


def _elapsed(run: Run, now: Now) -> float | None:
    if run.started_at is None:
        return None
    return max(0.0, (run.ended_at or now.wall) - run.started_at)
