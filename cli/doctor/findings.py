"""A finding of the doctor, with its constructors."""

import enum
from typing import Any

import msgspec


class FindingState(enum.StrEnum):
    """Result of a check. skip: it does not apply here."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


Facts = dict[str, Any]


class Finding(msgspec.Struct, frozen=True):
    """Result of a check. check: its name. sentence: the fact. means: the effect on jobs. advice:
    the action. The last two may be empty for `ok` and `skip`.
    """

    check: str
    state: FindingState
    sentence: str
    means: str = ""
    advice: str = ""


def ok(sentence: str, means: str = "") -> Finding:
    return Finding("", FindingState.OK, sentence, means)


def warn(sentence: str, means: str, advice: str) -> Finding:
    return Finding("", FindingState.WARN, sentence, means, advice)


def fail(sentence: str, means: str, advice: str) -> Finding:
    return Finding("", FindingState.FAIL, sentence, means, advice)


def skip(sentence: str, means: str = "", advice: str = "") -> Finding:
    return Finding("", FindingState.SKIP, sentence, means, advice)


def unreadable(check: str, reason: str) -> Finding:
    """Return the finding for a check whose facts could not be read."""
    return Finding(
        check,
        FindingState.FAIL,
        reason,
        "the same part of the machine may block supervisor and jobs",
        "examine this part of the machine first",
    )


def mb(size: float) -> str:
    """Format a size in bytes."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
