"""The answer to "why": what is in it, and in which order that is found. Pure."""

from typing import Any

from ...db.events.state import Job, Run, Task
from ...diagnosis.causes import CAUSES
from ...diagnosis.classification import classify_exit, classify_run
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.jobs.status import ERROR, PURGED
from . import batch_jobs, containers, ended_runs, pending_runs, running_runs
from .phrases import Answer, utc, waking

#: What status replies have of it, and of what there is to try, so many lines.
_BRIEF, _TRIED = ("cause", "confidence", "sentence"), 3
_FILES = ("stdout.log", "stderr.log", "exit.json", "script.sh")


def why(
    status: dict[str, Any],
    job: Job,
    evidence_folder: str | None,
    store_fails_since: float | None = None,
) -> Answer:
    """`status` is the status reply of the same run. evidence_folder: where the attempt's files lie,
    if there are any.

    store_fails_since: nothing that has happened since then could be put on record, so this may be
    the state before it.
    """
    run = job.run
    answer: Answer = {
        "computeJid": job.jid,
        "state": status["state"],
        "reason": None,
        "cause": None,
        "confidence": "certain",
        "sentence": "",
        "evidence": [],
        "not": [],
        "lastLines": None,
        "terminationMessage": None,
        "traceback": None,
        "faulthandler": None,
        "logs": [],
        "try": [],
        "diagnosis": None,
        "attempt": None,
        "role": None,
        "index": None,
    }
    if run is None or status["state"] == "missing":
        answer["reason"] = answer["cause"] = "missing"
        answer["sentence"], answer["try"] = (
            f"there is no such run ({status.get('reason')})",
            list(CAUSES["missing"].todo),
        )
        return answer
    if status.get("superseded"):
        _of_before(answer, status)
        return answer
    _whose(answer, run)
    if evidence_folder:
        answer["logs"] = [f"{evidence_folder}/{name}" for name in _files(run)]
    said = batch_jobs.said_of(run, status)
    unwritten = store_fails_since is not None and run.busy
    if unwritten:
        since = utc(store_fails_since)
        answer["evidence"].append(
            f"the event store cannot be written since {since}: what began or ended after that is not known here yet"
        )
    elif status.get("keeper"):
        answer["evidence"].append(
            f"{status['keeper']['sentence']}; what is said here is the last that is known"
        )
    elif not status["known"]:
        whom = f"nobody can ask {batch_jobs.nobody(status, said)} since {utc(status['since'])}"
        answer["evidence"].append(f"{whom}; what is said here is the last that is known")
    if evidence_folder and said is not None and said.job_id is not None:
        answer["logs"].append(f"{evidence_folder}/{batch_jobs.SCRIPT}")
    answer["evidence"] += batch_jobs.evidence(run, said)
    if run.active:
        _live(answer, run, status)
        answer["evidence"] += containers.evidence(run, run.live_tasks)
    else:
        ended_runs.ended(answer, run)
        if run.live_tasks:
            answer["evidence"].append(
                "its processes are still being ended: it keeps its places until none of them is left"
            )
        answer["evidence"] += batch_jobs.words(run.exit)
        answer["try"] += batch_jobs.after(said) if run.status == ERROR else []
        answer["evidence"] += containers.evidence(
            run, [run.telling] if run.telling is not None else []
        )
    if status.get("keeper"):
        answer["try"].insert(0, waking(status["keeper"]["pid"], status["keeper"]["host"]))
    if unwritten:
        answer["try"].insert(
            0, "jobscribe health   # why the store cannot be written, and what to do"
        )
    return answer


def _files(run: Run) -> tuple[str, ...]:
    """Of its evidence, the files that there are: of a run that never ran its exit at most, and no
    empty output.
    """
    exit_ = run.exit
    if run.started_at is None and not run.active:
        return () if exit_ is None else ("exit.json",)
    empty = {
        "stdout.log": exit_ is not None and exit_.stdout_bytes == 0,
        "stderr.log": exit_ is not None and exit_.stderr_bytes == 0,
    }
    return tuple(name for name in _FILES if not empty.get(name))


def brief(status: dict[str, Any], job: Job) -> dict[str, Any] | None:
    """What a status reply has of it: of what waits, and of what is over and has not completed. None
    of anything else.
    """
    if status["state"] in ("running", "completed", "missing") or job.run is None:
        return None
    answer = why(status, job, None)
    return {**{name: answer[name] for name in _BRIEF}, "try": answer["try"][:_TRIED]}


def _live(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    answer["reason"] = answer["cause"] = status["queueState"] or (
        "starting" if run.status == "pending" else run.status
    )
    if status["queueState"] is None and run.status != "pending":
        running_runs.running(answer, run, batch_jobs.said_of(run, status))
    else:
        pending_runs.waiting(answer, run, status)
    if not status["known"] and status.get("signInTo") and status["queueState"] != "sign_in":
        answer["try"].insert(0, batch_jobs.signing_in(status["signInTo"]))


def _whose(answer: Answer, run: Run) -> None:
    """Which execution is meant: the one that stands for the run, else the first of those that live."""
    task: Task | None = run.telling or next(iter(run.live_tasks), None)
    answer["attempt"] = run.attempt or None
    if task is not None:
        answer["attempt"], answer["role"], answer["index"] = (
            task.token.attempt,
            task.token.role,
            task.token.index,
        )


def _of_before(answer: Answer, status: dict[str, Any]) -> None:
    """Of an earlier run its status, its reason and its exit are kept; the events have the rest."""
    said = f": {status['error']}" if status["error"] else ""
    answer["reason"], answer["sentence"] = (
        status["reason"],
        f"it is an earlier run and ended as {status['state']}{said}",
    )
    exit_ = ExitInfo(code=status["exit"]["code"], signal=status["exit"]["signal"])
    bare = exit_.code is None and exit_.signal is None
    found = classify_run(status["state"], status["reason"], None if bare else exit_)
    if not bare and found.cause in ("completed", "exit") and status["state"] == ERROR:
        found = classify_exit(exit_)
    answer["cause"], answer["confidence"] = found.cause, found.confidence
    answer["evidence"].append(
        "of earlier runs only state, reason and exit are kept here; their events tell more"
    )
    answer["try"] = [f"jobscribe trace {answer['computeJid']}"]
    if status["state"] == PURGED:
        answer["evidence"].append("its files were removed")
