"""Who killed it? Of what SIGKILL or SIGTERM ended: what is known of the sender, the surest first,
and the first that there is decides.

Killed by want of memory, by `kill -9`, by us, and a program that exits with 137 look alike from
outside and need different remedies.
"""

import re
import signal
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from ..protocol.jobs.exit_info import OUT_OF_MEMORY, ExitFacts, ExitInfo, signal_name
from .causes import BY_SLURM, BY_STOP, Confidence

#: From this share of its limit on, a peak may mean that memory ran out: what is counted is not all
#: that the kernel counts.
NEAR = 0.95
#: The same of a limit of CPU time, and seconds less: for the limit the kernel counts ticks, which
#: are more than was measured on a machine whose processors are shared.
NEAR_CPU, NEAR_CPU_SECS = 0.85, 0.3
#: Of the kernel's lines, these say that it killed for want of memory; others tell of crashes.
_OOM_LINE = re.compile(r"(?i)\bout of memory\b|\boom[-_ ]kill|\bkilled process \d")
_SENDERS = {
    signal.SIGKILL: "who can send SIGKILL: its own user, root, its batch system, or a guard of the machine",
    signal.SIGTERM: "who can send SIGTERM: the job or a script around it, its user, root, its batch system, or a machine that goes down",
}


class Classification(NamedTuple):
    """A word of the table of causes, how sure it is, and what shows it. excluded: what it is not,
    beyond what the table says.
    """

    cause: str
    confidence: Confidence
    evidence: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


def facts_of(exit_: ExitInfo) -> ExitFacts:
    """What was measured; nothing, for ends that an older version wrote down."""
    return exit_.facts if isinstance(exit_.facts, ExitFacts) else ExitFacts()


def killed_by(exit_: ExitInfo) -> int | None:
    """SIGKILL or SIGTERM, where one of them ended it or, as far as its code tells, the command of
    its shell.
    """
    for number in (signal.SIGKILL, signal.SIGTERM):
        if exit_.signal == number or (
            exit_.code == 128 + number and facts_of(exit_).via_shell is not False
        ):
            return int(number)
    return None


def intent(exit_: ExitInfo) -> Classification | None:
    """We did: our own record was written before the first signal was sent."""
    if exit_.stop_reason is None:
        return None
    told = (
        f"before the first signal it was noted there that this system ends it ({exit_.stop_reason})"
    )
    return Classification(BY_STOP.get(exit_.stop_reason, "canceled"), "certain", (told,))


def slurm(exit_: ExitInfo) -> Classification | None:
    """Slurm did, by its own account."""
    said = exit_.ended_by_scheduler
    if said is None:
        return None
    mine = facts_of(exit_).canceled_by_user if said == "CANCELLED" else msgspec.UNSET
    word = (
        BY_SLURM[said]
        if mine is msgspec.UNSET
        else "slurmCanceledByUser"
        if mine
        else "slurmCanceledByOther"
    )
    return Classification(word, "certain", (f"Slurm calls its end {said}",))


def kernel_count(exit_: ExitInfo) -> Classification | None:
    """The kernel counted a kill for want of memory while it ran.

    A count says that a process of it was killed, and not which. So it is certain only where three
    agree: the count is of its own cgroup, SIGKILL is what ended it (the kernel uses no other signal
    for that), and the kernel's log names it. Without that line a child may have been killed, and
    somebody's `kill -9` have followed; and a peak at the limit proves nothing more, for there is no
    such kill without one, and what the peak counts has files in it that could have been given up.
    With another end than SIGKILL it was a child, and what the main process made of that only it
    knows. Without a count of its own somebody among all that ran here was killed, and this one died
    as if it had been it.
    """
    own = facts_of(exit_).memory_kills
    if not (own or (exit_.out_of_memory is True and exit_.source not in ("engine", "script"))):
        return None
    told = f"{OUT_OF_MEMORY} (the kernel's own count" + (
        f" in its cgroup rose by {own} while it ran)" if own else ")"
    )
    sure = bool(own) and killed_by(exit_) == signal.SIGKILL and _named(exit_) is not None
    return Classification("outOfMemory", "certain" if sure else "likely", (told, *_also(exit_)))


def engine_flag(exit_: ExitInfo) -> Classification | None:
    """The container engine says that memory ran out in it. Its flag is set for any process in
    there: alone it says little of the end.
    """
    if exit_.out_of_memory is not True:
        return None
    told = f"{OUT_OF_MEMORY} (the kernel's own count, as the container engine or its script tells)"
    if killed_by(exit_) == signal.SIGKILL:
        return Classification("outOfMemory", "likely", (told, *_also(exit_)))
    return Classification(
        "outOfMemory",
        "possible",
        (told, "SIGKILL did not end the command itself: a child of it was hit"),
    )


def kernel_line(exit_: ExitInfo) -> Classification | None:
    """The kernel's log names it."""
    line = _named(exit_) if killed_by(exit_) == signal.SIGKILL else None
    return None if line is None else Classification("outOfMemory", "likely", (line,))


def cpu_limit(exit_: ExitInfo) -> Classification | None:
    """A hard limit of CPU time holds in it, and it had used that up: then the kernel sends SIGKILL.

    Where nobody measured its CPU time, it ran at least that long.
    """
    if killed_by(exit_) != signal.SIGKILL:
        return None
    limits = ulimits(exit_, "-t")
    secs = min((int(text.rpartition(" ")[2]) for text in limits if "-S" not in text), default=None)
    used, measured = _cpu_secs(exit_)
    if secs is None or used is None or used < NEAR_CPU * secs - NEAR_CPU_SECS:
        return None
    told = f"it had used {used:.1f} s of CPU time" if measured else f"it ran for {used:.1f} s"
    return Classification(
        "cpuLimit",
        "likely" if measured else "possible",
        (f"{told}, and its limit is {secs} s (ulimit -t)",),
    )


def _cpu_secs(exit_: ExitInfo) -> tuple[float | None, bool]:
    """Seconds of CPU time, and whether they were measured; else how long it ran."""
    if exit_.user_secs is not None and exit_.system_secs is not None:
        return exit_.user_secs + exit_.system_secs, True
    if exit_.started_at is None or exit_.ended_at is None:
        return None, False
    return max(0.0, exit_.ended_at - exit_.started_at), False


def ulimits(exit_: ExitInfo, option: str) -> tuple[str, ...]:
    """Limits of one process of this kind that hold in it, as its command sets them: "ulimit -t 1"."""
    known = facts_of(exit_).ulimits
    return tuple(
        text for text in (() if known is msgspec.UNSET else known) if option in text.split()
    )


def near_limit(exit_: ExitInfo) -> Classification | None:
    """It had nearly all that it may have. Where the kernel counts and has counted nothing, it was
    not the kernel that killed it; a guard of the machine, which sends SIGTERM as well, may have
    been it.
    """
    number, line = killed_by(exit_), _near(exit_)
    counted = exit_.out_of_memory is False or facts_of(exit_).memory_kills == 0
    if line is None or number is None or (number == signal.SIGKILL and counted):
        return None
    return Classification(
        "outOfMemory",
        "possible",
        (line, f"{signal_name(number)} ended it, and nobody is known to have sent it"),
    )


def nobody_known(exit_: ExitInfo) -> Classification | None:
    """Somebody else did."""
    number = killed_by(exit_)
    if number is None:
        return None
    by_shell = exit_.signal is None
    if by_shell and facts_of(exit_).via_shell is None:
        told = f"{128 + number} is what a shell says whose command {signal_name(number)} ended, and what a program may say by itself"
        return Classification("exit", "possible", (told,))
    word = "killed" if number == signal.SIGKILL else "terminated"
    shell = (
        (f"its shell says {128 + number}: {signal_name(number)} ended the command, not the shell",)
        if by_shell
        else ()
    )
    return Classification(word, "unknown", (*shell, _SENDERS[signal.Signals(number)]))


#: In this order.
RUNGS = (intent, slurm, kernel_count, engine_flag, kernel_line, cpu_limit, near_limit, nobody_known)


def climb(exit_: ExitInfo) -> Classification | None:
    """The first rung that holds; None for what neither signal ended, and in which memory did not
    run out.
    """
    return next(_held(exit_), None)


def _held(exit_: ExitInfo) -> Iterator[Classification]:
    for rung in RUNGS:
        found = rung(exit_)
        if found is not None:
            yield found


def _near(exit_: ExitInfo) -> str | None:
    facts = facts_of(exit_)
    peak, limit = facts.memory_peak_bytes, facts.memory_limit_bytes
    if peak is None or not limit or peak < NEAR * limit:
        return None
    return f"its memory peaked at {mib(peak)} of the {mib(limit)} that it may have"


def _also(exit_: ExitInfo) -> tuple[str, ...]:
    """What speaks for it as well."""
    return tuple(line for line in (_near(exit_), _named(exit_)) if line is not None)


def _named(exit_: ExitInfo) -> str | None:
    line = next((line for line in facts_of(exit_).kernel if _OOM_LINE.search(line)), None)
    return None if line is None else f"the kernel's log names it: {line}"


def mib(size: int) -> str:
    """Bytes as people compare them."""
    if size < 2**20:
        return f"{size / 2**10:.0f} KiB"
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
