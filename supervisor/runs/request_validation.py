"""The edge: an HTTP body becomes a typed request, or a refusal with a code and a sentence. Nothing
behind it sees raw data.
"""

import asyncio
from collections.abc import Collection
from operator import methodcaller
from typing import Annotated, Any, TypeVar

import msgspec

from ...protocol.api.requests import MAX_BULK, RunMany, RunSpec
from ...protocol.errors import Refusal
from ...protocol.launch.task_environment import APP_VERSION
from .role_validation import MAX_VARIABLES, check_env, check_roles

#: Bytes of a request for many runs, and of any other, which is taken apart in one go.
MAX_BODY, MAX_ONE = 8 * 1024 * 1024, 2 * 1024 * 1024
#: Fields of all objects of one request: before it is taken apart they are counted, which costs next
#: to nothing.
MAX_FIELDS = 16_000
#: Runs are taken apart so many bytes at a time; between these the loop serves others.
_GO = 32 * 1024
#: What a request for many runs may have besides them, bytes.
_AROUND = 4096
#: What an app is given with a run or a call: bytes of JSON, levels, keys, list elements. It travels
#: in one message to the agent, and what `protocol.codec` there would refuse has to be refused here.
MAX_DATA, MAX_DATA_DEPTH, MAX_DATA_KEYS, MAX_DATA_ITEMS = 256 * 1024, 10, 8_000, 90_000
#: All commands and environments of one run, characters.
MAX_WORDS = 512 * 1024
#: The app that runs what the request says; all others run what they make of its data.
COMMAND = "command"

T = TypeVar("T")


def parse_body(body: bytes, type_: type[T], limit: int = MAX_ONE) -> T:
    """The request in this body. Raises Refusal (badRequest, tooLarge, tooDeep)."""
    _fits(body, limit)
    if _keys(body) > MAX_FIELDS:
        raise Refusal(
            "tooLarge",
            f"the request has more than {MAX_FIELDS} fields; give what is large as a file",
        )
    request: T = _decoded(body, type_)
    _check_once(body)
    return request


async def parse_runs(body: bytes) -> RunMany:
    """The same for many runs, which take too long to be taken apart in one go."""
    _fits(body, MAX_BODY)
    outer = _decoded(body, _Bulk)
    _check_once(b"0".join(body.split(bytes(outer.runs), 1)), _AROUND)
    specs: list[RunSpec] = []
    size = 0
    try:
        raws: list[msgspec.Raw] = _decoded(bytes(outer.runs), _Runs)
    except Refusal as e:
        raise Refusal(e.code, f"{e.sentence} - at `$.runs`") from None
    for raw in raws:
        try:
            specs.append(parse_body(bytes(raw), RunSpec))
        except Refusal as e:
            raise Refusal(e.code, f"run {len(specs)} of the request: {e.sentence}") from None
        size += len(bytes(raw))
        if size > _GO:
            size = 0
            await asyncio.sleep(0)
    return RunMany(req_id=outer.req_id, runs=tuple(specs))


class _Bulk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A request for many runs, its runs not looked at."""

    req_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_:-]{8,56}\Z")]
    runs: msgspec.Raw


_Runs = Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=MAX_BULK)]


def _fits(body: bytes, limit: int) -> None:
    if len(body) > limit:
        raise Refusal("tooLarge", f"a request of {len(body)} bytes is over the limit of {limit}")


def _decoded(body: bytes, type_: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError as e:
        raise Refusal("badRequest", _sentence(str(e))) from None
    except RecursionError:
        raise Refusal("tooDeep", "the request is nested too deep") from None
    except (msgspec.DecodeError, ValueError) as e:
        raise Refusal("badRequest", f"the body is not JSON: {str(e)[:200]}") from None


def _check_once(body: bytes, limit: int = MAX_ONE) -> None:
    """Two readers of an object with a key that is there twice may see two requests. Raises Refusal.

    Of such a key one is gone when the text was read; so it is read, written again, and the keys are
    counted.
    """
    if len(body) > limit or _keys(body) != _keys(msgspec.json.encode(_decoded(body, Any))):
        raise Refusal("badRequest", "the request does not fit: an object in it has a field twice")


def _keys(text: bytes) -> int:
    """How many keys its objects have: outside of strings, each has a colon."""
    without_escapes = text.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in text else text
    return sum(map(_colons, without_escapes.split(b'"')[::2]))


_colons = methodcaller("count", b":")


def check_spec(
    spec: RunSpec,
    apps: tuple[str, ...],
    *,
    containers: bool = False,
    volumes: Collection[str] = (),
    user_dir: str = "",
) -> None:
    """What the shape of a run cannot say. containers, volumes, user_dir: as of check_roles. Raises
    Refusal.
    """
    if spec.simulation_type not in apps:
        raise Refusal(
            "unknownApp", f"there is no app {spec.simulation_type!r}; there are: {', '.join(apps)}"
        )
    if spec.simulation_type == COMMAND:
        _check_command(spec)
    elif spec.command or spec.roles or spec.data is None:
        what = "roles" if spec.roles else "command"
        raise Refusal(
            "badRequest",
            f"the app {spec.simulation_type!r} takes `data`, and no `{what}`: it makes its command itself",
        )
    if spec.data is not None:
        check_data("data", spec.data)
    # the front end says there by which version of the app it has digested the run
    check_env(
        {
            name: value
            for name, value in spec.env.items()
            if spec.data is None or name != APP_VERSION
        }
    )
    if spec.roles:
        check_roles(spec, containers=containers, volumes=volumes, user_dir=user_dir)
    room = MAX_VARIABLES - (0 if spec.data is None else MAX_DATA_KEYS)
    if len(spec.env) > room:
        raise Refusal(
            "tooLarge", f"the environment has {len(spec.env)} variables; the limit is {room}"
        )
    _check_size(spec)


def _check_command(spec: RunSpec) -> None:
    if spec.data is not None or not (spec.command or spec.roles):
        raise Refusal(
            "badRequest",
            "the app 'command' takes a `command` of at least one word, or `roles`, and no `data`",
        )
    if spec.command and spec.roles:
        raise Refusal(
            "badRequest",
            "a run takes either a `command` or `roles`, each of which has its own; leave out one of them",
        )


def _check_size(spec: RunSpec) -> None:
    """What its commands and environments take, each once, however many tasks have it."""
    words = [*spec.wrap, *spec.command]
    envs = [spec.env]
    for role in spec.roles:
        words.extend(role.command)
        envs.append(role.env)
    size = sum(map(len, words)) + sum(len(k) + len(v) for env in envs for k, v in env.items())
    if size > MAX_WORDS:
        raise Refusal(
            "tooLarge",
            f"commands and environments take {size} characters; the limit is {MAX_WORDS}",
        )


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
            raise Refusal(
                "tooLarge",
                f"`{name}` has more than {MAX_DATA_KEYS} keys or {MAX_DATA_ITEMS} elements; give it as a file",
            )
        for member in value.values() if isinstance(value, dict) else value:
            _check_members(name, member, room - 1, left)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise Refusal("badRequest", f"`{name}` has a whole number of more than 64 bits")


def _sentence(text: str) -> str:
    """msgspec's message, without Python's words."""
    said = (
        text.replace("Object contains", "it has an")
        .replace("Object missing", "it lacks the")
        .replace("`null`", "nothing")
    )
    return ("the request does not fit: " + said[0].lower() + said[1:])[:400]
