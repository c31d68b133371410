"""Validation of requests: an HTTP body becomes a typed request or a refusal.

Code behind this module never handles raw request data.
"""

import asyncio
from collections.abc import Collection
from operator import methodcaller
from typing import Annotated, Any, TypeVar

import msgspec

from ...protocol.api.requests import MAX_BULK, BulkReqId, RunMany, RunSpec
from ...protocol.errors import Refusal
from ...protocol.ids import split_jid
from ...protocol.jobs import debugging
from ...protocol.version import APP_VERSION
from ...schema import messages
from .role_validation import MAX_VARIABLES, check_env, check_roles

#: Largest request for many runs, and largest other request, in bytes.
MAX_BODY, MAX_ONE = 8 * 1024 * 1024, 2 * 1024 * 1024
#: Largest number of fields in all objects of one request, counted cheaply before it is decoded.
MAX_FIELDS = 16_000
#: Number of bytes of a bulk request that are decoded before the loop serves other requests.
_SLICE = 32 * 1024
#: Largest size of a bulk request without its runs, in bytes.
_ENVELOPE = 4096
#: Limits of an app's data in a run or call: bytes of JSON, levels, keys, list elements. The data
#: goes to the agent in one message, so the limits are within those of `protocol.wire.codec`.
MAX_DATA, MAX_DATA_DEPTH, MAX_DATA_KEYS, MAX_DATA_ITEMS = 256 * 1024, 10, 8_000, 90_000
#: Largest sum of characters of all commands and environments of one run.
MAX_WORDS = 512 * 1024
#: The app that runs the command in the request. All other apps make a command from `data`.
COMMAND = "command"

T = TypeVar("T")


def parse_body(body: bytes, type_: type[T], limit: int = MAX_ONE, path: str = "") -> T:
    """Return the request in this body. Raises Refusal (badRequest, tooLarge, tooDeep).

    path: place of the body in a larger request, for the problems.
    """
    _check_size_of(body, limit)
    if _keys(body) > MAX_FIELDS:
        raise Refusal(
            "tooLarge",
            f"the request has more than {MAX_FIELDS} fields; pass large data as a file",
        )
    request: T = _decoded(body, type_, path)
    _check_duplicates(body)
    return request


async def parse_runs(body: bytes) -> RunMany:
    """Return a request for many runs, decoded in slices between which the loop serves others.

    Raises Refusal (badRequest, tooLarge, tooDeep).
    """
    _check_size_of(body, MAX_BODY)
    outer = _decoded(body, _Bulk)
    _check_duplicates(b"0".join(body.split(bytes(outer.runs), 1)), _ENVELOPE)
    specs: list[RunSpec] = []
    size = 0
    try:
        raws: list[msgspec.Raw] = _decoded(bytes(outer.runs), _Runs, "runs")
    except Refusal as e:
        raise Refusal(e.code, f"{e.sentence} - at `$.runs`", e.more) from None
    for raw in raws:
        try:
            specs.append(parse_body(bytes(raw), RunSpec, path=f"runs[{len(specs)}]"))
        except Refusal as e:
            sentence = f"run {len(specs)} of the request: {e.sentence}"
            raise Refusal(e.code, sentence, e.more) from None
        size += len(bytes(raw))
        if size > _SLICE:
            size = 0
            await asyncio.sleep(0)
    return RunMany(req_id=outer.req_id, runs=tuple(specs))


class _Bulk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A request for many runs, with the runs not decoded yet."""

    req_id: BulkReqId
    runs: msgspec.Raw


_Runs = Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=MAX_BULK)]


def _check_size_of(body: bytes, limit: int) -> None:
    if len(body) > limit:
        raise Refusal("tooLarge", f"a request of {len(body)} bytes is over the limit of {limit}")


def _decoded(body: bytes, type_: Any, path: str = "") -> Any:
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError as e:
        raise messages.refusal(e, body, type_, "invalid request", path) from None
    except RecursionError:
        raise Refusal("tooDeep", "the request is nested too deep") from None
    except (msgspec.DecodeError, ValueError) as e:
        raise Refusal("badRequest", f"the body is not JSON: {str(e)[:200]}") from None


def _check_duplicates(body: bytes, limit: int = MAX_ONE) -> None:
    """Raise Refusal if an object has a key twice, because two parsers may then see two requests.

    Decoding drops such a key, so the keys are counted before and after decoding.
    """
    if len(body) > limit or _keys(body) != _keys(msgspec.json.encode(_decoded(body, Any))):
        raise Refusal("badRequest", "invalid request: an object contains a field twice")


def _keys(text: bytes) -> int:
    """Count the keys of all objects by the colons outside of strings."""
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
    """Check the rules for a run that its type cannot express. Raises Refusal.

    containers, volumes, user_dir: see check_roles.
    """
    if spec.simulation_type not in apps:
        raise Refusal(
            "unknownApp", f"unknown app {spec.simulation_type!r}; choose one of: {', '.join(apps)}"
        )
    if spec.simulation_type == COMMAND:
        _check_command(spec)
    elif spec.command or spec.roles or spec.data is None:
        field = "roles" if spec.roles else "command"
        raise Refusal(
            "badRequest",
            f"the app {spec.simulation_type!r} takes `data` and no `{field}`: it makes its command itself",
        )
    if isinstance(spec.cloned_from, str) and split_jid(spec.cloned_from)[0] != spec.uid:
        raise Refusal(
            "badRequest", f"clonedFrom: {spec.cloned_from} is a job of another user; leave it out"
        )
    if spec.data is not None:
        check_data("data", spec.data)
    # the front end passes the app version by which it prepared the run in this variable
    check_env(
        {
            name: value
            for name, value in spec.env.items()
            if name not in debugging.OPTIONS and (spec.data is None or name != APP_VERSION)
        }
    )
    if spec.roles:
        check_roles(spec, containers=containers, volumes=volumes, user_dir=user_dir)
    limit = MAX_VARIABLES - (0 if spec.data is None else MAX_DATA_KEYS)
    if len(spec.env) > limit:
        raise Refusal(
            "tooLarge", f"the environment has {len(spec.env)} variables; the limit is {limit}"
        )
    _check_size(spec)


def _check_command(spec: RunSpec) -> None:
    if spec.data is not None or not (spec.command or spec.roles):
        raise Refusal(
            "badRequest",
            "the app 'command' takes a `command` of at least one word or `roles`, and no `data`",
        )
    if spec.command and spec.roles:
        raise Refusal(
            "badRequest",
            "a run takes either a `command` or `roles`, because each role has its own command; leave out one of them",
        )


def _check_size(spec: RunSpec) -> None:
    """Check the size of all commands and environments; those of a role count once."""
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
    """Check that an app's data fits into one message. Raises Refusal (tooLarge, tooDeep, badRequest)."""
    _check_members(name, data, MAX_DATA_DEPTH, {dict: MAX_DATA_KEYS, list: MAX_DATA_ITEMS})
    size = len(msgspec.json.encode(data))
    if size > MAX_DATA:
        raise Refusal("tooLarge", f"`{name}` takes {size} bytes; the limit is {MAX_DATA}")


def _check_members(name: str, value: Any, levels: int, left: dict[type[Any], int]) -> None:
    """levels: number of levels that may follow. left: number of keys and elements that may follow."""
    if isinstance(value, dict | list):
        if levels == 0:
            raise Refusal("tooDeep", f"`{name}` is nested deeper than {MAX_DATA_DEPTH} levels")
        left[type(value)] -= len(value)
        if left[type(value)] < 0:
            raise Refusal(
                "tooLarge",
                f"`{name}` has more than {MAX_DATA_KEYS} keys or {MAX_DATA_ITEMS} elements; pass it as a file",
            )
        for member in value.values() if isinstance(value, dict) else value:
            _check_members(name, member, levels - 1, left)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise Refusal("badRequest", f"`{name}` has an integer of more than 64 bits")
