"""What an exit means: one row of the exit table, and the line of output that seems to say why.
Shapes and rules, pure.

The first that applies decides: (a) we stopped it; (b) facts of the driver and of the kernel; (c)
the cause that all facts together show (`refining`); (d) its signal; (e) its exit code; (f) nothing
of this is known. A row can ask for the cause beside any other condition, so that a code or a signal
never contradicts what is known. A line of output decides nothing: it is a hint for people. So a job
cannot print itself another class, and a log that looks like a fault of its user never keeps a run
from being tried again after a machine was lost.

Codes of rows begin at 1000, exit codes end at 255: the two can never be taken for each other.
"""

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from ..protocol.jobs.exit_info import FAULTS, ExitInfo, Source, signal_name, signal_number
from . import output_patterns
from .causes import CAUSES
from .classification import by_facts
from .kill_attribution import Classification

#: Whose it is.
Cause = Literal["user", "platform", "resource", "unknown"]
#: What trying again would do: help; help later; not help; nobody knows.
Behavior = Literal["transient", "conflict", "permanent", "unknown"]

#: Both in words.
WHOSE: dict[Cause, str] = {
    "user": "of the job: its program, its input, or what was asked for it",
    "platform": "of the platform, not of the job",
    "resource": "what it needs could not be had in time",
    "unknown": "whose it is cannot be told",
}
AGAIN: dict[Behavior, str] = {
    "transient": "trying again helps",
    "conflict": "trying again later helps",
    "permanent": "trying again does not help",
    "unknown": "whether trying again helps is not known",
}

#: An excerpt has so many lines, and so many bytes as UTF-8, the matched line always among them.
EXCERPT_LINES, EXCERPT_BYTES = 15, 4096
#: Rules see so much: characters of the newest output, lines of these, characters of each line.
SEEN_CHARS, SEEN_LINES, LINE_CHARS = 4096, 100, 400
#: A stop that no row knows counts as this one does (see the core's `endings`).
ORDINARY_STOP = "cancel"


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Of one execution that did not succeed. code: of the row of the exit table, never the raw exit
    code (that is in the exit).

    hint: phrase of a row whose rule matched a line of output (`matched`, with `excerpt` around it).
    It changes neither type nor behavior.
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
    """What a row applies to: all that is given here must hold; a list holds where one of it does.

    memory: the kernel killed a process of it for want of memory. slurm: what Slurm calls its end,
    where that was Slurm's doing. cause, perhaps: the word of the table of causes that the facts
    show; `perhaps` where that is possible and no more, else `cause`. log: regular expressions over
    single lines of output; a row that has any is a hint, and the rest of its conditions say to
    which exits.
    """

    stop: tuple[str, ...] = ()
    source: tuple[Source, ...] = ()
    fault: tuple[str, ...] = ()
    memory: bool = False
    slurm: tuple[str, ...] = ()
    cause: tuple[str, ...] = ()
    perhaps: tuple[str, ...] = ()
    signals: tuple[int, ...] = ()
    codes: tuple[int, ...] = ()
    log: tuple[str, ...] = ()


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of exit. reason: a sentence that says what happened; solutions: what a person can
    try, the likeliest first.
    """

    code: int
    phrase: str
    type: Cause
    behavior: Behavior
    reason: str
    solutions: tuple[str, ...] = ()
    when: When = When()


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in the order in which they are looked at. What none of them knows falls to a few rows
    that are built in.
    """

    rows: tuple[Row, ...] = ()


def diagnose(exit_: ExitInfo, table: Table) -> Diagnosis | None:
    """What this exit means; None exactly for exit code 0 of an execution that nobody stopped,
    whatever else is known of it.
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
    """Is the class that of the cause? A diagnosis of an older version may have been made without
    it.
    """
    return diagnosis.type in ("unknown", CAUSES[found.cause].whose) or CAUSES[
        found.cause
    ].whose in ("unknown", "nobody")


def reason_of(row: Row, exit_: ExitInfo | None = None) -> str:
    """Its sentence; {code} and {signal} become those of this exit, or of the row."""
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
    """The row that decides type and behavior of an exit that is not a success."""
    if exit_.stop_reason is not None:
        return _stopped(exit_.stop_reason, table.rows)
    found = by_facts(exit_)
    known = [
        row
        for row in (*table.rows, *BUILT_IN)
        if _stage(row.when) in _ORDER and _holds(row.when, exit_, found)
    ]
    return min(known, key=lambda row: _ORDER.index(_stage(row.when)))


def _stopped(reason: str, rows: Iterable[Row]) -> Row:
    """A stop is known by its reason alone: what the process made of our signal does not matter."""
    known = [row for row in (*rows, *BUILT_IN) if _stage(row.when) == "stop"]
    return next(row for word in (reason, ORDINARY_STOP) for row in known if word in row.when.stop)


_ORDER = ("fact", "cause", "signal", "code", "rest")


def _stage(when: When) -> str:
    """At which of the steps this row is looked at: the earliest that it has a condition of."""
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
    """found: its cause, by the facts; of a hint nobody asks for that."""
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
    """(row, matched line, excerpt) of the newest line that a rule matches and that may be why the
    program ended.

    A job's last word is newer than its output.
    """
    rules = [row for row in rows if row.when.log and _holds(row.when, exit_)]
    if not rules:
        return None
    for text in (exit_.termination_message, exit_.last_lines):
        lines = _newest(text or "")
        for at in range(len(lines) - 1, -1, -1):
            line = lines[at][:LINE_CHARS].strip()
            row = next((row for row in rules if line and _matches(row, line)), None)
            if row is not None and output_patterns.stands(lines, at):
                return row, line, excerpt(lines, at)
    return None


def _newest(text: str) -> list[str]:
    """What rules see of it: whole lines, none that begins in the middle."""
    lines = text[-SEEN_CHARS:].splitlines()[-SEEN_LINES:]
    return lines[1:] if len(text) > SEEN_CHARS and len(lines) > 1 else lines


def _matches(row: Row, line: str) -> bool:
    # compiled expressions are kept by `re` itself
    return any(re.search(rule, line) for rule in row.when.log)


def excerpt(lines: list[str], at: int) -> str:
    """Lines around this one, without leaving the limits: what is farthest away from it goes first."""
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


# ---- what is known without any table: the same classes as the shipped one's, in fewer words


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


#: Machines that ran short of something: it comes back when others have ended.
_SHORT = ("noProcesses", "noDescriptors", "noMemory", "diskFull")
#: Of containers: what another attempt, which may be on another host, does not meet; what comes
#: back; what is not to be had.
_ELSEWHERE, _LATER = ("subnetTaken", "engineRefused"), ("registryUnreachable", "pullTimeout")
_NOT_TO_BE_HAD = ("imageMissing", "pullDenied", "noShell", "volumeRefused")
#: Of clusters: what must be asked for differently, and ends that are theirs.
_NOT_THERE, _TAKEN = ("batchRefused", "neverPossible"), ("PREEMPTED", "REVOKED")
_NODES = ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL")
#: Signals by who raises them: somebody outside; the kernel, for what the program did; or the
#: program, for reasons of its own.
_OUTSIDE, _PROGRAM, _OWN = (1, 2, 3, 9, 15), (4, 5, 7, 8, 13, 24, 25, 31), (6, 11)

#: Causes that a code of 128+n can have.
_SENT, _OF_CHILD = (
    ("killed", "terminated", "hangup", "interrupted"),
    ("crash", "brokenPipe", "cpuLimit", "fileSizeLimit"),
)


def _codes(signals: Iterable[int]) -> tuple[int, ...]:
    return tuple(128 + n for n in signals)


BUILT_IN = (
    _row(1001, "canceled", "user", "permanent", "It was canceled.", stop=("cancel",)),
    _row(
        1002,
        "time limit reached",
        "user",
        "permanent",
        "It reached its time limit.",
        stop=("timeLimit",),
    ),
    _row(
        1003,
        "queue limit reached",
        "resource",
        "permanent",
        "It waited longer than its queue limit.",
        stop=("queueLimit",),
    ),
    _row(
        1004,
        "shut down",
        "platform",
        "transient",
        "It was ended from outside, with its machine or its keeper.",
        stop=("shutdown",),
    ),
    _row(
        1005,
        "unknown to the log",
        "platform",
        "transient",
        "The log, which was set back, did not know it.",
        stop=("lost",),
    ),
    _row(
        1006,
        "attempt decided",
        "user",
        "permanent",
        "It was stopped because its attempt was decided.",
        stop=("decided",),
    ),
    _row(
        2001,
        "out of memory",
        "user",
        "permanent",
        "Memory ran out, and the kernel killed a process of it.",
        memory=True,
    ),
    _row(
        2002,
        "killed for memory",
        "user",
        "permanent",
        "The kernel killed it for want of memory.",
        cause=("outOfMemory",),
    ),
    _row(
        2003,
        "perhaps a limit",
        "unknown",
        "unknown",
        "It was near a limit.",
        perhaps=("outOfMemory", "cpuLimit"),
    ),
    _row(
        2028,
        "quota used up",
        "user",
        "conflict",
        "Its user's disk quota was used up.",
        source=("start",),
        cause=("quota",),
    ),
    _row(
        2029,
        "no such program",
        "user",
        "permanent",
        "It cannot run there.",
        source=("start",),
        cause=("wrongArchitecture", "notFound"),
    ),
    _row(
        3024,
        "limit of one process",
        "user",
        "permanent",
        "It met a limit of one process.",
        cause=("cpuLimit", "fileSizeLimit"),
    ),
    _row(
        2010,
        "port taken",
        "platform",
        "transient",
        "One of its ports was taken.",
        source=("start",),
        fault=("portTaken",),
    ),
    _row(
        2011,
        "machine short",
        "platform",
        "conflict",
        "Its machine had not enough to start it.",
        source=("start",),
        fault=_SHORT,
    ),
    _row(
        2023,
        "refused there",
        "platform",
        "transient",
        "Its container could not be had there.",
        source=("start",),
        fault=_ELSEWHERE,
    ),
    _row(
        2017,
        "not to be had",
        "user",
        "permanent",
        "Its image or volumes cannot be had.",
        source=("start",),
        fault=_NOT_TO_BE_HAD,
    ),
    _row(
        2021,
        "image not here yet",
        "platform",
        "conflict",
        "Its image could not be had in time.",
        source=("start",),
        fault=_LATER,
    ),
    _row(
        2025,
        "refused by the cluster",
        "user",
        "permanent",
        "Its cluster cannot give it.",
        source=("start",),
        fault=_NOT_THERE,
    ),
    _row(
        2027,
        "cluster not to be asked",
        "platform",
        "conflict",
        "Slurm was away.",
        source=("start",),
        fault=("schedulerUnreachable",),
    ),
    _row(
        2045,
        "canceled there by its user",
        "user",
        "permanent",
        "Its user did.",
        slurm=("CANCELLED",),
        cause=("slurmCanceledByUser",),
    ),
    _row(
        2044,
        "canceled by others",
        "platform",
        "permanent",
        "Not its user.",
        slurm=("CANCELLED",),
        cause=("slurmCanceledByOther",),
    ),
    _row(
        2040,
        "canceled in Slurm",
        "unknown",
        "permanent",
        "Somebody canceled it there.",
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
        "Its nodes were taken away for another job.",
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
    # every other fault: what a person has to mend
    _row(
        2015,
        "machine not fit",
        "platform",
        "permanent",
        "Its machine cannot start it as it is.",
        source=("start",),
        fault=tuple(FAULTS),
    ),
    _row(2020, "not started", "platform", "unknown", "It could not be started.", source=("start",)),
    _row(2030, "lost", "platform", "transient", "Its end is not known.", source=("lost",)),
    _row(
        3000,
        "killed from outside",
        "platform",
        "transient",
        "A signal that this system did not send ended it.",
        signals=_OUTSIDE,
    ),
    _row(
        3001,
        "program error",
        "user",
        "permanent",
        "The kernel ended it for what its program did.",
        signals=_PROGRAM,
    ),
    _row(3002, "crashed", "user", "unknown", "Its program crashed.", signals=_OWN),
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
    _row(4200, "try again", "user", "transient", "It asked to be tried again.", codes=(200,)),
    _row(
        4201,
        "try again later",
        "user",
        "conflict",
        "It asked to be tried again later.",
        codes=(201,),
    ),
    _row(
        4210,
        "do not try again",
        "user",
        "permanent",
        "It asked not to be tried again.",
        codes=(210,),
    ),
    _row(
        4124,
        "stopped by timeout",
        "user",
        "unknown",
        "It said 124, as timeout does.",
        codes=(124,),
        cause=("commandTimeout",),
    ),
    _row(
        4300,
        "child killed from outside",
        "platform",
        "transient",
        "A child was ended.",
        codes=_codes(_OUTSIDE),
        cause=_SENT,
    ),
    _row(
        4301,
        "error in a child's program",
        "user",
        "permanent",
        "The kernel ended a child.",
        codes=_codes(_PROGRAM),
        cause=_OF_CHILD,
    ),
    _row(
        4302,
        "child crashed",
        "user",
        "unknown",
        "A child of it crashed.",
        codes=_codes(_OWN),
        cause=("crash",),
    ),
    _row(9000, "failed", "unknown", "unknown", "It ended by itself and said so by its exit code."),
)
