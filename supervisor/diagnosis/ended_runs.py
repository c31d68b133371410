"""What is said of a run that is over: what ended it, how sure that is, what shows it, and what it
was not. Pure.
"""

import math
import signal

from ...db.events.state import Run
from ...diagnosis import output_patterns
from ...diagnosis.causes import BY_SIGNAL, CAUSES
from ...diagnosis.classification import classify_run
from ...diagnosis.exit_table import agrees
from ...diagnosis.kill_attribution import NEAR, Classification, facts_of, killed_by, mib
from ...protocol.clusters.batch import BatchState
from ...protocol.jobs.exit_info import (
    FAULTS,
    OUT_OF_MEMORY,
    ExitFacts,
    ExitInfo,
    signal_name,
    signal_number,
)
from ...protocol.jobs.status import COMPLETED, ERROR, PURGED
from . import containers
from .phrases import NAMED, Answer, after, attempts, diagnosed, named, says, utc

#: What causes exclude that are another limit of time (protocol.causes).
_OF_THE_RUN = "the time limit of the run"


def ended(answer: Answer, run: Run) -> None:
    exit_, jid = run.exit, answer["computeJid"]
    answer["reason"] = run.reason
    lines: list[str] = []
    if exit_ is not None:
        answer["evidence"].append(says(run, exit_))
        lines = spoken(answer, exit_)
    found = classify_run(run.status, run.reason, exit_, lines)
    answer["cause"], answer["confidence"] = found.cause, found.confidence
    answer["evidence"] += [
        containers.core(run.telling, line).replace(
            "its run directory", f"its run directory {run.run_dir}"
        )
        for line in found.evidence
    ]
    if run.stop is not None and run.stop.reason == run.reason:
        told = (
            "its command ended before a signal was sent"
            if _by_itself(exit_)
            else "which was on record before anything was ended"
        )
        answer["evidence"].append(f"{run.stop.by} asked for its end at {utc(run.stop.at)}, {told}")
    if (late := run.late_stop) is not None:
        told = f"{late.by} asked for its end ({late.reason}{f': {late.note}' if late.note else ''}) at {utc(late.at)}"
        answer["evidence"].append(
            f"{told}, after its command had ended: that did not change the result"
        )
    if exit_ is not None:
        _beside(answer, exit_)
    attempts(answer, run)
    if run.started_at is None and run.status != COMPLETED:
        answer["evidence"].append("it never ran: there is no output of it")
    answer["not"] += list(found.excluded)
    _sentence(answer, run, exit_, found)
    answer["try"] += containers.commands(run, run.telling, exit_)
    usual = _usual(answer, run, exit_, found)
    diagnosed(answer, run, usual, doubted=_doubted(run, exit_, found))
    table = run.diagnosis
    if (
        table is not None
        and found.cause != "exit"
        and (table.code in _OF_A_SHELL or not agrees(found, table))
    ):
        # one row for all that a shell calls so, or a row that was chosen before the cause was known
        # as it is here
        answer["try"] = list(
            dict.fromkeys(
                (*usual, *(line for line in answer["try"] if line not in table.solutions))
            )
        )
    if table is not None and not agrees(found, table):
        answer["diagnosis"] = None
    if run.spec.roles:
        answer["try"].append(f"jobscribe job tasks {jid}")
    if (
        exit_ is not None
        and run.started_at is not None
        and exit_.stdout_bytes == exit_.stderr_bytes == 0
    ):
        _silent(answer, run)
    elif run.status == ERROR and run.started_at is not None:
        # where it complained, if it did
        silent = exit_ is not None and exit_.stderr_bytes == 0 and bool(exit_.stdout_bytes)
        answer["try"].append(
            f"jobscribe job logs {jid}" if silent else f"jobscribe job logs --stderr {jid}"
        )


def _silent(answer: Answer, run: Run) -> None:
    """It wrote nothing that could be read."""
    if run.status != ERROR:
        return
    here = run.telling is not None and run.telling.agent_key.driver == "local"
    scripts = [path for path in answer["logs"] if here and path.endswith("/script.sh")]
    answer["try"] = [line for line in answer["try"] if not line.startswith("Read the last lines")]
    answer["try"] += [
        "Have it write what it does: it wrote no output.",
        *(f"sh {path}   # runs it again, by hand" for path in scripts),
    ]


def _doubted(run: Run, exit_: ExitInfo | None, found: Classification) -> bool:
    """Is what the exit table has people try less than what is known here? It knew nothing of this
    exit, which is explained now; or it went by a shell's "Killed", which looks like a want of
    memory, and the kernel counted none.
    """
    table = run.diagnosis
    if table is None or exit_ is None or found.cause == "exit":
        return False
    shell = (
        table.matched is not None
        and table.matched.rstrip().endswith("Killed")
        and exit_.out_of_memory is False
    )
    return shell or (table.type, table.behavior) == ("unknown", "unknown")


#: Rows of the exit table for what a shell could not execute, and could not find.
_OF_A_SHELL = (4126, 4127)


def spoken(answer: Answer, exit_: ExitInfo) -> list[str]:
    """What it said last, and what can be read out of that. Returns the lines."""
    answer["lastLines"], answer["terminationMessage"] = exit_.last_lines, exit_.termination_message
    if exit_.code == 0:
        return []
    lines = output_patterns.newest(exit_.last_lines, exit_.termination_message)
    answer["traceback"], answer["faulthandler"] = (
        output_patterns.traceback_of(lines),
        output_patterns.faulthandler_of(lines),
    )
    return lines


def _usual(
    answer: Answer, run: Run, exit_: ExitInfo | None, found: Classification
) -> tuple[str, ...]:
    """What is tried where the exit table has nothing: the table of causes, and more where numbers
    are known.
    """
    if run.status == COMPLETED:
        return CAUSES["outOfMemory"].todo if exit_ is not None and exit_.out_of_memory else ()
    if found.cause == "dependency":
        return ()
    lines = named(answer["computeJid"], CAUSES[found.cause].todo)
    if found.cause == "outOfMemory" and exit_ is not None and facts_of(exit_).memory_limit_bytes:
        limit = facts_of(exit_).memory_limit_bytes or 0
        lines = (
            f"give it more memory than {mib(limit)}, which was its limit, or make it need less",
            *lines,
        )
    if exit_ is not None and exit_.fault in FAULTS:
        lines = (FAULTS[exit_.fault], *lines)
    return lines


def _sentence(answer: Answer, run: Run, exit_: ExitInfo | None, found: Classification) -> None:
    denied: tuple[str, ...] = CAUSES[found.cause].excludes
    match run.reason if run.status != PURGED else PURGED:
        case "job_run_purged":
            answer["sentence"] = "it is over, and its files were removed since"
            answer["logs"] = []
        case "dependency":
            _after_another(answer, run)
            denied = ("canceled by anyone", "a failure of its own: it never started")
        case "cancel":
            stop = run.stop
            answer["sentence"] = (
                f"it was canceled by {stop.by}" + (f": {stop.note}" if stop.note else "")
                if stop
                else "it was canceled"
            )
            if stop is not None and exit_ is not None and _by_itself(exit_):
                how = (
                    f"exit code {exit_.code}" if exit_.signal is None else signal_name(exit_.signal)
                )
                answer["sentence"] += (
                    f"; its command had already ended by itself with {how} before the cancel reached it"
                )
                denied = tuple(d for d in denied if d != "its own exit")
        case "timeLimit":
            limit = run.spec.time_limit_secs
            answer["sentence"] = "it was ended by its time limit" + (
                f" of {limit:g} s" if limit else ""
            )
            if limit and exit_ is not None and isinstance(exit_.batch, BatchState) and limit % 60:
                told = 60 * math.ceil(limit / 60)
                answer["evidence"].append(
                    f"Slurm takes time limits in full minutes: {told} s, and may be half a minute late"
                )
        case "queueLimit":
            answer["sentence"] = "it waited longer than its queue limit and never started"
        case "startFailed":
            answer["sentence"] = exit_.sentence() if exit_ else "it could not be started"
            if exit_ is not None and exit_.fault in FAULTS:
                answer["evidence"].append(containers.missing(exit_))
        case "agentStartFailed":
            answer["sentence"] = run.error or "its agent could not be started"
        case "shutdown":
            answer["sentence"] = run.error or "it was ended from outside"
            answer["try"] = [f"jobscribe trace {answer['computeJid']}"]
        case "scheduler":
            answer["sentence"] = f"Slurm ended it: {_error(run)}" if run.error else "Slurm ended it"
            denied = ("canceled by anyone here", "a time limit", "its own exit", *denied)
        case "lost":
            answer["sentence"], denied = (
                _error(run) or "exit status unknown",
                ("a failure that the job reported",),
            )
        case _:
            denied = _own_exit(answer, run, exit_, found)
    excluded = list(dict.fromkeys((*answer["not"], *denied)))
    # another limit of time may well have ended it: one of CPU time, or that of 'timeout'
    answer["not"] = (
        [d for d in excluded if d != "a time limit"] if _OF_THE_RUN in excluded else excluded
    )


def _by_itself(exit_: ExitInfo | None) -> bool:
    """Is this an exit of its own, to which neither this system nor its scheduler led?"""
    if (
        exit_ is None
        or exit_.stop_reason is not None
        or exit_.source in ("start", "lost")
        or exit_.ended_by_scheduler is not None
    ):
        return False
    return exit_.code is not None or exit_.signal is not None


def _error(run: Run) -> str | None:
    """Its error, without the rule that decided an attempt of several tasks: that is evidence."""
    task = run.telling if run.spec.roles else None
    return (
        run.error
        if task is None or task.exit is None
        else f"task {task.token.role}/{task.token.index}: {task.exit.sentence()}"
    )


def _after_another(answer: Answer, run: Run) -> None:
    answer["sentence"] = (
        "it was canceled, for a run that it was to run after did not end in the way it asked for"
    )
    over = [
        a for a in run.spec.after if a.compute_jid not in {w.compute_jid for w in run.waits_for}
    ] or run.spec.after
    answer["evidence"] += [f"it was to run after {after(a)}" for a in over[-NAMED:]]
    answer["try"] = [f"jobscribe job why {over[-1].compute_jid}"] if over else []


def _own_exit(
    answer: Answer, run: Run, exit_: ExitInfo | None, found: Classification
) -> tuple[str, ...]:
    """Its sentence; returns what it is not."""
    denied = CAUSES[found.cause].excludes
    memory = exit_ is not None and exit_.out_of_memory is True
    if run.status == COMPLETED:
        decided = run.attempts[-1].decided if run.attempts else None
        how = (
            "with exit code 0" if decided is None else "because its tasks did what it asked of them"
        )
        answer["sentence"] = f"it completed {how}" + (f", but {OUT_OF_MEMORY}" if memory else "")
        return ()
    task = run.telling if run.spec.roles else None
    who = "it" if task is None else f"its task {task.token.role}/{task.token.index}"
    if exit_ is None:
        answer["sentence"] = run.error or "it failed"
    elif exit_.signal is not None:
        beyond = containers.beyond(run.telling, exit_)
        answer["sentence"] = (
            f"{who} was ended by {signal_name(exit_.signal)}, which this system did not send{beyond}"
        )
    else:
        # that a shell said it for a signal is at least possible
        by_signal = (found.cause in BY_SIGNAL.values() and exit_.code != 255) or (
            found.cause == "exit" and found.confidence == "possible"
        )
        answer["sentence"] = (
            f"{who} ended {'' if by_signal else 'by itself '}with exit code {exit_.code}"
        )
    python = answer["traceback"]
    answer["sentence"] += (
        f": {OUT_OF_MEMORY}" if memory else _meaning(exit_, found, python and python["last"])
    )
    if run.stop is not None or run.late_stop is not None:
        return tuple(d for d in ("a time limit", *denied) if not d.startswith("canceled by anyone"))
    return (
        "canceled by anyone",
        "a time limit",
        *(d for d in denied if d != "sent by jobscribe"),
    )


def _meaning(exit_: ExitInfo | None, found: Classification, exception: str | None) -> str:
    """Behind the bare fact: what that is, and how sure that is. Nothing where the fact says it."""
    if exit_ is None or (exit_.signal is not None and found.cause in _SAY_THEMSELVES):
        return ""
    if found.cause == "exit":
        number = signal_number(exit_.code, None)
        if number is None or found.confidence != "possible":
            return ""
        return f" (a shell says {exit_.code} when {signal_name(number)} ended its command; a program can say so by itself)"
    if found.cause == "notExecutable" and exit_.code == 126:
        return " (the command was found but cannot be executed)"
    if found.cause == "notFound" and exit_.code == 127:
        return " (the command was not found)"
    sure = f" ({found.confidence})" if found.confidence in ("likely", "possible") else ""
    if exit_.signal is None and found.cause in _SAY_THEMSELVES and exit_.code is not None:
        return f": {signal_name(exit_.code - 128)} ended its command, and this system did not send it{sure}"
    said = CAUSES[found.cause].sentence.rstrip(".")
    if exit_.signal is not None and said.startswith("Ended by SIG"):
        said = said.partition(": ")[2] or said
    if found.cause == "traceback" and exception is not None:
        said = f"{said} ({exception})"
    return f": {said if said.startswith('SIG') else said[0].lower() + said[1:]}{sure}"


#: Where a signal was said, these say nothing more.
_SAY_THEMSELVES = frozenset({"killed", "terminated", "interrupted", "crash", "signal"})


def _beside(answer: Answer, exit_: ExitInfo) -> None:
    """What else was measured, as far as it is not told yet."""
    facts, told = facts_of(exit_), []
    killed = killed_by(exit_) == signal.SIGKILL
    if exit_.out_of_memory and not any(
        line.startswith(OUT_OF_MEMORY) for line in answer["evidence"]
    ):
        told.append(f"{OUT_OF_MEMORY} (the kernel's own count)")
    if killed and exit_.out_of_memory is False and not facts.memory_kills:
        answer["not"].append("a want of memory: the kernel killed nothing for that")
    if (
        killed
        and exit_.out_of_memory is None
        and exit_.stop_reason is None
        and facts.memory_kills is None
    ):
        told.append(
            "whether memory had run out is not known: the kernel's counters do not tell it apart here"
        )
    if exit_.max_rss_bytes and not facts.memory_peak_bytes:
        told.append(f"largest memory of one process: {exit_.max_rss_bytes / 2**20:.0f} MiB")
    if facts.memory_peak_bytes and (facts.memory_limit_bytes or killed):
        told.append(_peak(facts, exit_.out_of_memory is True))
    elif facts.memory_limit_bytes and exit_.out_of_memory:
        cluster, most = isinstance(exit_.batch, BatchState), mib(facts.memory_limit_bytes)
        told.append(
            f"each of its nodes lets it have {most}"
            if cluster
            else f"it may have {most} of memory; how much it had was not seen"
        )
    told += [f"the kernel's log names it: {line}" for line in facts.kernel]
    if facts.kernel_unread and killed:
        told.append(f"the kernel's log says nothing here: {facts.kernel_unread}")
    if exit_.survivors_killed:
        one = exit_.survivors_killed == 1
        told.append(
            f"{exit_.survivors_killed} process{'' if one else 'es'} outlived the main one and {'was' if one else 'were'} ended"
        )
    if exit_.dropped_bytes:
        told.append(f"{exit_.dropped_bytes} bytes of output were dropped")
    answer["evidence"] += [line for line in told if line not in answer["evidence"]]


def _peak(facts: ExitFacts, ran_out: bool) -> str:
    """The most memory that it had. ran_out: all of it was taken, so a lower figure is what was seen
    some time before.
    """
    most, limit = facts.memory_peak_bytes or 0, facts.memory_limit_bytes
    of = f" of the {mib(limit)} that it may have" if limit else ""
    if ran_out and limit and most < NEAR * limit:
        return f"the most memory that was seen of it is {mib(most)}{of}: the rest was taken faster than was looked"
    return f"its memory peaked at {mib(most)}{of}"
