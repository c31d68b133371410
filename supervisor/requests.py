"""The edge: an HTTP body becomes a typed request, or a refusal with a code and a sentence. Nothing behind it sees raw data."""

import json
from typing import Any, TypeVar

import msgspec

from ..protocol.errors import Refusal
from ..protocol.redaction import is_secret
from ..protocol.requests import RunSpec

MAX_BODY = 8 * 1024 * 1024
#: What an app is given with a run or a call: bytes of JSON, levels, keys, list elements. It travels in one message to the agent,
#: and what `protocol.codec` there would refuse has to be refused here.
MAX_DATA, MAX_DATA_DEPTH, MAX_DATA_KEYS, MAX_DATA_ITEMS = 256 * 1024, 10, 8_000, 90_000
#: The app that runs what the request says; all others run what they make of its data.
COMMAND = "command"

T = TypeVar("T")


def parse_body(body: bytes, type_: type[T]) -> T:
    """The request in this body. Raises Refusal (badRequest, tooLarge, tooDeep)."""
    if len(body) > MAX_BODY:
        raise Refusal("tooLarge", f"a request of {len(body)} bytes is over the limit of {MAX_BODY}")
    try:
        request = msgspec.json.decode(body, type=type_)
        json.loads(body, object_pairs_hook=_once)
        return request
    except msgspec.ValidationError as e:
        raise Refusal("badRequest", _sentence(str(e))) from None
    except RecursionError:
        raise Refusal("tooDeep", "the request is nested too deep") from None
    except (msgspec.DecodeError, ValueError) as e:
        raise Refusal("badRequest", f"the body is not JSON: {str(e)[:200]}") from None


def _once(pairs: list[tuple[str, Any]]) -> None:
    """Two readers of an object with a key that is there twice may see two requests. Raises Refusal."""
    if len(dict.fromkeys(key for key, _ in pairs)) != len(pairs):
        raise Refusal("badRequest", "the request does not fit: an object in it has a field twice")


def check_spec(spec: RunSpec, apps: tuple[str, ...]) -> None:
    """What the shape of a run cannot say. Raises Refusal."""
    if spec.simulation_type not in apps:
        raise Refusal("unknownApp", f"there is no app {spec.simulation_type!r}; there are: {', '.join(apps)}")
    if spec.simulation_type == COMMAND and (not spec.command or spec.data is not None):
        raise Refusal("badRequest", "the app 'command' takes a `command` of at least one word, and no `data`")
    if spec.simulation_type != COMMAND and (spec.command or spec.data is None):
        raise Refusal("badRequest", f"the app {spec.simulation_type!r} takes `data`, and no `command`: it makes that itself")
    if spec.data is not None:
        check_data("data", spec.data)
    for name in spec.env:
        if name.startswith("JOBSCRIBE_"):
            raise Refusal("badRequest", f"the environment variable {name} is set by the system, not by a request")
        if is_secret(name, ""):
            raise Refusal("badRequest", f"the environment variable {name} looks like a secret; what is submitted is kept in the log, "
                                        "so put the secret into a file that only the job's user can read and pass its path")
    size = sum(len(a) for a in (*spec.wrap, *spec.command)) + sum(len(k) + len(v) for k, v in spec.env.items())
    if size > 512 * 1024:
        raise Refusal("tooLarge", f"command and environment take {size} characters; the limit is {512 * 1024}")


def check_data(name: str, data: dict[str, Any]) -> None:
    """Can an agent be told this? Raises Refusal (tooLarge, tooDeep, badRequest)."""
    _check_members(name, data, MAX_DATA_DEPTH, {dict: MAX_DATA_KEYS, list: MAX_DATA_ITEMS})
    size = len(msgspec.json.encode(data))
    if size > MAX_DATA:
        raise Refusal("tooLarge", f"`{name}` takes {size} bytes; the limit is {MAX_DATA}")


def _check_members(name: str, value: Any, room: int, left: dict[type[Any], int]) -> None:
    if isinstance(value, dict | list):
        if room == 0:
            raise Refusal("tooDeep", f"`{name}` is nested deeper than {MAX_DATA_DEPTH} levels")
        left[type(value)] -= len(value)
        if left[type(value)] < 0:
            raise Refusal("tooLarge", f"`{name}` has more than {MAX_DATA_KEYS} keys or {MAX_DATA_ITEMS} elements; give it as a file")
        for member in value.values() if isinstance(value, dict) else value:
            _check_members(name, member, room - 1, left)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise Refusal("badRequest", f"`{name}` has a whole number of more than 64 bits")


def _sentence(text: str) -> str:
    """msgspec's message, without Python's words."""
    said = text.replace("Object contains", "it has an").replace("Object missing", "it lacks the").replace("`null`", "nothing")
    return ("the request does not fit: " + said[0].lower() + said[1:])[:400]
