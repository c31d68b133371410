"""Why a run is where it is, in a sentence with its evidence. Pure: the same for pages, JSON and the command line."""

import datetime
import signal
from typing import Any
from ..db.state import Job, Run
from ..protocol.diagnosis import AGAIN, WHOSE
from ..protocol.exits import FAULTS, OUT_OF_MEMORY, ExitInfo, signal_name

Answer = dict[str, Any]


def why(status: dict[str, Any], job: Job, evidence_folder: str | None) -> Answer:
    """`status` is the status reply of the same run. evidence_folder: where the attempt's files lie, if there are any."""
    run = job.run
    answer: Answer = {
        "computeJid": job.jid, "state": status["state"], "cause": None, "sentence": "", "evidence": [], "not": [],
        "lastLines": None, "terminationMessage": None, "logs": [], "try": [], "diagnosis": None,
    }
    if run is None or status["state"] == "missing":
        answer["cause"], answer["sentence"] = "missing", f"there is no such run ({status.get('reason')})"
        return answer
    if status.get("superseded"):
        # of an earlier run its status and reason are kept; the events have the rest
        said = f": {status['error']}" if status["error"] else ""
        answer["cause"], answer["sentence"] = status["reason"], f"it is an earlier run and ended as {status['state']}{said}"
        answer["try"] = [f"jobscribe trace {job.jid}"]
        return answer
    if evidence_folder:
        answer["logs"] = [f"{evidence_folder}/{name}" for name in ("stdout.log", "stderr.log", "exit.json", "script.sh")]
    if not status["known"]:
        answer["evidence"].append(f"nobody can ask its agent since {_utc(status['since'])}; what is said here is the last that is known")
    if run.active:
        _live(answer, run, status)
    else:
        _ended(answer, run)
    return answer


def _live(answer: Answer, run: Run, status: dict[str, Any]) -> None:
    if run.status == "pending":
        answer["cause"] = status["queueState"]
        answer["sentence"] = f"it has not started: {status['jobStatusMessage']}"
        answer["try"] = ["jobscribe job list --active"]
        return
    answer["cause"] = "running"
    task = run.live_tasks[0] if run.live_tasks else None
    answer["sentence"] = f"it runs since {_utc(run.started_at)}" + (f" as pid {task.pid} on {task.host}" if task else "")
    answer["try"] = [f"jobscribe job logs -f {answer['computeJid']}"]


def _ended(answer: Answer, run: Run) -> None:
    exit_, jid = run.exit, answer["computeJid"]
    answer["cause"] = run.reason
    if exit_ is not None:
        answer["evidence"].append(f"exit: {exit_.sentence()} (said by the {exit_.source})")
        answer["lastLines"], answer["terminationMessage"] = exit_.last_lines, exit_.termination_message
        _memory(answer, exit_)
    match run.reason:
        case "cancel":
            stop = run.stop
            answer["sentence"] = f"it was canceled by {stop.by}" + (f": {stop.note}" if stop.note else "") if stop else "it was canceled"
            answer["not"] = ["a time limit", "its own exit"]
        case "timeLimit":
            limit = run.spec.time_limit_secs
            answer["sentence"] = "it was ended by its time limit" + (f" of {limit:g} s" if limit else "")
            answer["try"] = ["submit it again with a longer --time-limit"]
        case "queueLimit":
            answer["sentence"] = "it waited longer than its queue limit and never started"
        case "startFailed":
            answer["sentence"] = exit_.sentence() if exit_ else "it could not be started"
            if exit_ is not None and exit_.fault in FAULTS:
                answer["evidence"].append(f"what was missing: {exit_.fault}")
                answer["try"].append(FAULTS[exit_.fault])
        case "agentStartFailed":
            answer["sentence"], answer["not"] = run.error or "its agent could not be started", ["a fault of the job: it never started"]
        case "shutdown":
            answer["sentence"] = run.error or "it was ended from outside"
            answer["not"] = ["canceled by anyone", "a time limit", "its own exit"]
            answer["try"] = [f"jobscribe trace {jid}"]
        case "lost":
            answer["sentence"], answer["not"] = run.error or "its end is not known", ["a failure that the job reported"]
        case _:
            _own_exit(answer, run, exit_)
    _diagnosed(answer, run)
    if run.status == "error":
        answer["try"].append(f"jobscribe job logs --stderr {jid}")


def _diagnosed(answer: Answer, run: Run) -> None:
    """What the exit table says of the task that stands for the run. Its solutions take the place of the general ones."""
    found, task = run.diagnosis, run.telling
    if found is None or task is None or run.status == "completed":
        return
    answer["diagnosis"] = {
        "code": found.code, "phrase": found.phrase, "type": found.type, "whose": WHOSE[found.type], "behavior": found.behavior,
        "again": AGAIN[found.behavior], "reason": found.reason, "solutions": list(found.solutions), "hint": found.hint,
        "matched": found.matched, "excerpt": found.excerpt, "task": f"{task.token.role}-{task.token.index}" if run.spec.roles else None,
    }
    commands = [line for line in answer["try"] if line.startswith("jobscribe ")]
    answer["try"] = [*(found.solutions or answer["try"]), *(commands if found.solutions else [])]


def _own_exit(answer: Answer, run: Run, exit_: ExitInfo | None) -> None:
    memory = exit_ is not None and exit_.out_of_memory is True
    if memory:
        answer["try"].append(_MORE_MEMORY)
    if run.status == "completed":
        answer["sentence"] = "it completed with exit code 0" + (f", but {OUT_OF_MEMORY}" if memory else "")
        return
    answer["not"] += ["canceled by anyone", "a time limit"]
    if exit_ is None:
        answer["sentence"] = run.error or "it failed"
    elif exit_.signal is not None:
        answer["sentence"] = f"it was ended by {signal_name(exit_.signal)}, which this system did not send"
    else:
        answer["sentence"] = f"it ended by itself with exit code {exit_.code}" + _CODES.get(exit_.code or 0, "")
    if memory:
        answer["sentence"] += f": {OUT_OF_MEMORY}"


_CODES = {
    126: " (the command was found but cannot be executed)",
    127: " (the command was not found)",
    137: " (a program that exits with 137 often saw a child killed by SIGKILL)",
}


_MORE_MEMORY = "give it more memory: a smaller input, fewer runs at once, or a machine or cgroup with a higher limit"


def _memory(answer: Answer, exit_: ExitInfo) -> None:
    killed = exit_.signal == signal.SIGKILL or exit_.shell_code == 128 + signal.SIGKILL
    match exit_.out_of_memory:
        case True:
            answer["evidence"].append(f"{OUT_OF_MEMORY} (the kernel's own count)")
        case False if killed:
            answer["not"].append("a want of memory: the kernel killed nothing for that")
        case None if killed and exit_.stop_reason is None:
            answer["evidence"].append("whether memory had run out is not known: the kernel's counters do not tell it apart here")
        case _:
            pass
    if exit_.max_rss_bytes:
        answer["evidence"].append(f"largest memory of one process: {exit_.max_rss_bytes / 2**20:.0f} MiB")
    if exit_.survivors_killed:
        answer["evidence"].append(f"{exit_.survivors_killed} processes outlived the main one and were ended")
    if exit_.dropped_bytes:
        answer["evidence"].append(f"{exit_.dropped_bytes} bytes of output were dropped")


def _utc(at: float | None) -> str:
    return "?" if at is None else datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
