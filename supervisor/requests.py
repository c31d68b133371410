"""The edge: an HTTP body becomes a typed request, or a refusal with a code and a sentence. Nothing behind it sees raw data."""

import json
from typing import Any, TypeVar

import msgspec

from ..protocol.errors import Refusal
from ..protocol.redaction import is_secret
from ..protocol.requests import RunSpec

MAX_BODY = 16 * 1024 * 1024
MAX_DEPTH = 32

T = TypeVar("T")


def parse_body(body: bytes, type_: type[T]) -> T:
    """The request in this body. Raises Refusal (badRequest, tooLarge, tooDeep)."""
    if len(body) > MAX_BODY:
        raise Refusal("tooLarge", f"a request of {len(body)} bytes is over the limit of {MAX_BODY}")
    if _depth(body) > MAX_DEPTH:
        raise Refusal("tooDeep", f"the request is nested deeper than {MAX_DEPTH}")
    try:
        raw = json.loads(body, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise Refusal("badRequest", f"the body is not JSON: {str(e)[:200]}") from None
    if not isinstance(raw, dict):
        raise Refusal("badRequest", "the body must be a JSON object")
    try:
        return msgspec.convert(raw, type_)
    except (msgspec.ValidationError, ValueError) as e:
        raise Refusal("badRequest", _sentence(str(e))) from None


def check_spec(spec: RunSpec, apps: tuple[str, ...]) -> None:
    """What the shape of a run cannot say. Raises Refusal."""
    if spec.simulation_type not in apps:
        raise Refusal("unknownApp", f"there is no app {spec.simulation_type!r}; there are: {', '.join(apps)}")
    for name in spec.env:
        if name.startswith("JOBSCRIBE_"):
            raise Refusal("badRequest", f"the environment variable {name} is set by the system, not by a request")
        if is_secret(name, ""):
            raise Refusal("badRequest", f"the environment variable {name} looks like a secret; what is submitted is kept in the log, "
                                        "so put the secret into a file that only the job's user can read and pass its path")
    size = sum(len(a) for a in spec.command) + sum(len(k) + len(v) for k, v in spec.env.items())
    if size > 512 * 1024:
        raise Refusal("tooLarge", f"command and environment take {size} characters; the limit is {512 * 1024}")


def _depth(body: bytes) -> int:
    """Greatest nesting, without building anything. Brackets inside strings do not count."""
    depth = deepest = 0
    in_string = escaped = False
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return 0
    for c in body:
        if in_string:
            if escaped:
                escaped = False
            elif c == 0x5C:
                escaped = True
            elif c == 0x22:
                in_string = False
        elif c == 0x22:
            in_string = True
        elif c in (0x5B, 0x7B):
            depth += 1
            deepest = max(deepest, depth)
            if deepest > MAX_DEPTH:
                return deepest
        elif c in (0x5D, 0x7D):
            depth -= 1
    return deepest


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key occurs twice")
    return out


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _sentence(text: str) -> str:
    """msgspec's message, without Python's words."""
    return text.replace("Object ", "the request ").replace("`null`", "nothing")[:400]
