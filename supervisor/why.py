"""Why a run is where it is, in a sentence with its evidence. Pure: the same for pages, JSON and the command line."""

import datetime
import signal
from typing import Any
from ..db.state import Job, Run
from ..protocol.diagnosis import AGAIN, WHOSE
from ..protocol.exits import FAULTS, OUT_OF_MEMORY, ExitInfo, signal_name
from ..protocol.roles import After

Answer = dict[str, Any]
#: Of attempts, tasks and runs that are waited for, so many are named: the latest, or the first.
_NAMED = 5


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
    jid, waits, message = answer["computeJid"], status["queueState"], status["jobStatusMessage"]
    _attempts(answer, run)
    answer["cause"] = waits or run.status
    match waits:
        case "debug_hold":
            answer["sentence"], answer["try"] = f"it is kept for debugging: {message}", _entering(jid, run)
            _failed_before(answer, run)
        case "retry_wait":
            answer["sentence"] = f"it waits to be tried again: {message}"
            answer["try"] = [f"jobscribe job tasks {jid}", f"jobscribe job cancel {jid}   # to try it no more"]
            _failed_before(answer, run)
        case "dependency":
            answer["sentence"] = f"it has not started: {message}"
            answer["evidence"] += [f"it is to run after {_after(a)}" for a in run.waits_for[:_NAMED]]
            answer["try"] = [f"jobscribe job why {run.waits_for[0].compute_jid}"] if run.waits_for else []
        case "stopping":
            answer["sentence"], answer["try"] = f"it is coming to its end: {message}", [f"jobscribe job tasks {jid}"]
        case _ if run.status == "pending":
            which = f"attempt {run.attempt + 1}" if run.retry is not None else "it"
            answer["sentence"], answer["try"] = f"{which} has not started: {message}", ["jobscribe job list --active"]
        case _:
            _running(answer, run)


def _running(answer: Answer, run: Run) -> None:
    jid, live = answer["computeJid"], run.live_tasks
    answer["sentence"] = f"it runs since {_utc(run.started_at)}"
    if run.spec.roles:
        running = sum(t.pid is not None for t in live)
        answer["sentence"] += f", {running} of {sum(r.tasks for r in run.spec.roles)} tasks now"
        answer["try"].append(f"jobscribe job tasks {jid}")
    elif live:
        answer["sentence"] += f" as pid {live[0].pid} on {live[0].host}"
    answer["try"].append(f"jobscribe job logs -f {jid}")


def _failed_before(answer: Answer, run: Run) -> None:
    """It goes on, and something of it has failed: how."""
    if run.exit is not None:
        answer["evidence"].append(f"exit: {run.exit.sentence()} (said by the {run.exit.source})")
        answer["lastLines"], answer["terminationMessage"] = run.exit.last_lines, run.exit.termination_message
    commands = answer["try"]
    _diagnosed(answer, run)
    answer["try"] = [*commands, *(line for line in answer["try"] if line not in commands)]


def _entering(jid: str, run: Run) -> list[str]:
    """How to look at what is kept, and how to end that."""
    held = [t.token for t in run.live_tasks if t.held is not None]
    enter = [f"jobscribe job shell {jid} --role {t.role} --index {t.index}" for t in held[:_NAMED]]
    return [*enter, f"jobscribe job release {jid}   # give back what it holds; it ends with the exit that it had"]


def _attempts(answer: Answer, run: Run) -> None:
    """What decided the latest attempt, and why those before it were tried again, and it not."""
    for a in run.attempts[-_NAMED:]:
        if a.decided is not None and a is run.attempts[-1]:
            by = "" if a.decided.role is None else f" by {a.decided.role}/{a.decided.index}"
            answer["evidence"].append(f"attempt {a.number} was decided{by}: {a.decided.reason}")
        if a.retry is not None:
            answer["evidence"].append(f"attempt {a.number} ended ({a.reason}) and is tried again: {a.retry.reason}")
        if a.not_retried is not None and run.spec.retry is not None:
            answer["evidence"].append(f"attempt {a.number} is not tried again: {a.not_retried}")
    if run.stop is not None and not run.active and run.stop.reason != run.reason:
        why = f"{run.stop.by} asked for its end ({run.stop.reason}) when it had failed already and was kept for debugging"
        answer["evidence"].append(f"{why}: it ended with the exit that it had")


def _after(after: After) -> str:
    on = {"ok": "if that completes", "any": "however that ends", "failed": "if that does not complete"}[after.on]
    return f"{after.compute_jid}, {on}"


def _ended(answer: Answer, run: Run) -> None:
    exit_, jid = run.exit, answer["computeJid"]
    answer["cause"] = run.reason
    if exit_ is not None:
        answer["evidence"].append(f"exit: {exit_.sentence()} (said by the {exit_.source})")
        answer["lastLines"], answer["terminationMessage"] = exit_.last_lines, exit_.termination_message
        _memory(answer, exit_)
    _attempts(answer, run)
    match run.reason:
        case "dependency":
            answer["sentence"] = "it was canceled, for a run that it was to run after did not end in the way it asked for"
            over = [a for a in run.spec.after if a.compute_jid not in {w.compute_jid for w in run.waits_for}] or run.spec.after
            answer["evidence"] += [f"it was to run after {_after(a)}" for a in over[-_NAMED:]]
            answer["not"] = ["canceled by anyone", "a failure of its own: it never started"]
            answer["try"] = [f"jobscribe job why {over[-1].compute_jid}"] if over else []
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
    if run.spec.roles:
        answer["try"].append(f"jobscribe job tasks {jid}")
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
        "matched": found.matched, "excerpt": found.excerpt, "task": f"{task.token.role}/{task.token.index}" if run.spec.roles else None,
    }
    commands = [line for line in answer["try"] if line.startswith("jobscribe ")]
    answer["try"] = [*(found.solutions or answer["try"]), *(commands if found.solutions else [])]


def _own_exit(answer: Answer, run: Run, exit_: ExitInfo | None) -> None:
    memory = exit_ is not None and exit_.out_of_memory is True
    if memory:
        answer["try"].append(_MORE_MEMORY)
    if run.status == "completed":
        decided = run.attempts[-1].decided if run.attempts else None
        how = "with exit code 0" if decided is None else "because its tasks did what it asked of them"
        answer["sentence"] = f"it completed {how}" + (f", but {OUT_OF_MEMORY}" if memory else "")
        return
    answer["not"] += ["canceled by anyone", "a time limit"] if run.stop is None else ["a time limit"]
    task = run.telling if run.spec.roles else None
    who = "it" if task is None else f"its task {task.token.role}/{task.token.index}"
    if exit_ is None:
        answer["sentence"] = run.error or "it failed"
    elif exit_.signal is not None:
        answer["sentence"] = f"{who} was ended by {signal_name(exit_.signal)}, which this system did not send"
    else:
        answer["sentence"] = f"{who} ended by itself with exit code {exit_.code}" + _CODES.get(exit_.code or 0, "")
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
