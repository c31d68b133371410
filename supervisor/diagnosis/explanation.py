"""The answer to `job why`: its fields and the order in which they are filled. Pure.

The sentences for each state are in the other modules of this package.
"""

from typing import Any

from ...db.events.state import Job, Run, Task
from ...diagnosis.causes import CAUSES
from ...diagnosis.classification import classify_exit, classify_run
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.jobs.status import COMPLETED, ERROR, MISSING, PENDING, PURGED, RUNNING
from . import batch_jobs, containers, ended_runs, pending_runs, running_runs
from .next_step import next_step
from .phrases import Answer, resume_keeper_command, utc
from .surroundings import Surroundings
from .usage_facts import batch_times

#: Fields that a status reply copies from the answer.
_BRIEF = ("cause", "confidence", "sentence")
#: Number of lines of advice in a status reply.
_BRIEF_ADVICE = 3
_FILES = ("stdout.log", "stderr.log", "exit.json", "script.sh")


_NOTHING_KNOWN = Surroundings()


def why(
    status: dict[str, Any],
    job: Job,
    about: Surroundings = _NOTHING_KNOWN,
) -> Answer:
    """Return the answer for the run that `status`, its status reply, describes.

    about: facts that are not in the log of the job. While the event store cannot be written, the
    known state may be old.
    """
    run = job.run
    evidence_folder, store_fails_since = about.folder, about.store_fails_since
    answer: Answer = {
        "computeJid": job.jid,
        "state": status["state"],
        "reason": None,
        "cause": None,
        "confidence": "certain",
        "sentence": "",
        "says": None,
        "evidence": [],
        "not": [],
        "lastLines": None,
        "terminationMessage": None,
        "traceback": None,
        "faulthandler": None,
        "logs": [],
        "try": [],
        "next": None,
        "urgent": False,
        "diagnosis": None,
        "attempt": None,
        "role": None,
        "index": None,
    }
    if run is None or status["state"] == MISSING:
        answer["reason"] = answer["cause"] = "missing"
        answer["sentence"], answer["try"] = (
            f"no such run ({status.get('reason')})",
            list(CAUSES["missing"].todo),
        )
        return _finished(answer, None)
    if status.get("superseded"):
        _earlier_run(answer, status)
        return _finished(answer, None)
    _add_execution(answer, run)
    if evidence_folder:
        answer["logs"] = [f"{evidence_folder}/{name}" for name in _files(run, about.files)]
    if status.get("debugging"):
        answer["evidence"].append(status["debugging"])
    batch = batch_jobs.latest_state(run, status)
    unwritten = store_fails_since is not None and run.busy
    if unwritten:
        since = utc(store_fails_since)
        answer["evidence"].append(
            f"the event store cannot be written since {since}; later starts and ends are not known yet"
        )
    elif status.get("keeper"):
        answer["evidence"].append(
            f"{status['keeper']['sentence']}; this answer shows the last known state"
        )
    elif not status["known"]:
        silent = batch_jobs.silent_party(status, batch)
        answer["evidence"].append(
            f"no contact with {silent} since {utc(status['since'])}; this answer shows the last known state"
        )
    known = about.files is None or batch_jobs.SCRIPT in about.files
    if evidence_folder and batch is not None and batch.job_id is not None and known:
        answer["logs"].append(f"{evidence_folder}/{batch_jobs.SCRIPT}")
    if run.status == ERROR and about.name(run.spec.uid) is not None:
        answer["evidence"].append(f"its user: {about.named(run.spec.uid)}")
    answer["evidence"] += batch_jobs.evidence(run, batch)
    if batch is not None and run.status != COMPLETED and status["state"] != RUNNING:
        answer["evidence"] += batch_times(run, about.partition)
    if run.active:
        _explain_active(answer, run, status)
        answer["evidence"] += containers.evidence(run, run.live_tasks)
    else:
        ended_runs.explain(answer, run, about)
        if run.live_tasks:
            answer["evidence"].append(
                "its processes are still being stopped; the run keeps its resources until all have ended"
            )
        answer["evidence"] += batch_jobs.exit_evidence(run.exit)
        answer["try"] += batch_jobs.accounting_commands(batch) if run.status == ERROR else []
        answer["evidence"] += containers.evidence(
            run, [run.telling] if run.telling is not None else []
        )
    answer["urgent"] = bool(status.get("keeper") or unwritten)
    if status.get("keeper"):
        answer["try"].insert(
            0, resume_keeper_command(status["keeper"]["pid"], status["keeper"]["host"])
        )
    if unwritten:
        answer["try"].insert(
            0, "jobscribe health   # shows why the store cannot be written, and what to do"
        )
    return _finished(answer, run)


def _finished(answer: Answer, run: Run | None) -> Answer:
    """Add the next action to a complete answer."""
    answer["next"] = next_step(answer, run)
    del answer["urgent"]
    return answer


def _files(run: Run, there: frozenset[str] | None) -> tuple[str, ...]:
    """Return the names of the evidence files that exist and are not empty.

    there: the existing files; None if this machine cannot see them.

    A run that never started has at most `exit.json`.
    """
    exit_ = run.exit
    if any(task.waits_for_slot for task in run.live_tasks):
        return ()
    if run.started_at is None and not run.active:
        known = exit_ is not None and (there is None or "exit.json" in there)
        return ("exit.json",) if known else ()
    empty = {
        "stdout.log": exit_ is not None and exit_.stdout_bytes == 0,
        "stderr.log": exit_ is not None and exit_.stderr_bytes == 0,
    }
    names = tuple(name for name in _FILES if not empty.get(name))
    return names if there is None else tuple(name for name in names if name in there)


def brief(status: dict[str, Any], job: Job) -> dict[str, Any] | None:
    """Return the part of the answer that a status reply contains: cause, sentence and advice.

    None for a running, completed or missing run.
    """
    if status["state"] in (RUNNING, COMPLETED, MISSING) or job.run is None:
        return None
    answer = why(status, job)
    return {**{name: answer[name] for name in _BRIEF}, "try": answer["try"][:_BRIEF_ADVICE]}


def _explain_active(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    answer["reason"] = answer["cause"] = status["queueState"] or (
        "starting" if run.status == PENDING else run.status
    )
    if status["queueState"] is None and run.status != PENDING:
        running_runs.explain(answer, run, batch_jobs.latest_state(run, status))
    else:
        pending_runs.explain(answer, run, status)
    if not status["known"] and status.get("signInTo") and status["queueState"] != "sign_in":
        answer["try"].insert(0, batch_jobs.login_command(status["signInTo"]))


def _add_execution(answer: Answer, run: Run) -> None:
    """Name the representative execution of the run, else its first live one."""
    task: Task | None = run.telling or next(iter(run.live_tasks), None)
    answer["attempt"] = run.attempt or None
    if task is not None:
        answer["attempt"], answer["role"], answer["index"] = (
            task.token.attempt,
            task.token.role,
            task.token.index,
        )


def _earlier_run(answer: Answer, status: dict[str, Any]) -> None:
    """Explain an earlier run. Only its status, reason and exit are stored."""
    error = f": {status['error']}" if status["error"] else ""
    answer["reason"], answer["sentence"] = (
        status["reason"],
        f"earlier run, ended as {status['state']}{error}",
    )
    exit_ = ExitInfo(code=status["exit"]["code"], signal=status["exit"]["signal"])
    bare = exit_.code is None and exit_.signal is None
    found = classify_run(status["state"], status["reason"], None if bare else exit_)
    if not bare and found.cause in ("completed", "exit") and status["state"] == ERROR:
        found = classify_exit(exit_)
    answer["cause"], answer["confidence"] = found.cause, found.confidence
    answer["evidence"].append(
        "only state, reason and exit of earlier runs are kept here; the trace shows more"
    )
    answer["try"] = [f"jobscribe trace {answer['computeJid']}"]
    if status["state"] == PURGED:
        answer["evidence"].append("its files were purged")
