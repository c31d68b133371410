"""The record of a job, as a value: what an operator reads with `cat` and `jq`. Pure, and the same bytes for the same job.

Field names and their meaning are those of the job system this one follows (`computeJobSerial`, `dbUpdateTime`, ...); times are
unix seconds. Environment and command are left out: they may hold what not every reader of the folder should see.
"""

from typing import Any

import msgspec

from ..protocol.ids import split_jid
from ..protocol.status import PURGED, RUNNING
from .state import Attempt, Job, PastRun, Run, Task

_encoder = msgspec.json.Encoder(order="sorted")


def record(job: Job, position: int, at: float) -> dict[str, Any]:
    """The record; `position` and `at` are those of the last event in the job's stream."""
    uid, sid, model = split_jid(job.jid)
    out: dict[str, Any] = {
        "computeJid": job.jid, "uid": uid, "simulationId": sid, "computeModel": model, "status": job.status,
        "dbUpdateTime": at, "lastUpdateTime": int(at), "position": position,
        "history": [_past(p) for p in job.history], "historyDropped": job.history_dropped,
    }
    if job.run is not None:
        out |= _run(job.run)
    return out


def record_bytes(job: Job, position: int, at: float) -> bytes:
    """The record as it lies in the file."""
    return msgspec.json.format(_encoder.encode(record(job, position, at)), indent=2) + b"\n"


def _run(run: Run) -> dict[str, Any]:
    spec = run.spec
    last = run.attempts[-1].tasks[-1] if run.attempts and run.attempts[-1].tasks else None
    state, message = _what(run)
    report = (run.exit.report if run.exit else None) or {}
    return {
        "alert": report.get("alert"), "attempts": [_attempt(a) for a in run.attempts], "canceledAfterSecs": _canceled_after(run),
        "computeJobEnd": run.ended_at, "computeJobHash": spec.compute_job_hash, "computeJobQueued": run.queued_at,
        "computeJobSerial": run.serial, "computeJobStart": run.started_at,
        "driverDetails": {"type": spec.driver, "host": (last.host or last.agent_key.host) if last else None},
        "error": run.error, "isParallel": spec.job_run_mode == "parallel", "jobRunMode": spec.job_run_mode,
        "jobStatusMessage": message, "queueState": state, "reason": run.reason, "reqId": run.req_id, "runDir": run.run_dir,
        "parallelStatus": report if report and run.status != PURGED else None, "activePlan": spec.active_plan,
        "simName": spec.sim_name, "simulationType": spec.simulation_type, "stop": _stop(run),
    }


def _what(run: Run) -> tuple[str | None, str]:
    """queueState, and a sentence. Which slot a run waits for is not in the log: that, the supervisor knows."""
    if not run.active:
        over = run.status if run.reason in (None, "exit") else f"{run.status} ({run.reason})"
        return ("stopping", f"{over}; its processes are being ended") if run.live_tasks else (None, over)
    if run.stop is not None:
        return "stopping", f"being stopped ({run.stop.reason})"
    if run.status == RUNNING:
        return None, "running"
    return ("starting", "being started") if run.live_tasks else ("queued", "waiting to be placed")


def _canceled_after(run: Run) -> float | None:
    """The limit that ended it."""
    match run.stop.reason if run.stop else None:
        case "timeLimit":
            return run.spec.time_limit_secs
        case "queueLimit":
            return run.spec.queue_limit_secs
        case _:
            return None


def _stop(run: Run) -> dict[str, Any] | None:
    s = run.stop
    return None if s is None else {"at": s.at, "by": s.by, "graceSecs": s.grace_secs, "note": s.note, "reason": s.reason}


def _attempt(a: Attempt) -> dict[str, Any]:
    return {"number": a.number, "endedAt": a.ended_at, "reason": a.reason, "tasks": [_task(t) for t in a.tasks]}


def _task(t: Task) -> dict[str, Any]:
    return {
        "token": str(t.token), "agentKey": str(t.agent_key), "opId": t.op_id, "placedAt": t.placed_at, "pid": t.pid, "host": t.host,
        "startedAt": t.started_at, "endedAt": t.ended_at, "exit": None if t.exit is None else msgspec.to_builtins(t.exit),
    }


def _past(p: PastRun) -> dict[str, Any]:
    return {
        "alert": None, "computeJobEnd": p.ended_at, "computeJobHash": p.compute_job_hash, "computeJobQueued": p.queued_at,
        "computeJobSerial": p.serial, "computeJobStart": p.started_at, "computeModel": p.compute_model, "error": p.error,
        "exitCode": p.exit_code, "exitSignal": p.exit_signal, "isParallel": p.job_run_mode == "parallel", "jobRunMode": p.job_run_mode,
        "liveTasks": [_task(t) for t in p.live_tasks], "reason": p.reason, "status": p.status,
    }
