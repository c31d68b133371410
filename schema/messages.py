"""Refusals of JSON messages that do not have the type of the request: msgspec's first error as a
sentence, and all errors with their paths in the details. Pure.
"""

from typing import Any

import msgspec

from ..protocol.errors import Refusal
from .fields import Findings, Problem
from .structs import convert

#: Maximum number of problems in a refusal, and maximum bytes of a body that is searched for them.
MAX_PROBLEMS, MAX_BYTES = 100, 256 * 1024


def refusal(
    error: msgspec.ValidationError, body: bytes, type_: Any, start: str, path: str = ""
) -> Refusal:
    """Return the refusal of a body that msgspec could not decode as this type.

    start: beginning of the sentence. path: place of the body in the request. The problems contain
    values of the request: drop them (`more`) if it has secrets.
    """
    message = str(error).replace("\\\\Z'", "$'")
    for theirs, ours in (
        ("Object contains", "it has an"),
        ("Object missing", "it lacks the"),
        ("`null`", "nothing"),
    ):
        message = message.replace(theirs, ours)
    sentence = f"{start}: {message[0].lower()}{message[1:]}"[:400]
    problems = _problems(body, type_, path)
    return Refusal("badRequest", sentence, {"problems": problems} if problems else {})


def _problems(body: bytes, type_: Any, path: str) -> list[Problem]:
    """Return the problems; none if the body is large, or if it is not JSON after its first error."""
    findings = Findings()
    if len(body) > MAX_BYTES:
        return []
    try:
        convert(type_, msgspec.json.decode(body), findings, path, wire=True)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    if len(findings.problems) <= MAX_PROBLEMS:
        return findings.problems
    more = f"{findings.count - MAX_PROBLEMS} more problems are not shown"
    end = Problem(path=path, problem=more, right="fix these first")
    return [*findings.problems[:MAX_PROBLEMS], end]
