"""Orders of an agent to its keeper: one line of JSON each. Standard library only, because a keeper
imports it.

The type of a field selects how `parse_order` reads it (`_READERS`). `parse_order` refuses everything
else with a sentence. The other direction is in `keeper_reports`.
"""

from __future__ import annotations

import re

from .message_fields import message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    # types of fields with rules of their own, see `_READERS`
    ExecutionName = str
    Token = str
    NewToken = str
    RunDirectory = str
    Command = Sequence[str]
    Script = tuple[str, str]
    Mode = int
    CoreLimit = int
    AnyText = str
    AnyNumber = int
    Sentence = str

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,249}\Z")
_UMASK = 0o077
_TEXT = frozenset((str,))
_DIRECTORY_AND_SCRIPT = "the start order needs an absolute run directory and a script of two parts"
#: Maximum length of the sentence of a StartupFailure.
MAX_SENTENCE = 2000


class InvalidOrder(ValueError):
    """A message is no order. name, token: of the execution that it would start, if it names one."""

    def __init__(self, sentence: str, name: str | None = None, token: str = "") -> None:
        super().__init__(sentence)
        self.name, self.token = name, token


@message({"do": "environment"}, variables="env")
class SetEnvironment:
    """Define an environment that start orders refer to.

    lines: lines of a shell script that export the variables.
    """

    name: str
    variables: dict[str, str]
    lines: str


@message({"do": "start"})
class StartOrder:
    """Start an execution, unless its token was used.

    command: the program, as a shell would find it, and its arguments. script: the text of
    `script.sh` before and after the lines of the environment. environment: name of the environment
    below `env`; None: nothing is below. core: limit of core dumps in bytes. input, job: content of
    the files of these purposes. memory: limit in bytes. limit, grace: seconds. slot: "held", "ahead"
    or None (see messages.SlotUse).
    """

    name: ExecutionName
    token: NewToken
    run_dir: RunDirectory
    command: Command
    env: dict[str, str]
    script: Script = ("", "")
    umask: Mode = _UMASK
    core: CoreLimit = 0
    environment: str | None = None
    limit: float | None = None
    grace: float | None = None
    input: str | None = None
    job: str | None = None
    memory: int | None = None
    slot: str | None = None


@message({"do": "release"})
class ReleaseOrder:
    """Start an execution whose start order waits for a slot."""

    name: str


@message({"do": "stop"})
class StopOrder:
    """Stop an execution; one that has not started never will. grace: seconds until SIGKILL."""

    name: ExecutionName
    token: Token
    reason: AnyText
    grace: float


@message({"do": "forget"})
class ForgetOrder:
    """Forget ended executions: their ends are stored."""

    names: list[str]


@message({"do": "quit"})
class QuitOrder:
    """End the keeper and its agent; first the jobs, if `stop_jobs`. grace: seconds."""

    stop_jobs: bool
    grace: float


@message({"do": "ping"}, number="n")
class Ping:
    """Ask for a pong with this number."""

    number: AnyNumber


@message({"do": "here"})
class Started:
    """The agent has started."""


@message({"do": "failed"}, sentence="why")
class StartupFailure:
    """The agent cannot start."""

    sentence: Sentence


Order = (
    SetEnvironment
    | StartOrder
    | ReleaseOrder
    | StopOrder
    | ForgetOrder
    | QuitOrder
    | Ping
    | Started
    | StartupFailure
)


def is_valid_name(name: object) -> bool:
    """Return whether `name` is a valid name of an execution, and so of its evidence folder."""
    return isinstance(name, str) and _NAME.match(name) is not None


def parse_order(message: Mapping[str, Any]) -> Order:
    """Return the order in a message. Raises InvalidOrder."""
    kind = message.get("do")
    if not isinstance(kind, str) or kind not in _ORDERS:
        raise InvalidOrder(f"unknown order {kind!r}")
    cls, fields = _ORDERS[kind]
    order: Order = cls.__new__(cls)
    try:
        order.__dict__ = {name: read(message, wire) for name, wire, read in fields}
    except InvalidOrder as error:
        if cls is not StartOrder or not is_valid_name(message.get("name")):
            raise
        token = _token(message, "token").replace("\0", "")
        raise InvalidOrder(f"invalid start order: {error}", message["name"], token) from None
    return order


def _execution_name(message: Mapping[str, Any], wire: str) -> str:
    name = message.get(wire)
    if not is_valid_name(name):
        raise InvalidOrder(f"{name!r} does not name an execution")
    return str(name)


def _token(message: Mapping[str, Any], wire: str) -> str:
    return str(message.get(wire) or message.get("name"))


def _new_token(message: Mapping[str, Any], wire: str) -> str:
    token = _token(message, wire)
    if "\0" in token:
        raise InvalidOrder("the token contains a NUL character")
    return token


def _run_directory(message: Mapping[str, Any], wire: str) -> str:
    value = _text(message, wire)
    if not value.startswith("/") or "\0" in value:
        raise InvalidOrder(_DIRECTORY_AND_SCRIPT)
    return value


def _script(message: Mapping[str, Any], wire: str) -> tuple[str, ...]:
    value = _texts(message, wire)
    if len(value) != 2:
        raise InvalidOrder(_DIRECTORY_AND_SCRIPT)
    return tuple(value)


def _command(message: Mapping[str, Any], wire: str) -> list[str]:
    value = _texts(message, wire)
    if not value or not value[0]:
        raise InvalidOrder("the command is empty")
    return value


def _value(message: Mapping[str, Any], wire: str) -> Any:
    if wire not in message:
        raise InvalidOrder(f"{wire} is missing")
    return message[wire]


def _text(message: Mapping[str, Any], wire: str) -> str:
    value = message.get(wire)
    if not isinstance(value, str):
        raise _unlike(message, wire, "text")
    return value


def _texts(message: Mapping[str, Any], wire: str) -> list[str]:
    value = message.get(wire)
    if not isinstance(value, list) or not _TEXT.issuperset(map(type, value)):
        raise _unlike(message, wire, "a list of texts")
    return value


def _variables(message: Mapping[str, Any], wire: str) -> dict[str, str]:
    value = message.get(wire)
    if not isinstance(value, dict) or not _TEXT.issuperset(map(type, value.values())):
        raise _unlike(message, wire, "an object of texts")
    return value


def _unlike(message: Mapping[str, Any], wire: str, kind: str) -> InvalidOrder:
    return InvalidOrder(f"{wire} is not {kind}" if wire in message else f"{wire} is missing")


def _secs(message: Mapping[str, Any], wire: str) -> float:
    value = message.get(wire)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unlike(message, wire, "a number")
    return float(value)


def _optional(*kinds: type) -> Callable[[Mapping[str, Any], str], Any]:
    def read(message: Mapping[str, Any], wire: str) -> Any:
        value = message.get(wire)
        if value is not None and not isinstance(value, kinds):
            raise InvalidOrder(f"{wire} is of a wrong type")
        return value

    return read


_optional_int = _optional(int)


def _mode(message: Mapping[str, Any], wire: str) -> int:
    value = _optional_int(message, wire)
    return _UMASK if value is None else int(value) & 0o777


#: How a field is read, by its type.
_READERS: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "str": _text,
    "list[str]": _texts,
    "dict[str, str]": _variables,
    "float": _secs,
    "bool": lambda message, wire: bool(_value(message, wire)),
    "str | None": _optional(str),
    "int | None": _optional_int,
    "float | None": _optional(int, float),
    "ExecutionName": _execution_name,
    "Token": _token,
    "NewToken": _new_token,
    "RunDirectory": _run_directory,
    "Command": _command,
    "Script": _script,
    "Mode": _mode,
    "CoreLimit": lambda message, wire: max(0, int(_optional_int(message, wire) or 0)),
    "AnyText": lambda message, wire: str(_value(message, wire)),
    "AnyNumber": lambda message, wire: message.get(wire) or 0,
    "Sentence": lambda message, wire: str(message.get(wire))[:MAX_SENTENCE],
}
_ORDERS: dict[str, tuple[Any, list[tuple[str, str, Any]]]] = {
    cls.HEAD["do"]: (
        cls,
        [(name, wire, _READERS[cls.__annotations__[name]]) for name, wire, _ in cls.FIELDS],
    )
    for cls in Order.__args__
}
