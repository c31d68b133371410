"""The record of a job as a value, for operators with `cat` and `jq`. Pure, and the same bytes for
the same job.

Field names and meanings follow the predecessor job system (`computeJobSerial`, `dbUpdateTime`,
...). Times are unix seconds. Environment and command are left out, because they may contain
secrets. The bytes must not depend on the version: `db check` compares them with the file.
"""

from typing import Any

import msgspec

from ...protocol.api.requests import RunSpec
from ...protocol.clusters.batch import BatchState
from ...protocol.ids import AgentKind, split_jid
from ...protocol.jobs.status import PURGED, RUNNING, TaskStatus
from ..events.state import Attempt, Job, PastRun, Run, Stop, Task
from .resource_usage import result_usage

_encoder = msgspec.json.Encoder(order="sorted")


def record(job: Job, position: int, at: float) -> dict[str, Any]:
    """Return the record. position, at: of the last event in the job's stream."""
    uid, sid, model = split_jid(job.jid)
    out: dict[str, Any] = {
        "computeJid": job.jid,
        "uid": uid,
        "simulationId": sid,
        "computeModel": model,
        "status": job.status,
        "dbUpdateTime": at,
        "lastUpdateTime": int(at),
        "position": position,
        "history": [_past(p) for p in job.history],
        "historyDropped": job.history_dropped,
    }
    if job.tags:  # records of jobs without tags stay as they are
        out["tags"] = list(job.tags)
    if job.run is not None:
        out |= _run(job.run)
    return out


def record_bytes(job: Job, position: int, at: float) -> bytes:
    """Return the record as stored in its file."""
    return msgspec.json.format(_encoder.encode(record(job, position, at)), indent=2) + b"\n"


def _run(run: Run) -> dict[str, Any]:
    spec = run.spec
    last = run.attempts[-1].tasks[-1] if run.attempts and run.attempts[-1].tasks else None
    diagnosis = run.diagnosis
    state, message = _queue_state(run)
    report = (run.exit.report if run.exit else None) or {}
    late = {} if run.late_stop is None else {"lateStop": _stop(run.late_stop)}
    # records of earlier versions, which had one queue, stay as they are
    queue = {"queue": spec.queue} if spec.queue else {}
    return (
        _with_batch(late, _batch(run))
        | queue
        | {
            "alert": report.get("alert"),
            "attempts": [attempt(a, spec) for a in run.attempts],
            "canceledAfterSecs": _canceled_after(run),
            "computeJobEnd": run.ended_at,
            "computeJobHash": spec.compute_job_hash,
            "computeJobQueued": run.queued_at,
            "computeJobSerial": run.serial,
            "computeJobStart": run.started_at,
            "driverDetails": {
                "type": spec.driver,
                "host": (last.host or last.agent_key.host) if last else None,
            },
            "diagnosis": None if diagnosis is None else msgspec.to_builtins(diagnosis),
            "roles": roles(run),
            "error": run.error,
            "isParallel": spec.job_run_mode == "parallel",
            "jobRunMode": spec.job_run_mode,
            "jobStatusMessage": message,
            "queueState": state,
            "reason": run.reason,
            "reqId": run.req_id,
            "runDir": run.run_dir,
            "parallelStatus": report if report and run.status != PURGED else None,
            "activePlan": spec.active_plan,
            "simName": spec.sim_name,
            "simulationType": spec.simulation_type,
            "stop": _stop(run.stop),
            "usage": usage(run),
            "waitsFor": [msgspec.to_builtins(a) for a in run.waits_for],
        }
    )


def usage(run: Run) -> dict[str, Any] | None:
    """Return the resource usage of the latest attempt; None until all its tasks have ended."""
    tasks = run.attempts[-1].tasks if run.attempts else ()
    return (
        None
        if not tasks or any(t.exit is None for t in tasks)
        else result_usage([t.exit for t in tasks])
    )


def roles(run: Run) -> dict[str, dict[str, int]] | None:
    """Return the number of tasks of the latest attempt in each state, by role; None for a run
    without roles.
    """
    if not run.spec.roles:
        return None
    out = {
        role.name: {"tasks": role.tasks, **{s.value: 0 for s in TaskStatus}}
        for role in run.spec.roles
    }
    for task in run.attempts[-1].tasks if run.attempts else ():
        if task.token.role in out:
            out[task.token.role][task_state(task)] += 1
    return out


def task_state(task: Task) -> TaskStatus:
    if task.held is not None and task.live:
        return TaskStatus.HELD
    if task.live:
        return TaskStatus.PLACED if task.pid is None else TaskStatus.RUNNING
    if task.exit is not None and task.exit.succeeded:
        return TaskStatus.SUCCEEDED
    stopped = task.exit is not None and task.exit.stop_reason is not None
    return TaskStatus.STOPPED if stopped else TaskStatus.FAILED


def _queue_state(run: Run) -> tuple[str | None, str]:
    """Return queueState and a message. The log does not contain the slot that a run waits for; only
    the supervisor knows it.
    """
    if run.ending:
        exited = next(t.exited for t in run.ending if t.exited is not None)
        return "ending", f"its command ended ({exited.sentence()}); something of it is still there"
    if not run.active:
        over = run.status if run.reason in (None, "exit") else f"{run.status} ({run.reason})"
        return (
            ("stopping", f"{over}; its processes are being ended")
            if run.live_tasks
            else (None, over)
        )
    if run.stop is not None:
        return "stopping", f"being stopped ({run.stop.reason})"
    if run.live_tasks and all(t.held is not None for t in run.live_tasks):
        return "debug_hold", "it failed, and is kept to be looked at"
    if run.attempts and run.attempts[-1].decided is not None and run.live_tasks:
        return "stopping", "its attempt is decided; the other tasks are being stopped"
    if run.status == RUNNING:
        return None, "running"
    if run.waits_for:
        return (
            "dependency",
            f"waiting for the end of {len(run.waits_for)} other run{'s' * (len(run.waits_for) > 1)}",
        )
    if run.retry is not None:
        return "retry_wait", f"attempt {run.attempt + 1} follows: {run.retry.reason}"
    if not run.live_tasks:
        return "queued", "waiting to be placed"
    state = _batch(run)
    if state is not None:
        return "slurm", f"in the queue of {state.cluster}, Slurm job {state.job_id}"
    return "starting", "being started"


def _batch(run: Run) -> BatchState | None:
    """Return the last recorded batch scheduler state of the latest attempt."""
    tasks = run.attempts[-1].tasks if run.attempts else ()
    return next((state for t in tasks if (state := t.batch_said) is not None), None)


def _canceled_after(run: Run) -> float | None:
    """Return the limit in seconds that ended the run."""
    match run.stop.reason if run.stop else None:
        case "timeLimit":
            return run.spec.time_limit_secs
        case "queueLimit":
            return run.spec.queue_limit_secs
        case _:
            return None


def _stop(s: Stop | None) -> dict[str, Any] | None:
    return (
        None
        if s is None
        else {"at": s.at, "by": s.by, "graceSecs": s.grace_secs, "note": s.note, "reason": s.reason}
    )


def attempt(a: Attempt, spec: RunSpec | None = None) -> dict[str, Any]:
    """Return one attempt as in records and replies."""
    decided, retry = a.decided, a.retry
    return {
        "number": a.number,
        "endedAt": a.ended_at,
        "reason": a.reason,
        "tasks": [task(t, spec) for t in a.tasks],
        "decided": None
        if decided is None
        else {
            "at": decided.at,
            "succeeded": decided.succeeded,
            "reason": decided.reason,
            "role": decided.role,
            "index": decided.index,
        },
        "retry": None
        if retry is None
        else {"behavior": retry.behavior, "delaySecs": retry.delay_secs, "reason": retry.reason},
        "notRetried": a.not_retried,
    }


def task(t: Task, spec: RunSpec | None = None) -> dict[str, Any]:
    """Return one execution as in records and replies. spec: of its run, if the container image is
    wanted.
    """
    diagnosis = t.diagnosis
    exited = {} if t.exited is None else {"exited": msgspec.to_builtins(t.exited)}
    return _with_batch(_container(t, spec) | exited, t.batch_said) | {
        "role": t.token.role,
        "index": t.token.index,
        "state": task_state(t),
        "address": _address(t),
        "ports": {label: list(ports) for label, ports in t.ports.items()},
        "gpus": list(t.gpus),
        "heldUntil": None if t.held is None or not t.live else t.held.at + t.held.secs,
        "diagnosis": None if diagnosis is None else msgspec.to_builtins(diagnosis),
        "token": str(t.token),
        "agentKey": str(t.agent_key),
        "opId": t.op_id,
        "placedAt": t.placed_at,
        "pid": t.pid,
        "host": t.host,
        "startedAt": t.started_at,
        "endedAt": t.ended_at,
        "exit": None if t.exit is None else msgspec.to_builtins(t.exit),
    }


def _address(t: Task) -> str:
    """Return the address of the task if known: with a batch scheduler, the name of its node."""
    return t.address if not t.address.startswith("@") else t.host or ""


def _with_batch(out: dict[str, Any], batch: BatchState | None) -> dict[str, Any]:
    """Add the batch scheduler's last state if there is one."""
    return out if batch is None else out | {"batch": msgspec.to_builtins(batch)}


def _container(t: Task, spec: RunSpec | None) -> dict[str, Any]:
    """Return the requested image of a task in its own container, None for the pool's image; {} for
    other tasks.
    """
    if spec is None or t.agent_key.kind != AgentKind.CONTAINER:
        return {}
    return {"image": next((r.image for r in spec.roles if r.name == t.token.role), None)}


def _past(p: PastRun) -> dict[str, Any]:
    return {
        "alert": None,
        "computeJobEnd": p.ended_at,
        "computeJobHash": p.compute_job_hash,
        "computeJobQueued": p.queued_at,
        "computeJobSerial": p.serial,
        "computeJobStart": p.started_at,
        "computeModel": p.compute_model,
        "error": p.error,
        "exitCode": p.exit_code,
        "exitSignal": p.exit_signal,
        "isParallel": p.job_run_mode == "parallel",
        "jobRunMode": p.job_run_mode,
        "liveTasks": [task(t) for t in p.live_tasks],
        "reason": p.reason,
        "status": p.status,
    }
