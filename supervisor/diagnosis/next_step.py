"""The next action for a run: one command, with its purpose. Pure.

It is the first line of advice (`try`) and the second line of the text of `job why`.
"""

from ...db.events.state import Run
from ...diagnosis.kill_attribution import facts_of, mib
from ...protocol.jobs.exit_info import FAULTS, ExitInfo
from ...protocol.jobs.status import COMPLETED
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
    "queueLimit": "starts a copy with a longer queue limit, or with a smaller request",
    "deadline": "starts a copy with a later deadline, or with a shorter time limit",
    "cpuLimit": "starts a copy with a higher 'ulimit -t'",
    "fileSizeLimit": "starts a copy with a higher 'ulimit -f'",
    "memoryRefused": "starts a copy with more memory, or without its 'ulimit -v'",
    "commandTimeout": "starts a copy with more time for 'timeout'",
    "notFound": "starts a copy with a corrected command, PATH or module",
    "notExecutable": "starts a copy with a corrected command, after 'chmod +x' of its file",
    "wrongArchitecture": "starts a copy with a program for that machine",
    "libraryMissing": "starts a copy with the module, or LD_LIBRARY_PATH, of the library",
    "usage": "starts a copy with corrected arguments",
    "setupFailed": "starts a copy with corrected modules or set-up lines",
}
_DISKS = {
    "diskFull": ("df -h", "shows the full disk; remove files there, then start it again"),
    "quota": ("quota -s", "shows the user's quota; remove files, then start it again"),
}


def add_next_step(answer: Answer, run: Run) -> None:
    """Put the next action first in `try`, and store it as `next`."""
    found = _ended(answer, run) if not run.active else None
    if found is not None:
        line = f"{found[0]}   # {found[1]}"
        answer["try"] = [line, *(other for other in answer["try"] if not _same(other, found[0]))]
    else:
        command = next((line for line in answer["try"] if line.startswith(_COMMANDS)), None)
        if command is not None:
            answer["try"] = [command, *(line for line in answer["try"] if line != command)]
    store_next(answer)


def store_next(answer: Answer) -> None:
    """Store the first line of `try` as `next`: its command and its advice."""
    first = next(iter(answer["try"]), None)
    if first is None:
        answer["next"] = None
        return
    command, mark, advice = first.partition("   # ")
    has = mark or command.startswith(_COMMANDS)
    answer["next"] = {
        "command": command if has else None,
        "advice": advice if has else first,
    }


def _same(line: str, command: str) -> bool:
    return line.partition("   # ")[0].strip() == command


def _ended(answer: Answer, run: Run) -> tuple[str, str] | None:
    """Return the command and its purpose for an ended run."""
    cause, jid, exit_ = answer["cause"], answer["computeJid"], run.exit
    clone = None if run.spec.data is not None else f"jobscribe job clone --edit {jid}"
    if run.status == COMPLETED:
        if exit_ is not None and exit_.out_of_memory and clone is not None:
            return clone, f"starts a copy with more memory{_than(exit_)}"
        return None if _silent(exit_) else (f"jobscribe job logs {jid}", "shows its output")
    if cause in _RETRY:
        return f"jobscribe job retry {jid}", _RETRY[cause]
    if cause in _DISKS:
        host = "its machine" if run.telling is None else run.telling.host or "its machine"
        return _DISKS[cause][0], f"on {host}: {_DISKS[cause][1]}"
    if cause == "startFailed":
        return _not_started(answer, exit_, clone)
    if cause == "agentStartFailed":
        return f"jobscribe trace {jid}", "shows the attempts to start its agent, and their errors"
    if cause == "decided":
        return f"jobscribe job tasks {jid}", "shows which task decided the attempt"
    if cause == "timeLimit" and clone is not None:
        limit = run.spec.time_limit_secs
        return clone, f"starts a copy with a longer time limit{f' than {span(limit)}' if limit else ''}"
    if cause == "outOfMemory" and clone is not None:
        return clone, f"starts a copy with more memory{_than(exit_)}"
    if cause in _CHANGE and clone is not None:
        return clone, _CHANGE[cause]
    if cause in ("slurmCanceled", "slurmCanceledByOther", "dependency"):
        return None
    if _silent(exit_):
        return f"jobscribe job repro {jid}", "makes a folder to repeat it by hand: it wrote no output"
    return _logs(answer, run, exit_), _PURPOSE.get(cause, "shows its output, with the error of its program")


_PURPOSE = {
    "traceback": "shows the exception and the lines of the program to correct",
    "crash": "shows its last output; 'jobscribe job repro' makes a folder to debug it by hand",
}


def _not_started(
    answer: Answer, exit_: ExitInfo | None, clone: str | None
) -> tuple[str, str] | None:
    if any(line.startswith(("docker ", "jobscribe pool ")) for line in answer["try"]):
        return None
    fault = None if exit_ is None else exit_.fault
    advice = FAULTS.get(fault or "")
    if fault == "schedulerUnreachable":
        return "jobscribe driver check sbatch", "shows whether Slurm answers"
    if fault in ("batchRefused", "neverPossible", "volumeRefused", "portTaken") and clone:
        return clone, f"starts a copy: {advice}"
    return f"jobscribe job retry {answer['computeJid']}", (
        f"starts it again; before that, {advice}" if advice else "starts it again after a repair"
    )


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
