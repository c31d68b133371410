"""The expected outcome of exits, attempts and policies, written independently of the product's
code.

The rules are those of the reference on completion and retries. The checks of `sim_reference_model`
compare the log with them.
"""

from collections.abc import Sequence

from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.jobs.roles import Retry, TaskRole

#: Stop reasons of the system's own stops, which nobody requested for the run.
NOT_WANTED = ("shutdown", "lost")
#: Typical sender of a signal: somebody outside, or the kernel because of the program.
OUTSIDE, KERNEL = {1, 2, 3, 9, 15}, {4, 5, 7, 8, 13, 24, 25, 31}
#: Signals for which an exit code of 128+n does not count as a signal.
SAID = {13}
SHORT = {"noProcesses", "noDescriptors", "noMemory", "diskFull"}
LONGEST_PAUSE = 60.0


def good(exit_: ExitInfo) -> bool:
    return exit_.code == 0 and exit_.signal is None and exit_.stop_reason is None


def kind(exit_: ExitInfo) -> str:
    """Return the retry class of this failure."""
    word = slurms_doing(exit_)
    if word is not None:
        return "permanent" if word == "CANCELLED" else "transient"
    if exit_.source == "lost" or exit_.stop_reason in NOT_WANTED:
        return "transient"
    if exit_.source == "start":
        if exit_.fault in SHORT:
            return "conflict"
        return (
            "unknown"
            if exit_.fault is None
            else "transient"
            if exit_.fault == "portTaken"
            else "permanent"
        )
    number = exit_.signal
    if number is None and exit_.code is not None and exit_.code - 128 in KERNEL - SAID:
        number = exit_.code - 128
    if number is not None:
        return "transient" if number in OUTSIDE else "permanent" if number in KERNEL else "unknown"
    match exit_.code:
        case 200:
            return "transient"
        case 201:
            return "conflict"
        case 126 | 127 | 210:
            return "permanent"
        case _:
            return "unknown"


def slurms_doing(exit_: ExitInfo) -> str | None:
    """Return the cluster's state if the cluster or one of its users ended the execution, else None."""
    word = exit_.batch.state if isinstance(exit_.batch, BatchState) else None
    ours = exit_.stop_reason is not None or exit_.code == 0 or exit_.source in ("start", "lost")
    return word if word in ("CANCELLED", "NODE_FAIL") and not ours else None


def by_itself(exit_: ExitInfo) -> bool:
    """Return whether it failed by its own fault. Only then it is held for debugging."""
    if (
        good(exit_)
        or exit_.stop_reason is not None
        or exit_.source not in ("keeper", "script", "scheduler")
    ):
        return False
    if slurms_doing(exit_) is not None:
        return False
    return exit_.signal not in OUTSIDE


def status_of(exit_: ExitInfo) -> str:
    """Return the status of a run that nobody stopped and whose deciding exit is this one."""
    if exit_.stop_reason is not None:
        return "error" if exit_.stop_reason in NOT_WANTED else "canceled"
    return "completed" if good(exit_) else "error"


def comes_to(
    roles: Sequence[TaskRole], ends: Sequence[tuple[Token, ExitInfo]]
) -> tuple[bool, Token | None] | None:
    """Return the effect of the newest end on the attempt: (succeeded, deciding task), or None if it
    continues.

    Each end was evaluated when it came, and none before the newest decided the attempt.
    """
    newest, exit_ = ends[-1]
    role = next(r for r in roles if r.name == newest.role)
    if exit_.stop_reason == "timeLimit":
        return False, newest
    alike = sum(token.role == newest.role and good(e) == good(exit_) for token, e in ends)
    if alike == (role.min_succeeded if good(exit_) else role.min_failed):
        return good(exit_), newest
    return (True, None) if len(ends) == sum(r.tasks for r in roles) else None


def follows(
    policy: Retry | None, failed_by: str, before: Sequence[str]
) -> tuple[float, float] | None:
    """Return the shortest and longest pause before the next attempt, or None if there is none.
    before: kinds of the earlier retries.
    """
    if policy is None or failed_by == "permanent":
        return None
    conflicts = before.count("conflict")
    quick = len(before) - conflicts
    allowed = policy.count if failed_by == "unknown" else policy.platform
    used = (
        before.count("unknown") if failed_by == "unknown" else before.count("transient") + conflicts
    )
    if allowed != -1 and used >= allowed:
        return None
    if failed_by == "conflict":
        return policy.conflict_secs, policy.conflict_secs * (1 + 5 * min(1.0, conflicts / 6))
    pause = 0.0 if not quick else min(LONGEST_PAUSE, 2.0 ** (quick - 1))
    return pause, pause
