"""The exception of the client. Errors of the supervisor pass unchanged; the client adds its own codes."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ...protocol.errors import CODES

#: Codes of failures without an answer of a supervisor, with (retry may succeed, advice): it cannot
#: be reached, the answer is not a supervisor's, or the root has no address for this user.
OWN_CODES: dict[str, tuple[bool, str]] = {
    "unreachable": (
        True,
        "start the supervisor ('jobscribe up'), or check the address; 'jobscribe doctor' and 'jobscribe db story JOB' work without it",
    ),
    "notASupervisor": (
        True,
        "check the address: another program answers there",
    ),
    "noSupervisor": (
        True,
        "start one with 'jobscribe up --root DIR', name the root of a running one, or log in at a site with 'jobscribe auth login URL'",
    ),
    "notLoggedIn": (False, "run 'jobscribe auth login URL' with an API token"),
    "foreignRoot": (False, CODES["foreignRoot"].advice),
    # of functions (docs/functions.md)
    "notSerializable": (
        False,
        "change the named values; 'jobscribe debug serial FILE:NAME' inspects an object without sending it",
    ),
    "callRefused": (False, "follow the sentence, and submit the call again"),
    "callFailed": (False, "'jobscribe job why JOB' and 'jobscribe job logs JOB --stderr' say more"),
    "badResult": (False, "submit the call again; the output of the run may explain it"),
}
_ENVELOPE = frozenset({"state", "code", "error", "advice", "retry"})


class ClientError(Exception):
    """A request failed.

    code: of protocol.errors or OWN_CODES. sentence, advice: for a person. retry: the same request
    may succeed later (the client has already retried for its budget). more: other fields of the
    error, such as the `problems` of a job description.
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
        """Return the error in the form of the supervisor's API."""
        return {
            "state": "error",
            "code": self.code,
            "error": self.sentence,
            "advice": self.advice,
            "retry": self.retry,
            **self.more,
        }


def own(code: str, sentence: str) -> ClientError:
    """Return an error that the client found. code: a key of OWN_CODES."""
    retry, advice = OWN_CODES[code]
    return ClientError(code, sentence, advice, retry)


def refused(code: str, sentence: str) -> ClientError:
    """Return an error with a code of the supervisor that the client itself found."""
    known = CODES[code]
    return ClientError(code, sentence, known.advice, known.retry)


def is_error(body: Any) -> bool:
    """Return whether this is an error body. A run with status `error` has no `code`."""
    return (
        isinstance(body, dict)
        and body.get("state") == "error"
        and isinstance(body.get("code"), str)
    )


def from_body(body: dict[str, Any]) -> ClientError:
    """Return the error in an error body."""
    more = {k: v for k, v in body.items() if k not in _ENVELOPE}
    return ClientError(
        body["code"],
        str(body.get("error", "")),
        str(body.get("advice", "")),
        bool(body.get("retry", False)),
        more,
    )


def from_reply(status: int, raw: bytes) -> ClientError:
    """Return the error of an unsuccessful HTTP reply with any body."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = None
    if is_error(body):
        return from_body(body)
    return own("notASupervisor", f"HTTP {status} without an error body of the supervisor")
