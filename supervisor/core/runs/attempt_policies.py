"""Completion policy and retry policy of attempts: when an attempt is decided, and whether another
one follows.

Pure: the input is the ended tasks, the result is a `Verdict`. An attempt is evaluated whenever one
of its tasks has ended by itself. Failure comes first: if both a failure and a success could decide,
the attempt failed. Attempts are retried as a whole. Failures of the platform and failures of
unknown cause have separate limits; permanent failures are never retried.
"""

from collections.abc import Sequence
from typing import assert_never

import msgspec

from ....diagnosis.exit_table import Behavior
from ....protocol.jobs.roles import Retry, TaskRole

#: Number of conflict retries after which the wait stops growing, and the longest wait as a multiple
#: of the shortest.
CONFLICTS, CONFLICT_TIMES = 6, 6
#: Longest pause before other retries, in seconds.
MAX_PAUSE_SECS = 60.0
#: Maximum exponent of the backoff: 2 to this power exceeds MAX_PAUSE_SECS.
_DOUBLINGS = 6


class TaskOutcome(msgspec.Struct, frozen=True):
    """An ended task. ok: it ended by itself with exit code 0."""

    role: str
    index: int
    ok: bool


class Verdict(msgspec.Struct, frozen=True):
    """Result of an attempt, and the task that decided it (None: all tasks ended without fulfilling
    a condition).
    """

    succeeded: bool
    reason: str
    role: str | None
    index: int | None


class RetryDecision(msgspec.Struct, frozen=True):
    """Another attempt follows after this delay."""

    behavior: Behavior
    delay_secs: float
    reason: str


def decided(roles: Sequence[TaskRole], finals: Sequence[TaskOutcome]) -> Verdict | None:
    """Return the verdict, or None if the attempt continues. finals: each task at most once, in the
    order of their ends, without stopped tasks.
    """
    return (
        _deciding(roles, finals, ok=False)
        or _deciding(roles, finals, ok=True)
        or _all_over(roles, finals)
    )


def _deciding(
    roles: Sequence[TaskRole], finals: Sequence[TaskOutcome], *, ok: bool
) -> Verdict | None:
    """Return the verdict of the condition that was fulfilled first, with the newest task that
    counts towards it.
    """
    thresholds = {r.name: r.min_succeeded if ok else r.min_failed for r in roles}
    counts = dict.fromkeys(thresholds, 0)
    fulfilled: str | None = None
    for f in finals:
        if f.ok is ok:
            counts[f.role] += 1
            if fulfilled is None and counts[f.role] == thresholds[f.role]:
                fulfilled = f.role
    if fulfilled is None:
        return None
    newest = next(f for f in reversed(finals) if f.ok is ok and f.role == fulfilled)
    word = "Succeeded" if ok else "Failed"
    reason = f"[{fulfilled}]: {word}TaskCount {counts[fulfilled]} has reached Min{word}TaskCount {thresholds[fulfilled]}."
    return Verdict(succeeded=ok, reason=reason, role=fulfilled, index=newest.index)


def _all_over(roles: Sequence[TaskRole], finals: Sequence[TaskOutcome]) -> Verdict | None:
    total = sum(r.tasks for r in roles)
    if len(finals) < total:
        return None
    failed = sum(not f.ok for f in finals)
    reason = f"All tasks have ended, and no condition was fulfilled before: TotalTaskCount: {total}, FailedTaskCount: {failed}."
    return Verdict(succeeded=True, reason=reason, role=None, index=None)


def again(
    policy: Retry | None, behavior: Behavior, before: Sequence[Behavior], chance: float
) -> RetryDecision | str:
    """Return the retry that follows a failed attempt, or a sentence that says why no retry follows.

    before: behaviors of earlier retries. chance: in [0, 1), spreads the retries of runs that wait
    for the same resource.
    """
    if policy is None:
        return "the run requested no retries"
    match behavior:
        case "permanent":
            return "the failure is permanent"
        case "unknown":
            used, allowed, kind = before.count("unknown"), policy.count, "retry"
        case "transient" | "conflict":
            used, allowed, kind = (
                before.count("transient") + before.count("conflict"),
                policy.platform,
                "platform retry",
            )
        case _:
            assert_never(behavior)
    if allowed == 0:
        return f"the run allows no {kind}"
    if 0 <= allowed <= used:
        return f"no {kind} is left: {used} of {allowed} used"
    delay = _delay(policy, behavior, before, chance)
    number = f"{kind} {used + 1} of {allowed}" if allowed > 0 else f"{kind} {used + 1}, no limit"
    when = f"in {delay:.0f} s" if delay else "at once"
    return RetryDecision(behavior, delay, f"{_WHY[behavior]}: {number}, {when}")


_WHY: dict[Behavior, str] = {
    "transient": "the platform caused this failure",
    "conflict": "resources were not available in time",
    "unknown": "the cause may be temporary",
}


def _delay(policy: Retry, behavior: Behavior, before: Sequence[Behavior], chance: float) -> float:
    if behavior == "conflict":
        grown = (
            min(1.0, before.count("conflict") / CONFLICTS)
            * (CONFLICT_TIMES - 1)
            * policy.conflict_secs
        )
        return policy.conflict_secs + chance * grown
    quick = len(before) - before.count("conflict")
    return min(MAX_PAUSE_SECS, 2.0 ** min(quick - 1, _DOUBLINGS)) if quick else 0.0
