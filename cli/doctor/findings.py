"""One finding of the doctor, and how it is made."""

from typing import Any, Literal

import msgspec

State = Literal["ok", "warn", "fail", "skip"]
Facts = dict[str, Any]


class Finding(msgspec.Struct, frozen=True):
    """check: which one found it. sentence: how it is. means: for jobs. advice: what to do; both
    empty where all is well.
    """

    check: str
    state: State
    sentence: str
    means: str = ""
    advice: str = ""


def ok(sentence: str, means: str = "") -> Finding:
    return Finding("", "ok", sentence, means)


def warn(sentence: str, means: str, advice: str) -> Finding:
    return Finding("", "warn", sentence, means, advice)


def fail(sentence: str, means: str, advice: str) -> Finding:
    return Finding("", "fail", sentence, means, advice)


def skip(sentence: str, means: str = "", advice: str = "") -> Finding:
    return Finding("", "skip", sentence, means, advice)


def unread(check: str, why: str) -> Finding:
    """For a check whose facts could not be had."""
    return Finding(
        check,
        "fail",
        why,
        "what it would have looked at may hang supervisor and jobs as well",
        "look at that part of the machine first",
    )


def mb(size: float) -> str:
    """Bytes for a person."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
