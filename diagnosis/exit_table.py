"""The exit table: finds the row that explains an exit, and a hint from a line of output. Shapes and
rules, pure.

The first step with a matching row decides: (a) jobscribe stopped the execution; (b) facts of the
driver and the kernel; (c) the cause that all facts together show (`classification`); (d) the
signal; (e) the exit code; (f) otherwise, the default row. A row can require a cause beside any
other condition, so that a code or a signal never contradicts the facts. A line of output never
decides: it is only a hint for people. So a job cannot choose its type by its output, and output
that looks like a user error does not prevent a retry after a machine was lost.

Codes of rows start at 1000 and exit codes end at 255, so they cannot be confused.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from ..protocol.fields import LINE, Form, InvalidForm
from ..protocol.jobs.exit_info import (
    FAULTS,
    SCHEDULER_END_STATES,
    ExitInfo,
    Source,
    signal_by_name,
    signal_name,
    signal_number,
)
from . import output_patterns, safe_patterns
from .causes import CAUSES
from .classification import classify_by_facts
from .kill_attribution import Classification

#: The responsible side.
Cause = Literal["user", "platform", "resource", "unknown"]
#: Effect of a retry: helps; helps later; does not help; unknown.
Behavior = Literal["transient", "conflict", "permanent", "unknown"]

#: Responsible side and effect of a retry as text.
WHOSE: dict[Cause, str] = {
    "user": "caused by the job: its program, its input, or its request",
    "platform": "caused by the platform, not the job",
    "resource": "a resource that was not available in time",
    "unknown": "responsible side unknown",
}
AGAIN: dict[Behavior, str] = {
    "transient": "a retry helps",
    "conflict": "a retry helps later",
    "permanent": "a retry does not help",
    "unknown": "the effect of a retry is unknown",
}

#: Limits of an excerpt: lines, and bytes in UTF-8. The matched line is always included.
EXCERPT_LINES, EXCERPT_BYTES = 15, 4096
#: Input limits of rules: newest characters of output, lines of these, characters of each line.
SEEN_CHARS, SEEN_LINES, LINE_CHARS = 4096, 100, 400
#: An unknown stop reason counts as this one (see `supervisor.core.runs.outcome`).
ORDINARY_STOP = "cancel"


def _signal(value: Any) -> int:
    number = signal_by_name(value) if isinstance(value, str) else value
    if not isinstance(number, int) or isinstance(number, bool):
        raise InvalidForm
    return number


def _state(value: Any) -> str:
    if value not in SCHEDULER_END_STATES:
        raise InvalidForm
    return str(value)


def _cause(value: Any) -> str:
    if value not in CAUSES:
        raise InvalidForm
    return str(value)


_LIST = msgspec.Meta(min_length=1, max_length=300)
_Word = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9]{1,60}\Z"),
    Form("a word of letters and digits, at most 60"),
]
_Cause = Annotated[str, Form(f"one of {', '.join(CAUSES)}", _cause)]
_State = Annotated[str, Form(f"one of {', '.join(sorted(SCHEDULER_END_STATES))}", _state)]
_Signal = Annotated[
    int,
    msgspec.Meta(ge=1, le=64),
    Form("a signal, such as SIGKILL, or its number", _signal),
]
_ExitCode = Annotated[int, msgspec.Meta(ge=1, le=255)]
_Sentence = Annotated[str, msgspec.Meta(min_length=1, max_length=500), LINE]


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Diagnosis of one execution that did not succeed. code: of the row in the exit table, never
    the exit code of the process.

    hint: phrase of a row whose rule matched a line of output (`matched`, with `excerpt` around it).
    A hint changes neither type nor behavior.
    """

    code: int
    phrase: str
    type: Cause
    behavior: Behavior
    reason: str
    solutions: tuple[str, ...] = ()
    hint: str | None = None
    matched: str | None = None
    excerpt: str | None = None


class When(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of a row. All given conditions must hold; a list holds if one of its elements
    does.

    memory: the kernel killed a process because memory ran out. slurm: Slurm's state, if Slurm ended
    the run. cause, perhaps: the cause shown by the facts, with `perhaps` for confidence `possible`
    and `cause` for higher confidence. log: regular expressions over single lines of output. A row
    with `log` is a hint; its other conditions select the exits.
    """

    stop: Annotated[tuple[_Word, ...], _LIST] = ()
    source: Annotated[tuple[Source, ...], _LIST] = ()
    fault: Annotated[tuple[_Word, ...], _LIST] = ()
    memory: bool = False
    slurm: Annotated[tuple[_State, ...], _LIST] = ()
    cause: Annotated[tuple[_Cause, ...], _LIST] = ()
    perhaps: Annotated[tuple[_Cause, ...], _LIST] = ()
    signals: Annotated[tuple[_Signal, ...], _LIST] = ()
    codes: Annotated[tuple[_ExitCode, ...], _LIST] = ()
    log: Annotated[tuple[str, ...], _LIST] = ()


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of exit. reason: a sentence; {code} and {signal} are replaced. solutions: advice,
    most likely to help first.
    """

    code: Annotated[int, msgspec.Meta(ge=1000, le=99_999)]
    phrase: Annotated[str, msgspec.Meta(min_length=1, max_length=60), LINE]
    type: Cause
    behavior: Behavior = "unknown"
    reason: _Sentence
    solutions: Annotated[tuple[_Sentence, ...], _LIST] = ()
    when: When = When()


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in order of precedence. Built-in rows cover everything else."""

    rows: tuple[Row, ...] = ()


def diagnose(exit_: ExitInfo, table: Table) -> Diagnosis | None:
    """Return the diagnosis of an exit; None if and only if the exit code is 0 and no stop was
    requested, whatever else is known.
    """
    if exit_.code == 0 and exit_.stop_reason is None:
        return None
    row = classified(exit_, table)
    found = None if exit_.stop_reason is not None else _hint(exit_, table.rows)
    row = msgspec.structs.replace(row, reason=reason_of(row, exit_))
    if found is None:
        return Diagnosis(
            code=row.code,
            phrase=row.phrase,
            type=row.type,
            behavior=row.behavior,
            reason=row.reason,
            solutions=row.solutions,
        )
    hint, matched, excerpt = found
    return Diagnosis(
        code=row.code,
        phrase=row.phrase,
        type=row.type,
        behavior=row.behavior,
        reason=row.reason,
        solutions=tuple(dict.fromkeys((*hint.solutions, *row.solutions))),
        hint=hint.phrase,
        matched=matched,
        excerpt=excerpt,
    )


def agrees(found: Classification, diagnosis: Diagnosis) -> bool:
    """Return whether type and cause agree. A diagnosis of an older version may have ignored the
    cause.
    """
    return diagnosis.type in ("unknown", CAUSES[found.cause].whose) or CAUSES[
        found.cause
    ].whose in ("unknown", "nobody")


def reason_of(row: Row, exit_: ExitInfo | None = None) -> str:
    """Return the reason of the row, with {code} and {signal} of this exit, or of the row."""
    codes = row.when.codes if exit_ is None or exit_.code is None else (exit_.code,)
    signals = (
        [signal_number(code, None) for code in codes]
        if exit_ is None
        else [signal_number(exit_.code, exit_.signal)]
    )
    names = [signal_name(number) for number in signals if number is not None]
    return row.reason.replace("{code}", " or ".join(map(str, codes))).replace(
        "{signal}", " or ".join(names) or "a signal"
    )


def classified(exit_: ExitInfo, table: Table) -> Row:
    """Return the row that decides type and behavior of an unsuccessful exit."""
    if exit_.stop_reason is not None:
        return _stopped(exit_.stop_reason, table.rows)
    found = classify_by_facts(exit_)
    known = [
        row
        for row in (*table.rows, *BUILT_IN)
        if _stage(row.when) in _ORDER and _holds(row.when, exit_, found)
    ]
    return min(known, key=lambda row: _ORDER.index(_stage(row.when)))


def _stopped(reason: str, rows: Iterable[Row]) -> Row:
    """Return the row of a stop reason. The exit of the process after our signal does not matter."""
    known = [row for row in (*rows, *BUILT_IN) if _stage(row.when) == "stop"]
    return next(row for word in (reason, ORDINARY_STOP) for row in known if word in row.when.stop)


_ORDER = ("fact", "cause", "signal", "code", "rest")


def _stage(when: When) -> str:
    """Return the step at which the row is checked: the earliest step of any of its conditions."""
    if when.log:
        return "hint"
    if when.stop:
        return "stop"
    if when.source or when.fault or when.memory or when.slurm:
        return "fact"
    if when.signals or when.codes:
        return "signal" if when.signals else "code"
    return "cause" if when.cause or when.perhaps else "rest"


def _holds(when: When, exit_: ExitInfo, found: Classification | None = None) -> bool:
    """found: cause by the facts; None for hints, which have no condition on it."""
    return (
        (not when.source or exit_.source in when.source)
        and (not when.fault or exit_.fault in when.fault)
        and (not when.memory or exit_.out_of_memory is True)
        and (not when.slurm or exit_.ended_by_scheduler in when.slurm)
        and (
            not (when.cause or when.perhaps)
            or (
                found is not None
                and found.cause in (when.perhaps if _possible(found) else when.cause)
            )
        )
        and (not when.signals or exit_.signal in when.signals)
        and (not when.codes or exit_.code in when.codes)
    )


def _possible(found: Classification) -> bool:
    return found.confidence == "possible"


# ---- lines of output


def _hint(exit_: ExitInfo, rows: Iterable[Row]) -> tuple[Row, str, str] | None:
    """Return (row, matched line, excerpt) for the newest line that matches a rule and may be the
    final error.

    The termination message of a job is newer than its output.
    """
    rules = [row for row in rows if row.when.log and _holds(row.when, exit_)]
    if not rules:
        return None
    for text in (exit_.termination_message, exit_.last_lines):
        lines = _newest(text or "")
        for at in range(len(lines) - 1, -1, -1):
            line = lines[at][:LINE_CHARS].strip()
            row = next((row for row in rules if line and _matches(row, line)), None)
            if row is not None and output_patterns.is_final_error(lines, at):
                return row, line, excerpt(lines, at)
    return None


def _newest(text: str) -> list[str]:
    """Return the newest lines within the limits, without a partial first line."""
    lines = text[-SEEN_CHARS:].splitlines()[-SEEN_LINES:]
    return lines[1:] if len(text) > SEEN_CHARS and len(lines) > 1 else lines


def _matches(row: Row, line: str) -> bool:
    return safe_patterns.any_of(row.when.log).search(line)


def excerpt(lines: list[str], at: int) -> str:
    """Return the lines around line `at` within the limits; the nearest lines win."""
    first = max(0, min(at - EXCERPT_LINES // 2, len(lines) - EXCERPT_LINES))
    last = min(len(lines), first + EXCERPT_LINES)
    kept = {at: _cut(lines[at], EXCERPT_BYTES)}
    room = EXCERPT_BYTES - _bytes(kept[at])
    for n in sorted(range(first, last), key=lambda n: abs(n - at))[1:]:
        room -= _bytes(lines[n]) + 1
        if room < 0:
            break
        kept[n] = lines[n]
    return "\n".join(kept[n] for n in sorted(kept))


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _cut(text: str, limit: int) -> str:
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")


# ---- built-in rows: the classes of the shipped table in fewer words


def _row(
    code: int, phrase: str, type_: Cause, behavior: Behavior, reason: str, **when: object
) -> Row:
    return Row(
        code=code,
        phrase=phrase,
        type=type_,
        behavior=behavior,
        reason=reason,
        when=When(**when),  # type: ignore[arg-type]
    )


#: Shortages of a machine, which end when other jobs end.
_SHORT = ("noProcesses", "noDescriptors", "noMemory", "diskFull")
#: Container faults: gone on another host; gone later; permanent.
_ELSEWHERE, _LATER = ("subnetTaken", "engineRefused"), ("registryUnreachable", "pullTimeout")
_NOT_TO_BE_HAD = ("imageMissing", "pullDenied", "noShell", "volumeRefused")
_LOST_LOGIN = ("credentialsLost",)
#: Cluster faults: the request must change; ends caused by the cluster.
_NOT_THERE, _TAKEN = ("batchRefused", "neverPossible"), ("PREEMPTED", "REVOKED")
_NODES = ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL")
#: Signals by sender: another process; the kernel, for an error of the program; the program itself.
_OUTSIDE, _PROGRAM, _OWN = (1, 2, 3, 9, 15), (4, 5, 7, 8, 13, 24, 25, 31), (6, 11)

#: Possible causes of exit codes 128+n.
_SENT, _OF_CHILD = (
    ("killed", "terminated", "hangup", "interrupted"),
    ("crash", "brokenPipe", "cpuLimit", "fileSizeLimit"),
)


def _codes(signals: Iterable[int]) -> tuple[int, ...]:
    return tuple(128 + n for n in signals)


BUILT_IN = (
    _row(1001, "canceled", "user", "permanent", "A user canceled the run.", stop=("cancel",)),
    _row(
        1002,
        "time limit reached",
        "user",
        "permanent",
        "The run reached its time limit.",
        stop=("timeLimit",),
    ),
    _row(
        1003,
        "queue limit reached",
        "resource",
        "permanent",
        "The run reached its queue limit.",
        stop=("queueLimit",),
    ),
    _row(
        1004,
        "shut down",
        "platform",
        "transient",
        "The run was ended by a shutdown of its machine or a stop of its keeper.",
        stop=("shutdown",),
    ),
    _row(
        1005,
        "unknown to the log",
        "platform",
        "transient",
        "The event log was rolled back and did not contain the execution.",
        stop=("lost",),
    ),
    _row(
        1006,
        "attempt decided",
        "user",
        "permanent",
        "The task was stopped because its attempt was already decided.",
        stop=("decided",),
    ),
    _row(
        2001,
        "out of memory",
        "user",
        "permanent",
        "Memory ran out, and the kernel killed a process of the job.",
        memory=True,
    ),
    _row(
        2002,
        "killed for memory",
        "user",
        "permanent",
        "The kernel killed the job because memory ran out.",
        cause=("outOfMemory",),
    ),
    _row(
        2003,
        "perhaps a limit",
        "unknown",
        "unknown",
        "The job was near a limit.",
        perhaps=("outOfMemory", "cpuLimit"),
    ),
    _row(
        2028,
        "quota used up",
        "user",
        "conflict",
        "The user's disk quota was used up.",
        source=("start",),
        cause=("quota",),
    ),
    _row(
        2029,
        "no such program",
        "user",
        "permanent",
        "The program cannot run there.",
        source=("start",),
        cause=("wrongArchitecture", "notFound"),
    ),
    _row(
        3024,
        "limit of one process",
        "user",
        "permanent",
        "A process reached its limit.",
        cause=("cpuLimit", "fileSizeLimit"),
    ),
    _row(
        2010,
        "port taken",
        "platform",
        "transient",
        "One of its ports was in use.",
        source=("start",),
        fault=("portTaken",),
    ),
    _row(
        2011,
        "machine short",
        "platform",
        "conflict",
        "Its machine lacked resources to start it.",
        source=("start",),
        fault=_SHORT,
    ),
    _row(
        2023,
        "refused there",
        "platform",
        "transient",
        "Its container could not be started there.",
        source=("start",),
        fault=_ELSEWHERE,
    ),
    _row(
        2017,
        "not to be had",
        "user",
        "permanent",
        "Its image or volumes are not available.",
        source=("start",),
        fault=_NOT_TO_BE_HAD,
    ),
    _row(
        2046,
        "credentials lost",
        "platform",
        "permanent",
        "The supervisor restarted, and has the job's own credentials no more.",
        source=("start",),
        fault=_LOST_LOGIN,
    ),
    _row(
        2021,
        "image not here yet",
        "platform",
        "conflict",
        "Its image was not available in time.",
        source=("start",),
        fault=_LATER,
    ),
    _row(
        2025,
        "refused by the cluster",
        "user",
        "permanent",
        "Its cluster refused the request.",
        source=("start",),
        fault=_NOT_THERE,
    ),
    _row(
        2027,
        "cluster not to be asked",
        "platform",
        "conflict",
        "Slurm was unreachable.",
        source=("start",),
        fault=("schedulerUnreachable",),
    ),
    _row(
        2045,
        "canceled there by its user",
        "user",
        "permanent",
        "Its own user canceled it in Slurm.",
        slurm=("CANCELLED",),
        cause=("slurmCanceledByUser",),
    ),
    _row(
        2044,
        "canceled by others",
        "platform",
        "permanent",
        "Another user canceled it in Slurm.",
        slurm=("CANCELLED",),
        cause=("slurmCanceledByOther",),
    ),
    _row(
        2040,
        "canceled in Slurm",
        "unknown",
        "permanent",
        "An unknown user canceled it in Slurm.",
        slurm=("CANCELLED",),
    ),
    _row(
        2041, "node failed", "platform", "transient", "A node that it ran on failed.", slurm=_NODES
    ),
    _row(
        2042,
        "preempted",
        "platform",
        "transient",
        "Another job preempted it.",
        slurm=_TAKEN,
    ),
    _row(
        2043,
        "too late for its deadline",
        "user",
        "permanent",
        "Slurm removed it at its deadline.",
        slurm=("DEADLINE",),
    ),
    # every other fault: repair by a person is necessary
    _row(
        2015,
        "machine not fit",
        "platform",
        "permanent",
        "Its machine cannot start it in its current state.",
        source=("start",),
        fault=tuple(FAULTS),
    ),
    _row(2020, "not started", "platform", "unknown", "The start failed.", source=("start",)),
    _row(2030, "lost", "platform", "transient", "The exit status is unknown.", source=("lost",)),
    _row(
        3000,
        "killed from outside",
        "platform",
        "transient",
        "It was ended by a signal that jobscribe did not send.",
        signals=_OUTSIDE,
    ),
    _row(
        3001,
        "program error",
        "user",
        "permanent",
        "The kernel ended the program for an error of its own.",
        signals=_PROGRAM,
    ),
    _row(3002, "crashed", "user", "unknown", "The program crashed.", signals=_OWN),
    _row(
        3099,
        "ended by a signal",
        "unknown",
        "unknown",
        "A signal ended it.",
        signals=tuple(range(1, 65)),
    ),
    _row(
        4126,
        "command cannot be executed",
        "user",
        "permanent",
        "The command was found but cannot be executed.",
        codes=(126,),
    ),
    _row(
        4127, "command not found", "user", "permanent", "The command was not found.", codes=(127,)
    ),
    _row(4200, "try again", "user", "transient", "It asked for a retry.", codes=(200,)),
    _row(
        4201,
        "try again later",
        "user",
        "conflict",
        "It asked for a later retry.",
        codes=(201,),
    ),
    _row(
        4210,
        "do not try again",
        "user",
        "permanent",
        "It asked for no retry.",
        codes=(210,),
    ),
    _row(
        4124,
        "stopped by timeout",
        "user",
        "unknown",
        "Exit code 124, as from 'timeout'.",
        codes=(124,),
        cause=("commandTimeout",),
    ),
    _row(
        4300,
        "child killed from outside",
        "platform",
        "transient",
        "A signal ended a child.",
        codes=_codes(_OUTSIDE),
        cause=_SENT,
    ),
    _row(
        4301,
        "error in a child's program",
        "user",
        "permanent",
        "The kernel ended a child for an error of its own.",
        codes=_codes(_PROGRAM),
        cause=_OF_CHILD,
    ),
    _row(
        4302,
        "child crashed",
        "user",
        "unknown",
        "A child crashed.",
        codes=_codes(_OWN),
        cause=("crash",),
    ),
    _row(9000, "failed", "unknown", "unknown", "It ended with an exit code of its own."),
)
