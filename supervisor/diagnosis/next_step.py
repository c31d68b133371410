"""The next action for a run: one command, with its purpose. Pure.

It is `next` of the answer, and the second line of the text of `job why`.
"""

from ...db.events.state import Run
from ...diagnosis.kill_attribution import facts_of, mib
from ...protocol.jobs.exit_info import FAULTS, ExitInfo
from ...protocol.jobs.status import COMPLETED
from . import core_files
from .phrases import Answer, several_tasks
from .usage_facts import span

_COMMANDS = ("jobscribe ", "docker ", "scontrol ", "sacct ", "kill ")
#: Purposes of `job retry`, by cause: the same request may succeed.
_RETRY = {
    "killed": "starts it again; if it is killed again, look for the sender of SIGKILL",
    "terminated": "starts it again; if it ends so again, look for the sender of SIGTERM",
    "interrupted": "starts it again; if it ends so again, look for the sender of the signal",
    "hangup": "starts it again; if it ends so again, look for the sender of SIGHUP",
    "shutdown": "starts it again",
    "lost": "starts it again; first check whether its output is complete",
    "nodeFail": "starts it again, on the nodes that Slurm chooses then",
    "launchFailed": "starts it again, on the nodes that Slurm chooses then",
    "preempted": "starts it again",
    "canceled": "starts it again, if the cancel was a mistake",
    "slurmCanceledByUser": "starts it again, if the cancel was a mistake",
    "purged": "starts it again, to have its files back",
}
#: Purposes of `job clone --edit`, by cause: the request must change.
_CHANGE = {
    "queueLimit": "a longer queue limit, or with a smaller request",
    "deadline": "a later deadline, or with a shorter time limit",
    "cpuLimit": "a higher 'ulimit -t'",
    "fileSizeLimit": "a higher 'ulimit -f'",
    "memoryRefused": "more memory, or without its 'ulimit -v'",
    "commandTimeout": "more time for 'timeout'",
    "notFound": "a corrected command, PATH or module",
    "notExecutable": "a corrected command, after 'chmod +x' of its file",
    "wrongArchitecture": "a program for that machine",
    "libraryMissing": "the module, or LD_LIBRARY_PATH, of the library",
    "usage": "corrected arguments",
    "setupFailed": "corrected modules or set-up lines",
}
#: Purpose of a command that shows why the request must change.
_AGAIN = "shows its end; then submit it again with"
_DISKS = {
    "diskFull": ("df -h", "shows the full disk; remove files there, then start it again"),
    "quota": ("quota -s", "shows the user's quota; remove files, then start it again"),
}


def next_step(answer: Answer, run: Run | None) -> dict[str, str | None] | None:
    """Return the next action: its command (None: there is none) and its purpose."""
    found = _ended(answer, run) if run is not None and not run.active else None
    if found is not None and not answer["urgent"]:
        return {"command": found[0], "advice": found[1]}
    lines = answer["try"]
    line = next((line for line in lines if line.startswith(_COMMANDS)), next(iter(lines), None))
    if line is None:
        return None
    command, _, advice = line.partition("   # ")
    return (
        {"command": command, "advice": advice}
        if line.startswith(_COMMANDS)
        else {
            "command": None,
            "advice": line,
        }
    )


def _ended(answer: Answer, run: Run) -> tuple[str, str] | None:
    """Return the command and its purpose for an ended run."""
    cause, jid, exit_ = answer["cause"], answer["computeJid"], run.exit
    change = _change(answer, run, exit_)
    if run.status == COMPLETED:
        if exit_ is not None and exit_.out_of_memory:
            return change, f"{_AGAIN} more memory{_than(exit_)}"
        return None if _silent(exit_) else (f"jobscribe job logs {jid}", "shows its output")
    if cause in _RETRY:
        return f"jobscribe job retry {jid}", _RETRY[cause]
    if cause in _DISKS:
        host = "its machine" if run.telling is None else run.telling.host or "its machine"
        return _DISKS[cause][0], f"on {host}: {_DISKS[cause][1]}"
    if cause == "startFailed":
        return _not_started(answer, exit_, change)
    if cause == "agentStartFailed":
        return f"jobscribe trace {jid}", "shows the attempts to start its agent, and their errors"
    if cause == "decided":
        return f"jobscribe job tasks {jid}", "shows which task decided the attempt"
    if cause == "timeLimit":
        limit = run.spec.time_limit_secs
        longer = f"a longer time limit{f' than {span(limit)}' if limit else ''}"
        return change, f"{_AGAIN} {longer}"
    if cause == "outOfMemory":
        return change, f"{_AGAIN} more memory{_than(exit_)}"
    if cause in _CHANGE:
        return change, f"{_AGAIN} {_CHANGE[cause]}"
    if cause in ("slurmCanceled", "slurmCanceledByOther", "dependency"):
        return None
    if core_files.commands(jid, exit_):
        return f"jobscribe core stack {jid}", "prints where it crashed"
    if _silent(exit_):
        return change, "shows its command; it wrote no output, so run that command by hand"
    return _logs(answer, run, exit_), _PURPOSE.get(
        cause, "shows its output, with the error of its program"
    )


_PURPOSE = {
    "traceback": "shows the exception and the lines of the program to correct",
    "crash": "shows its last output; then run it by hand in a debugger",
}


def _not_started(answer: Answer, exit_: ExitInfo | None, change: str) -> tuple[str, str] | None:
    if any(line.startswith(("docker ", "jobscribe pool ")) for line in answer["try"]):
        return None
    fault = None if exit_ is None else exit_.fault
    advice = FAULTS.get(fault or "")
    if fault == "schedulerUnreachable":
        return "jobscribe driver check sbatch", "shows whether Slurm answers"
    if fault in ("batchRefused", "neverPossible", "volumeRefused", "portTaken"):
        return change, f"shows its request; {advice}"
    return f"jobscribe job retry {answer['computeJid']}", (
        f"starts it again; before that, {advice}" if advice else "starts it again after a repair"
    )


def _change(answer: Answer, run: Run, exit_: ExitInfo | None) -> str:
    """Return the command that shows what to change in the request: the output, else the status."""
    if run.started_at is None or _silent(exit_):
        return f"jobscribe job status {answer['computeJid']}"
    return _logs(answer, run, exit_)


def _silent(exit_: ExitInfo | None) -> bool:
    return exit_ is None or exit_.stdout_bytes == exit_.stderr_bytes == 0


def _logs(answer: Answer, run: Run, exit_: ExitInfo | None) -> str:
    stream = "" if exit_ is not None and exit_.stderr_bytes == 0 else " --stderr"
    task = run.telling
    place = (
        f" --role {task.token.role} --index {task.token.index}"
        if task is not None and several_tasks(run)
        else ""
    )
    return f"jobscribe job logs{stream}{place} {answer['computeJid']}"


def _than(exit_: ExitInfo | None) -> str:
    limit = None if exit_ is None else facts_of(exit_).memory_limit_bytes
    return f" than {mib(limit)}" if limit else ""
