"""The one exception that leaves the client. What the supervisor said crosses unchanged; what only
this end knows has its own codes.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from ...protocol.errors import CODES

#: Codes of failures that no supervisor answered: it could not be reached; what answered was no
#: supervisor; no supervisor has written its address into the root, or it did so for somebody else.
#: Each with (may the same request succeed later?, what to do next).
OWN_CODES: dict[str, tuple[bool, str]] = {
    "unreachable": (
        True,
        "start the supervisor ('jobscribe up'), or check the address; 'jobscribe doctor' and 'jobscribe db story JOB' need none",
    ),
    "notASupervisor": (
        True,
        "check the address: what answers there does not speak the supervisor's interface",
    ),
    "noSupervisor": (
        True,
        "start one with 'jobscribe up --root DIR', or name the root of a running one",
    ),
    "foreignRoot": (False, CODES["foreignRoot"].advice),
}
_ENVELOPE = frozenset({"state", "code", "error", "advice", "retry"})


class ClientError(Exception):
    """A request that failed for good. code: of protocol.errors, or of OWN_CODES; sentence and
    advice are for a person.

    retry: the very same request may succeed later (the client has already tried for as long as it
    was told to). more: what else the supervisor said about it, such as the `problems` of a job
    description.
    """

    def __init__(
        self,
        code: str,
        sentence: str,
        advice: str = "",
        retry: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{code}: {sentence}")
        self.code = code
        self.sentence = sentence
        self.advice = advice
        self.retry = retry
        self.more = dict(more or {})

    def body(self) -> dict[str, Any]:
        """The form in which the supervisor itself says it."""
        return {
            "state": "error",
            "code": self.code,
            "error": self.sentence,
            "advice": self.advice,
            "retry": self.retry,
            **self.more,
        }


def own(code: str, sentence: str) -> ClientError:
    """A failure that this end found; `code` is a key of OWN_CODES."""
    retry, advice = OWN_CODES[code]
    return ClientError(code, sentence, advice, retry)


def is_error(body: Any) -> bool:
    """Is this an error body? A run whose status is `error` has no `code`, so the two are never
    mixed up.
    """
    return (
        isinstance(body, dict)
        and body.get("state") == "error"
        and isinstance(body.get("code"), str)
    )


def from_body(body: dict[str, Any]) -> ClientError:
    """The error that a body says."""
    more = {k: v for k, v in body.items() if k not in _ENVELOPE}
    return ClientError(
        body["code"],
        str(body.get("error", "")),
        str(body.get("advice", "")),
        bool(body.get("retry", False)),
        more,
    )


def from_reply(status: int, raw: bytes) -> ClientError:
    """The error of an HTTP reply that is not a success, whatever its body is."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = None
    if is_error(body):
        return from_body(body)
    return own("notASupervisor", f"HTTP {status} without an error body of the supervisor")
