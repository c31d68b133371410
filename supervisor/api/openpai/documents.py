"""Lists and details of jobs in OpenPAI's shapes, from the folded state of a job. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

from ....db.events.state import Attempt, Job, Run, Task
from ....db.records.job_record import task_state
from ....protocol.ids import DEFAULT_QUEUE, split_jid
from ....schema.jobs.description import named_simulation
from . import words


def name_of(jid: str, run: Run) -> str:
    """Return the name of a job; its computeJid if another job may have the same name."""
    uid, sid, _ = split_jid(jid)
    name = run.spec.sim_name
    return name if name and named_simulation(uid, name) == sid else jid


def queue_of(run: Run) -> str:
    return run.spec.queue or DEFAULT_QUEUE


def retries(run: Run, *types: str) -> int:
    """Return the number of retries; types: only those after failures of these types."""
    return sum(a.retry is not None and (not types or _type(a) in types) for a in run.attempts)


def row(job: Job, run: Run) -> dict[str, Any]:
    """Return one element of the list of version 1."""
    state, sub = words.job_state(run)
    exit_ = run.exit
    return {
        "name": name_of(job.jid, run),
        "username": split_jid(job.jid)[0],
        "state": state,
        "subState": sub,
        "executionType": "STOP" if run.stop is not None else "START",
        "retries": retries(run),
        "createdTime": words.milliseconds(run.queued_at),
        "completedTime": words.milliseconds(run.ended_at),
        "appExitCode": None if run.active or exit_ is None else exit_.code,
        "virtualCluster": queue_of(run),
    }


def row2(job: Job, run: Run) -> dict[str, Any]:
    """Return one element of the list of version 2."""
    return row(job, run) | {
        "retryDetails": retry_details(run),
        "submissionTime": words.milliseconds(run.queued_at),
        "launchedTime": words.milliseconds(run.started_at),
        "totalTaskNumber": sum(r.tasks for r in run.spec.roles) or 1,
        "totalGpuNumber": sum(r.tasks * r.gpu for r in run.spec.roles),
        "jobPriority": "default",
        "tags": job.tags,
    }


def retry_details(run: Run) -> dict[str, int]:
    return {
        "user": retries(run, "user", "unknown"),
        "platform": retries(run, "platform"),
        "resource": retries(run, "resource"),
    }


def detail(job: Job, run: Run, log: str) -> dict[str, Any]:
    """Return the detail of version 1. log: address of the logs of a task, with {role}, {index}."""
    state = row(job, run)
    name = state.pop("name")
    diagnosis = run.diagnosis
    return {
        "name": name,
        "jobStatus": {
            **state,
            "appId": f"{job.jid}@{run.serial}",
            "appProgress": 0.0 if run.started_at is None else (1.0 if run.ended_at else 0.5),
            "appTrackingUrl": "",
            "appLaunchedTime": words.milliseconds(run.started_at),
            "appCompletedTime": words.milliseconds(run.ended_at),
            "appExitDiagnostics": words.diagnostics(diagnosis),
            "appExitType": words.exit_type(run),
        },
        "taskRoles": {
            role: {
                "taskRoleStatus": {"name": role},
                "taskStatuses": [_task(t, log) for t in tasks],
            }
            for role, tasks in _by_role(run, run.attempts[-1] if run.attempts else None).items()
        },
    }


def detail2(job: Job, run: Run, number: int | None, log: str) -> dict[str, Any] | None:
    """Return the detail of version 2. number: the attempt, from 0; None: the last one. None if there
    is no such attempt.
    """
    if number is None:
        attempt = run.attempts[-1] if run.attempts else None
    else:
        attempt = next((a for a in run.attempts if a.number == number + 1), None)
        if attempt is None:
            return None
    made = detail(job, run, log)
    task = None if attempt is None else attempt.telling
    retry = run.retry
    made["jobStatus"] |= {
        "retryDetails": retry_details(run),
        "retryDelayTime": None if retry is None else retry.delay_secs,
        "submissionTime": words.milliseconds(run.queued_at),
        "attemptId": 0 if attempt is None else attempt.number - 1,
        "attemptState": _attempt_state(run, attempt),
        "appExitSpec": _spec(task),
        "appExitMessages": {"container": None, "runtime": None, "launcher": run.error},
        "appExitTriggerMessage": None if attempt is None else attempt.reason,
        "appExitTriggerTaskRoleName": None if task is None else task.token.role,
        "appExitTriggerTaskIndex": None if task is None else task.token.index,
        "tags": job.tags,
    }
    made["taskRoles"] = {
        role: {
            "taskRoleStatus": {"name": role},
            "taskStatuses": [_task(t, log) | _task2(t) for t in tasks],
        }
        for role, tasks in _by_role(run, attempt).items()
    }
    return made


def execution(t: Task, log: str) -> dict[str, Any]:
    """Return one execution of a task, as in the list of version 2."""
    return {"attemptId": 0} | _task(t, log) | _task2(t)


def filled(log: str, t: Task) -> str:
    """Return the address of a task's log."""
    return log.format(role=t.token.role, index=t.token.index, attempt=t.token.attempt - 1)


def _attempt_state(run: Run, attempt: Attempt | None) -> str:
    if attempt is None or attempt is run.attempts[-1]:
        return words.job_state(run)[0]
    return "SUCCEEDED" if attempt.decided is not None and attempt.decided.succeeded else "FAILED"


def _by_role(run: Run, attempt: Attempt | None) -> dict[str, list[Task]]:
    """Return the tasks of an attempt by role, also roles without tasks."""
    names: Iterable[str] = [r.name for r in run.spec.roles]
    out: dict[str, list[Task]] = {name: [] for name in names}
    for task in () if attempt is None else attempt.tasks:
        out.setdefault(task.token.role, []).append(task)
    return out


def ssh_tasks(run: Run) -> list[Task]:
    """Return the tasks that accept ssh now, if the job has it."""
    tasks = run.attempts[-1].tasks if run.attempts else ()
    return [t for t in tasks if t.live and t.started_at is not None and t.held is None]


def ssh(job: Job, run: Run) -> dict[str, Any]:
    """Return the ssh information of version 1. The private key never leaves the user's machine, so
    it has no folder and no address here.
    """
    return {
        "containers": [
            {
                "id": t.token.name,
                "sshIp": t.address.removeprefix("@"),
                "sshPort": str(t.ports["ssh"][0]),
            }
            for t in ssh_tasks(run)
        ],
        "keyPair": {
            "folderPath": "",
            "publicKeyFileName": f"{job.jid}.pub",
            "privateKeyFileName": job.jid,
            "privateKeyDirectDownloadLink": "",
        },
    }


def _task(t: Task, log: str) -> dict[str, Any]:
    return {
        "taskIndex": t.token.index,
        "taskState": words.TASK_STATES[task_state(t)][0],
        "containerId": t.token.name,
        "containerIp": t.address.removeprefix("@") or t.host or "",
        "containerPorts": {label: ",".join(map(str, ports)) for label, ports in t.ports.items()},
        "containerGpus": _bitmap(t.gpus),
        "containerLog": filled(log, t),
        "containerExitCode": None if t.exit is None else t.exit.code,
    }


def _task2(t: Task) -> dict[str, Any]:
    return {
        "containerNodeName": t.host or t.agent_key.host,
        "containerExitSpec": _spec(t),
        "containerExitDiagnostics": words.diagnostics(t.diagnosis),
        "retries": t.token.attempt - 1,
        "accountableRetries": t.token.attempt - 1,
        "createdTime": words.milliseconds(t.placed_at),
        "launchedTime": words.milliseconds(t.started_at),
        "completedTime": words.milliseconds(t.ended_at),
    }


def _spec(t: Task | None) -> dict[str, Any] | None:
    """Return the row of the exit table that explains the task's exit."""
    diagnosis = None if t is None else t.diagnosis
    if diagnosis is None:
        return None
    return {
        "code": diagnosis.code,
        "phrase": diagnosis.phrase,
        "type": words.type_of(diagnosis),
        "behavior": diagnosis.behavior.upper(),
        "reason": diagnosis.reason,
        "solution": list(diagnosis.solutions),
    }


def _type(attempt: Attempt) -> str:
    task = attempt.telling
    return "unknown" if task is None or task.diagnosis is None else task.diagnosis.type


def _bitmap(gpus: Sequence[str]) -> int:
    """Return the set of GPUs as a number; GPUs with names instead of numbers count from 0."""
    numbers = [int(g) if g.isdecimal() else n for n, g in enumerate(gpus)]
    return sum(1 << n for n in numbers)
