"""Kill attribution: finds the sender of a SIGKILL or SIGTERM. The rules are ordered by certainty,
and the first that applies decides.

A memory kill, `kill -9`, a stop by jobscribe, and a program that exits with 137 look alike from
outside, but need different remedies.
"""

import re
import signal
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from ..protocol.clusters.batch import SlurmState
from ..protocol.jobs.exit_info import OUT_OF_MEMORY, ExitFacts, ExitInfo, signal_name
from .causes import BY_SLURM, BY_STOP, Confidence

#: Share of the memory limit from which a peak may mean that memory ran out. The measured peak omits
#: part of the kernel's count.
NEAR = 0.95
#: The same for a limit of CPU time, minus some seconds. The kernel counts ticks for the limit,
#: which exceed the measured time on machines with shared processors.
NEAR_CPU, NEAR_CPU_SECS = 0.85, 0.3
#: Lines of the kernel's log about memory kills; other lines report crashes.
_OOM_LINE = re.compile(r"(?i)\bout of memory\b|\boom[-_ ]kill|\bkilled process \d")
_SENDERS = {
    signal.SIGKILL: "possible senders of SIGKILL: its own user, root, its batch system, or a guard of the machine",
    signal.SIGTERM: "possible senders of SIGTERM: the job or its script, its user, root, its batch system, or a shutdown of the machine",
}


class Classification(NamedTuple):
    """A cause from the table, its confidence and its evidence. excluded: causes that are ruled out,
    beyond those in the table.
    """

    cause: str
    confidence: Confidence
    evidence: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


def facts_of(exit_: ExitInfo) -> ExitFacts:
    """Return the measured facts; empty for ends recorded by older versions."""
    return exit_.facts if isinstance(exit_.facts, ExitFacts) else ExitFacts()


def killed_by(exit_: ExitInfo) -> int | None:
    """Return SIGKILL or SIGTERM if it ended the execution or, judging by its exit code, the command
    of its shell.
    """
    for number in (signal.SIGKILL, signal.SIGTERM):
        if exit_.signal == number or (
            exit_.code == 128 + number and facts_of(exit_).via_shell is not False
        ):
            return int(number)
    return None


def own_stop(exit_: ExitInfo) -> Classification | None:
    """Rule: jobscribe ended it. The stop was recorded before the first signal."""
    if exit_.stop_reason is None:
        return None
    evidence = (
        f"jobscribe recorded its decision to stop before the first signal ({exit_.stop_reason})"
    )
    return Classification(BY_STOP.get(exit_.stop_reason, "canceled"), "certain", (evidence,))


def slurm(exit_: ExitInfo) -> Classification | None:
    """Rule: Slurm ended it, according to Slurm's report."""
    state = exit_.ended_by_scheduler
    if state is None:
        return None
    mine = facts_of(exit_).canceled_by_user if state == SlurmState.CANCELLED else msgspec.UNSET
    word = (
        BY_SLURM[state]
        if mine is msgspec.UNSET
        else "slurmCanceledByUser"
        if mine
        else "slurmCanceledByOther"
    )
    return Classification(word, "certain", (f"Slurm's state is {state}",))


def kernel_count(exit_: ExitInfo) -> Classification | None:
    """Rule: the kernel counted a memory kill during the execution.

    The count shows that one of its processes was killed, but not which. So it is certain only if
    three facts agree: the count is of its own cgroup, SIGKILL ended it (the only signal that the
    kernel uses for this), and the kernel's log names it. Without that line, a child may have been
    killed, and a person's `kill -9` may have followed. A peak at the limit proves nothing more:
    every memory kill has one, and the peak includes file pages that could have been dropped. If the
    execution did not end by SIGKILL, a child was killed, with unknown effect. Without its own
    count, some process on this machine was killed, and this execution ended as if it were that
    process.
    """
    own = facts_of(exit_).memory_kills
    if not (own or (exit_.out_of_memory is True and exit_.source not in ("engine", "script"))):
        return None
    evidence = f"{OUT_OF_MEMORY} (the kernel's own count" + (
        f" in its cgroup rose by {own} while it ran)" if own else ")"
    )
    sure = bool(own) and killed_by(exit_) == signal.SIGKILL and _named(exit_) is not None
    return Classification("outOfMemory", "certain" if sure else "likely", (evidence, *_also(exit_)))


def engine_flag(exit_: ExitInfo) -> Classification | None:
    """Rule: the container engine reports that memory ran out. Its flag covers any process in the
    container, so alone it does not explain the end.
    """
    if exit_.out_of_memory is not True:
        return None
    evidence = (
        f"{OUT_OF_MEMORY} (the kernel's own count, reported by the container engine or its script)"
    )
    if killed_by(exit_) == signal.SIGKILL:
        return Classification("outOfMemory", "likely", (evidence, *_also(exit_)))
    return Classification(
        "outOfMemory",
        "possible",
        (evidence, "SIGKILL did not end the command itself: a child of it was killed"),
    )


def kernel_line(exit_: ExitInfo) -> Classification | None:
    """Rule: the kernel's log names it."""
    line = _named(exit_) if killed_by(exit_) == signal.SIGKILL else None
    return None if line is None else Classification("outOfMemory", "likely", (line,))


def cpu_limit(exit_: ExitInfo) -> Classification | None:
    """Rule: a hard limit of CPU time was used up, so the kernel sent SIGKILL. If the CPU time was
    not measured, the run time is used instead.
    """
    if killed_by(exit_) != signal.SIGKILL:
        return None
    limits = ulimits(exit_, "-t")
    secs = min((int(text.rpartition(" ")[2]) for text in limits if "-S" not in text), default=None)
    used, measured = _cpu_secs(exit_)
    if secs is None or used is None or used < NEAR_CPU * secs - NEAR_CPU_SECS:
        return None
    usage = f"it had used {used:.1f} s of CPU time" if measured else f"it ran for {used:.1f} s"
    return Classification(
        "cpuLimit",
        "likely" if measured else "possible",
        (f"{usage}, and its limit is {secs} s (ulimit -t)",),
    )


def _cpu_secs(exit_: ExitInfo) -> tuple[float | None, bool]:
    """Return (seconds of CPU time, True), or (run time, False) if CPU time was not measured."""
    if exit_.user_secs is not None and exit_.system_secs is not None:
        return exit_.user_secs + exit_.system_secs, True
    if exit_.started_at is None or exit_.ended_at is None:
        return None, False
    return max(0.0, exit_.ended_at - exit_.started_at), False


def ulimits(exit_: ExitInfo, option: str) -> tuple[str, ...]:
    """Return the execution's limits of this kind as text, such as "ulimit -t 1"."""
    known = facts_of(exit_).ulimits
    return tuple(
        text for text in (() if known is msgspec.UNSET else known) if option in text.split()
    )


def near_limit(exit_: ExitInfo) -> Classification | None:
    """Rule: its memory peak was near its limit. If the kernel's counter shows no kill, the kernel
    did not send SIGKILL. The sender may be a memory guard of the machine, which also sends SIGTERM.
    """
    number, line = killed_by(exit_), _near(exit_)
    counted = exit_.out_of_memory is False or facts_of(exit_).memory_kills == 0
    if line is None or number is None or (number == signal.SIGKILL and counted):
        return None
    return Classification(
        "outOfMemory",
        "possible",
        (line, f"{signal_name(number)} ended it, and its sender is unknown"),
    )


def unknown_sender(exit_: ExitInfo) -> Classification | None:
    """Rule: the sender is unknown."""
    number = killed_by(exit_)
    if number is None:
        return None
    by_shell = exit_.signal is None
    if by_shell and facts_of(exit_).via_shell is None:
        evidence = f"a shell returns {128 + number} if {signal_name(number)} ended its command; a program may also return it by itself"
        return Classification("exit", "possible", (evidence,))
    word = "killed" if number == signal.SIGKILL else "terminated"
    shell = (
        (
            f"its shell returned {128 + number}: {signal_name(number)} ended the command, not the shell",
        )
        if by_shell
        else ()
    )
    return Classification(word, "unknown", (*shell, _SENDERS[signal.Signals(number)]))


#: Ordered by certainty.
RULES = (
    own_stop,
    slurm,
    kernel_count,
    engine_flag,
    kernel_line,
    cpu_limit,
    near_limit,
    unknown_sender,
)


def attribute_kill(exit_: ExitInfo) -> Classification | None:
    """Return the result of the first rule that applies; None if neither signal ended the execution
    and memory did not run out.
    """
    return next(_results(exit_), None)


def _results(exit_: ExitInfo) -> Iterator[Classification]:
    for rule in RULES:
        found = rule(exit_)
        if found is not None:
            yield found


def _near(exit_: ExitInfo) -> str | None:
    facts = facts_of(exit_)
    peak, limit = facts.memory_peak_bytes, facts.memory_limit_bytes
    if peak is None or not limit or peak < NEAR * limit:
        return None
    return f"its memory peaked at {mib(peak)} of the {mib(limit)} that it may have"


def _also(exit_: ExitInfo) -> tuple[str, ...]:
    """Return further evidence for a memory kill."""
    return tuple(line for line in (_near(exit_), _named(exit_)) if line is not None)


def _named(exit_: ExitInfo) -> str | None:
    line = next((line for line in facts_of(exit_).kernel if _OOM_LINE.search(line)), None)
    return None if line is None else f"the kernel's log names it: {line}"


def mib(size: int) -> str:
    """Format a size for people."""
    if size < 2**20:
        return f"{size / 2**10:.0f} KiB"
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
