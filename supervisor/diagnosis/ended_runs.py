"""Explain an ended run: cause, confidence, evidence, excluded causes and advice. Pure."""

import math
import signal

from ...db.events.state import Run
from ...diagnosis import output_patterns
from ...diagnosis.causes import CAUSES
from ...diagnosis.classification import classify_run
from ...diagnosis.exit_table import Diagnosis, agrees
from ...diagnosis.kill_attribution import Classification, facts_of, killed_by, mib
from ...protocol.clusters.batch import BatchState
from ...protocol.jobs.exit_info import (
    FAULTS,
    OUT_OF_MEMORY,
    ExitInfo,
    signal_name,
    signal_number,
)
from ...protocol.jobs.status import COMPLETED, ERROR, PURGED
from . import containers, core_files
from .error_lines import hint_and_line, task_prefix
from .phrases import (
    NAMED,
    Answer,
    add_attempts,
    add_diagnosis,
    dependency,
    exit_evidence,
    several_tasks,
    utc,
    with_ids,
    without_repeats,
)
from .surroundings import Surroundings
from .usage_facts import memory_peak, reaction, used_and_limits

#: Causes that are another time limit, such as the limit of CPU time (diagnosis.causes), exclude
#: this cause.
_TIME_LIMIT_OF_RUN = "the time limit of the run"


def explain(answer: Answer, run: Run, about: Surroundings) -> None:
    """Fill the answer for an ended run."""
    exit_, jid = run.exit, answer["computeJid"]
    answer["reason"] = run.reason
    lines: list[str] = []
    if exit_ is not None:
        answer["evidence"].append(exit_evidence(run, exit_))
        lines = add_last_output(answer, exit_)
    found = classify_run(run.status, run.reason, exit_, lines)
    answer["cause"], answer["confidence"] = found.cause, found.confidence
    answer["evidence"] += [
        line.replace("its run directory", f"its run directory {run.run_dir}")
        for line in found.evidence
    ]
    if run.stop is not None and run.stop.reason == run.reason:
        order = (
            "its command ended before jobscribe sent a signal"
            if _exited_itself(exit_)
            else "and jobscribe recorded that before it stopped any process"
        )
        answer["evidence"].append(
            f"{about.named(run.stop.by)} requested its end at {utc(run.stop.at)}, {order}"
        )
    if (late := run.late_stop) is not None:
        request = f"{about.named(late.by)} requested its end ({late.reason}{f': {late.note}' if late.note else ''}) at {utc(late.at)}"
        answer["evidence"].append(
            f"{request}, after its command had ended; the result did not change"
        )
    if exit_ is not None:
        python = answer["traceback"]
        answer["evidence"] += core_files.evidence(exit_)
        answer["try"] += core_files.commands(jid, exit_)
        answer["evidence"] += reaction(run, exit_)
        answer["evidence"] += used_and_limits(run, exit_, found, python["last"] if python else "")
        _add_measurements(answer, exit_)
    add_attempts(answer, run, about.named)
    if run.started_at is None and run.status != COMPLETED:
        answer["evidence"].append("it never ran, so it has no output")
    answer["not"] += list(found.excluded)
    _add_sentence(answer, run, exit_, found, about)
    answer["try"] += containers.commands(run, run.telling, exit_)
    usual = _advice(answer, run, exit_, found)
    add_diagnosis(answer, run, usual, doubted=_table_doubted(run, exit_, found))
    table = run.diagnosis
    if (
        table is not None
        and found.cause != "exit"
        and (table.code in _SHELL_ROWS or not agrees(found, table))
    ):
        # the row covers several causes, or it was chosen before this cause was known
        answer["try"] = without_repeats(
            (*usual, *(line for line in answer["try"] if line not in table.solutions))
        )
    if table is not None and not agrees(found, table):
        answer["diagnosis"] = None
    if several_tasks(run) or (run.spec.roles and len(run.attempts) > 1):
        answer["try"].append(f"jobscribe job tasks {jid}")
    if (
        exit_ is not None
        and run.started_at is not None
        and exit_.stdout_bytes == exit_.stderr_bytes == 0
    ):
        _advise_without_output(answer, run)
    elif run.status == ERROR and run.started_at is not None:
        only_stdout = exit_ is not None and exit_.stderr_bytes == 0 and bool(exit_.stdout_bytes)
        answer["try"].append(
            f"jobscribe job logs {jid}" if only_stdout else f"jobscribe job logs --stderr {jid}"
        )


def _advise_without_output(answer: Answer, run: Run) -> None:
    """Replace the advice to read the output of a failed run that wrote none."""
    if run.status != ERROR:
        return
    answer["try"] = [line for line in answer["try"] if not line.startswith("Read the last lines")]
    answer["try"] += [
        "Make the program report its progress: it wrote no output.",
    ]


def _table_doubted(run: Run, exit_: ExitInfo | None, found: Classification) -> bool:
    """Return whether the cause is more reliable than the entry of the exit table.

    This holds if the entry says "unknown". It also holds if the entry is based on a shell's line
    "Killed", which suggests too little memory, and the kernel counted no such kill.
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


#: Exit table rows for a command that a shell could not execute (126) or find (127).
_SHELL_ROWS = (4126, 4127)


def add_last_output(answer: Answer, exit_: ExitInfo) -> list[str]:
    """Add the last output, and a traceback found in it. Return the lines; none for exit code 0."""
    answer["lastLines"], answer["terminationMessage"] = exit_.last_lines, exit_.termination_message
    if exit_.code == 0:
        return []
    lines = output_patterns.newest(exit_.last_lines, exit_.termination_message)
    answer["traceback"], answer["faulthandler"] = (
        output_patterns.traceback_of(lines),
        output_patterns.faulthandler_of(lines),
    )
    return lines


def _advice(
    answer: Answer, run: Run, exit_: ExitInfo | None, found: Classification
) -> tuple[str, ...]:
    """Return the advice for the cause, with numbers if they are known."""
    if run.status == COMPLETED:
        return CAUSES["outOfMemory"].todo if exit_ is not None and exit_.out_of_memory else ()
    if found.cause == "dependency":
        return ()
    lines = with_ids(answer["computeJid"], CAUSES[found.cause].todo)
    if found.cause == "outOfMemory" and exit_ is not None and facts_of(exit_).memory_limit_bytes:
        limit = facts_of(exit_).memory_limit_bytes or 0
        lines = (
            f"give it more memory than its limit of {mib(limit)}, or reduce its memory use",
            *lines,
        )
    if exit_ is not None and exit_.fault in FAULTS:
        lines = (FAULTS[exit_.fault], *lines)
    return lines


def _add_sentence(
    answer: Answer,
    run: Run,
    exit_: ExitInfo | None,
    found: Classification,
    about: Surroundings,
) -> None:
    """Add the sentence for the reason of the end, and the causes that this reason excludes."""
    excluded: tuple[str, ...] = CAUSES[found.cause].excludes
    match run.reason if run.status != PURGED else PURGED:
        case "job_run_purged":
            answer["sentence"] = "ended, and its files were purged later"
            answer["logs"] = []
        case "dependency":
            _add_dependency(answer, run)
            excluded = ("canceled by anyone", "a failure of its own: it never started")
        case "cancel":
            stop = run.stop
            answer["sentence"] = (
                f"canceled by {about.named(stop.by)}" + (f": {stop.note}" if stop.note else "")
                if stop
                else "canceled"
            )
            if stop is not None and exit_ is not None and _exited_itself(exit_):
                result = (
                    f"exit code {exit_.code}" if exit_.signal is None else signal_name(exit_.signal)
                )
                answer["sentence"] += (
                    f"; its command had already ended with {result} before the cancel reached it"
                )
                excluded = tuple(d for d in excluded if d != "its own exit")
        case "timeLimit":
            limit = run.spec.time_limit_secs
            answer["sentence"] = "stopped by its time limit" + (f" of {limit:g} s" if limit else "")
            if limit and exit_ is not None and isinstance(exit_.batch, BatchState) and limit % 60:
                rounded = 60 * math.ceil(limit / 60)
                answer["evidence"].append(
                    f"Slurm rounds time limits up to full minutes ({rounded} s) and may act up to 30 s late"
                )
        case "queueLimit":
            answer["sentence"] = "waited longer than its queue limit and never started"
        case "startFailed":
            answer["sentence"] = exit_.sentence() if exit_ else "could not be started"
            if exit_ is not None and exit_.fault in FAULTS:
                answer["evidence"].append(f"start failure: {exit_.fault}")
        case "agentStartFailed":
            answer["sentence"] = run.error or "its agent could not be started"
        case "shutdown":
            answer["sentence"] = run.error or "stopped from outside jobscribe"
            answer["try"] = [f"jobscribe trace {answer['computeJid']}"]
        case "scheduler":
            answer["sentence"] = f"ended by Slurm: {_error(run)}" if run.error else "ended by Slurm"
            excluded = ("canceled by anyone here", "a time limit", "its own exit", *excluded)
        case "lost":
            answer["sentence"], excluded = (
                _error(run) or "exit status unknown",
                ("a failure that the job reported",),
            )
        case _:
            excluded = _add_exit(answer, run, exit_, found)
    all_excluded = list(dict.fromkeys((*answer["not"], *excluded)))
    # another time limit may have ended it: the limit of CPU time, or the command 'timeout'
    answer["not"] = (
        [d for d in all_excluded if d != "a time limit"]
        if _TIME_LIMIT_OF_RUN in all_excluded
        else all_excluded
    )


def _exited_itself(exit_: ExitInfo | None) -> bool:
    """Return whether the command ended on its own: not stopped by jobscribe or its scheduler."""
    if (
        exit_ is None
        or exit_.stop_reason is not None
        or exit_.source in ("start", "lost")
        or exit_.ended_by_scheduler is not None
    ):
        return False
    return exit_.code is not None or exit_.signal is not None


def _error(run: Run) -> str | None:
    """Return the error of the run; for several tasks, the exit of the representative task.

    The policy that decided the attempt is part of the evidence instead.
    """
    task = run.telling if run.spec.roles else None
    if task is None or task.exit is None:
        return run.error
    return task_prefix(run) + task.exit.sentence()


def _add_dependency(answer: Answer, run: Run) -> None:
    """Name the runs that canceled this run by their end."""
    answer["sentence"] = "canceled: a run that it depends on did not end as required"
    over = [
        a for a in run.spec.after if a.compute_jid not in {w.compute_jid for w in run.waits_for}
    ] or run.spec.after
    answer["evidence"] += [f"it runs after {dependency(a)}" for a in over[-NAMED:]]
    answer["try"] = [f"jobscribe job why {over[-1].compute_jid}"] if over else []


def _add_exit(
    answer: Answer, run: Run, exit_: ExitInfo | None, found: Classification
) -> tuple[str, ...]:
    """Add the sentence for an exit code or signal. Return the excluded causes."""
    excluded = CAUSES[found.cause].excludes
    memory = exit_ is not None and exit_.out_of_memory is True
    if run.status == COMPLETED:
        decided = run.attempts[-1].decided if run.attempts else None
        result = (
            " with exit code 0"
            if decided is None
            else ": its tasks met the conditions of their roles"
        )
        answer["sentence"] = f"completed{result}" + (f", but {OUT_OF_MEMORY}" if memory else "")
        return ()
    subject = task_prefix(run)
    if exit_ is None:
        answer["sentence"] = run.error or "failed"
    elif exit_.signal is not None:
        sender = containers.possible_sender(run.telling, exit_)
        answer["sentence"] = (
            f"{subject}killed by {signal_name(exit_.signal)} (not sent by jobscribe{sender})"
        )
    else:
        answer["sentence"] = f"{subject}failed with exit code {exit_.code}"
    if exit_ is not None:
        answer["sentence"] += core_files.place(exit_)
    python = answer["traceback"]
    if exit_ is not None and not memory:
        answer["says"] = hint_and_line(exit_, found, run.diagnosis)[1]
    answer["sentence"] += (
        f": {OUT_OF_MEMORY}"
        if memory
        else _meaning(exit_, found, python and python["last"], run.diagnosis)
    )
    if run.stop is not None or run.late_stop is not None:
        return tuple(
            d for d in ("a time limit", *excluded) if not d.startswith("canceled by anyone")
        )
    return (
        "canceled by anyone",
        "a time limit",
        *(d for d in excluded if d != "sent by jobscribe"),
    )


def _meaning(
    exit_: ExitInfo | None,
    found: Classification,
    exception: str | None,
    diagnosis: Diagnosis | None,
) -> str:
    """Return the meaning of the exit with its confidence, or "" if the exit says it already."""
    if exit_ is None or (exit_.signal is not None and found.cause in _PLAIN_SIGNALS):
        return ""
    line = hint_and_line(exit_, found, diagnosis)[0]
    if found.cause == "exit":
        number = signal_number(exit_.code, None)
        if number is None or found.confidence != "possible":
            return line
        return f" (a shell returns {exit_.code} if {signal_name(number)} killed its command; a program can also return it itself)"
    if found.cause == "notExecutable" and exit_.code == 126:
        return f" (the command was found but cannot be executed){line}"
    if found.cause == "notFound" and exit_.code == 127:
        return f" (the command was not found){line}"
    unsure = found.confidence in ("likely", "possible")
    if exit_.signal is None and found.cause in _PLAIN_SIGNALS and exit_.code is not None:
        name, prefix = signal_name(exit_.code - 128), f"{found.confidence}; " if unsure else ""
        return f": {name} killed its command ({prefix}not sent by jobscribe)"
    meaning = CAUSES[found.cause].sentence.rstrip(".")
    if exit_.signal is not None and meaning.startswith("Ended by SIG"):
        meaning = meaning.partition(": ")[2] or meaning
    if found.cause == "traceback" and exception is not None:
        meaning = f"{meaning} ({exception})"
    start = meaning[0] if meaning.startswith("SIG") else meaning[0].lower()
    return f": {start}{meaning[1:]}{line}" + (f" ({found.confidence})" if unsure else "")


#: Causes that add nothing to the name of the signal.
_PLAIN_SIGNALS = frozenset({"killed", "terminated", "interrupted", "crash", "signal"})


def _add_measurements(answer: Answer, exit_: ExitInfo) -> None:
    """Add measured facts that the evidence does not contain yet: memory, kernel log, processes."""
    facts, lines = facts_of(exit_), []
    killed = killed_by(exit_) == signal.SIGKILL
    if exit_.out_of_memory and not any(
        line.startswith(OUT_OF_MEMORY) for line in answer["evidence"]
    ):
        lines.append(f"{OUT_OF_MEMORY} (the kernel's own count)")
    if killed and exit_.out_of_memory is False and not facts.memory_kills:
        answer["not"].append("out of memory: the kernel killed no process for that")
    if (
        killed
        and exit_.out_of_memory is None
        and exit_.stop_reason is None
        and facts.memory_kills is None
    ):
        lines.append(
            "unknown whether memory ran out: the kernel's counters are not specific to this job"
        )
    if exit_.max_rss_bytes and not facts.memory_peak_bytes:
        lines.append(f"largest memory of one process: {exit_.max_rss_bytes / 2**20:.0f} MiB")
    if facts.memory_peak_bytes and (facts.memory_limit_bytes or killed):
        lines.append(memory_peak(facts, exit_.out_of_memory is True))
    if facts.memory_limit_bytes and exit_.out_of_memory:
        limit = mib(facts.memory_limit_bytes)
        if isinstance(exit_.batch, BatchState):
            lines.append(f"its memory limit on each node is {limit}")
        elif not facts.memory_peak_bytes:
            lines.append(f"its memory limit is {limit}; its memory use was not measured")
    lines += [f"the kernel's log names it: {line}" for line in facts.kernel]
    if facts.kernel_unread and killed:
        lines.append(f"the kernel's log could not be read here: {facts.kernel_unread}")
    if exit_.survivors_killed:
        one = exit_.survivors_killed == 1
        lines.append(
            f"{exit_.survivors_killed} process{'' if one else 'es'} outlived the main process and {'was' if one else 'were'} killed"
        )
    if exit_.dropped_bytes:
        lines.append(f"{exit_.dropped_bytes} bytes of output were dropped")
    answer["evidence"] += [line for line in lines if line not in answer["evidence"]]
