"""Orders of an agent to its keeper: one line of JSON each. Standard library only, because a keeper
imports it.

Orders are plain classes with slots: `dataclasses` and `typing` would cost each keeper a megabyte of
memory. `parse_order` refuses everything else with a sentence. The other direction is in
`keeper_reports`.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,249}\Z")
_UMASK = 0o077


class InvalidOrder(ValueError):
    """A message is no order. name, token: of the execution that it would start, if it names one."""

    def __init__(self, sentence: str, name: str | None = None, token: str = "") -> None:
        super().__init__(sentence)
        self.name, self.token = name, token


class SetEnvironment:
    """Define an environment that start orders refer to.

    lines: lines of a shell script that export the variables.
    """

    __slots__ = ("lines", "name", "variables")

    def __init__(self, name: str, variables: Mapping[str, str], lines: str) -> None:
        self.name, self.variables, self.lines = name, dict(variables), lines

    def encode(self) -> dict[str, Any]:
        return {"do": "environment", "name": self.name, "env": self.variables, "lines": self.lines}


class StartOrder:
    """Start an execution, unless its token was used.

    command: the program, as a shell would find it, and its arguments. script: the text of
    `script.sh` before and after the lines of the environment. environment: name of the environment
    below `env`; None: nothing is below. core: limit of core dumps in bytes. input, job: content of
    the files of these purposes. memory: limit in bytes. limit, grace: seconds. slot: "held", "ahead"
    or None (see messages.SlotUse).
    """

    __slots__ = (
        "command",
        "core",
        "env",
        "environment",
        "grace",
        "input",
        "job",
        "limit",
        "memory",
        "name",
        "run_dir",
        "script",
        "slot",
        "token",
        "umask",
    )

    def __init__(
        self,
        name: str,
        token: str,
        run_dir: str,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        script: tuple[str, str] = ("", ""),
        environment: str | None = None,
        umask: int = _UMASK,
        core: int = 0,
        limit: float | None = None,
        grace: float | None = None,
        input: str | None = None,
        job: str | None = None,
        memory: int | None = None,
        slot: str | None = None,
    ) -> None:
        self.name, self.token, self.run_dir = name, token, run_dir
        self.command, self.env, self.environment = list(command), dict(env), environment
        self.script, self.umask, self.core = script, umask, core
        self.limit, self.grace = limit, grace
        self.input, self.job, self.memory, self.slot = input, job, memory, slot

    def encode(self) -> dict[str, Any]:
        """Return the message. Fields with their defaults are left out."""
        out: dict[str, Any] = {
            "do": "start",
            "name": self.name,
            "token": self.token,
            "runDir": self.run_dir,
            "command": self.command,
            "env": self.env,
            "script": list(self.script),
            "umask": self.umask,
            "core": self.core,
        }
        rest = {
            "environment": self.environment,
            "limit": self.limit,
            "grace": self.grace,
            "input": self.input,
            "job": self.job,
            "memory": self.memory,
            "slot": self.slot,
        }
        return out | {name: value for name, value in rest.items() if value is not None}


class ReleaseOrder:
    """Start an execution whose start order waits for a slot."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self) -> dict[str, Any]:
        return {"do": "release", "name": self.name}


class StopOrder:
    """Stop an execution; one that has not started never will. grace: seconds until SIGKILL."""

    __slots__ = ("grace", "name", "reason", "token")

    def __init__(self, name: str, token: str, reason: str, grace: float) -> None:
        self.name, self.token, self.reason, self.grace = name, token, reason, grace

    def encode(self) -> dict[str, Any]:
        return {
            "do": "stop",
            "name": self.name,
            "token": self.token,
            "reason": self.reason,
            "grace": self.grace,
        }


class ForgetOrder:
    """Forget ended executions: their ends are stored."""

    __slots__ = ("names",)

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def encode(self) -> dict[str, Any]:
        return {"do": "forget", "names": self.names}


class QuitOrder:
    """End the keeper and its agent; first the jobs, if `stop_jobs`. grace: seconds."""

    __slots__ = ("grace", "stop_jobs")

    def __init__(self, stop_jobs: bool, grace: float) -> None:
        self.stop_jobs, self.grace = stop_jobs, grace

    def encode(self) -> dict[str, Any]:
        return {"do": "quit", "stopJobs": self.stop_jobs, "grace": self.grace}


class Ping:
    """Ask for a pong with this number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def encode(self) -> dict[str, Any]:
        return {"do": "ping", "n": self.number}


class Started:
    """The agent has started."""

    __slots__ = ()

    def encode(self) -> dict[str, Any]:
        return {"do": "here"}


class StartupFailure:
    """The agent cannot start."""

    __slots__ = ("sentence",)

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence[:2000]

    def encode(self) -> dict[str, Any]:
        return {"do": "failed", "why": self.sentence}


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
    match message.get("do"):
        case "start":
            return _start_order(message)
        case "release":
            return ReleaseOrder(_text(message, "name"))
        case "stop":
            name, token = _execution(message)
            return StopOrder(name, token, str(_value(message, "reason")), _secs(message, "grace"))
        case "forget":
            return ForgetOrder(_texts(message, "names"))
        case "environment":
            return SetEnvironment(
                _text(message, "name"), _variables(message), _text(message, "lines")
            )
        case "quit":
            return QuitOrder(bool(_value(message, "stopJobs")), _secs(message, "grace"))
        case "ping":
            return Ping(message.get("n") or 0)
        case "here":
            return Started()
        case "failed":
            return StartupFailure(str(message.get("why")))
        case other:
            raise InvalidOrder(f"unknown order {other!r}")


def _start_order(message: Mapping[str, Any]) -> StartOrder:
    name, token = _execution(message)
    try:
        if "\0" in token:
            raise InvalidOrder("the token contains a NUL character")
        run_dir, script = _text(message, "runDir"), _texts(message, "script")
        if not run_dir.startswith("/") or "\0" in run_dir or len(script) != 2:
            raise InvalidOrder(
                "the start order needs an absolute run directory and a script of two parts"
            )
        command = _texts(message, "command")
        if not command or not command[0]:
            raise InvalidOrder("the command is empty")
        return StartOrder(
            name,
            token,
            run_dir,
            command,
            _variables(message),
            script=(script[0], script[1]),
            environment=_optional(message, "environment", str),
            umask=_number(message, "umask", _UMASK) & 0o777,
            core=max(0, _number(message, "core", 0)),
            limit=_optional(message, "limit", int | float),
            grace=_optional(message, "grace", int | float),
            input=_optional(message, "input", str),
            job=_optional(message, "job", str),
            memory=_optional(message, "memory", int),
            slot=_optional(message, "slot", str),
        )
    except InvalidOrder as error:
        raise InvalidOrder(f"invalid start order: {error}", name, token.replace("\0", "")) from None


def _execution(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return name and token."""
    name = message.get("name")
    if not is_valid_name(name):
        raise InvalidOrder(f"{name!r} does not name an execution")
    return str(name), str(message.get("token") or name)


def _value(message: Mapping[str, Any], name: str) -> Any:
    if name not in message:
        raise InvalidOrder(f"{name} is missing")
    return message[name]


def _text(message: Mapping[str, Any], name: str) -> str:
    value = _value(message, name)
    if not isinstance(value, str):
        raise InvalidOrder(f"{name} is not text")
    return value


def _texts(message: Mapping[str, Any], name: str) -> list[str]:
    value = _value(message, name)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise InvalidOrder(f"{name} is not a list of texts")
    return value


def _variables(message: Mapping[str, Any]) -> dict[str, str]:
    value = _value(message, "env")
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise InvalidOrder("env is not an object of texts")
    return value


def _secs(message: Mapping[str, Any], name: str) -> float:
    value = _value(message, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOrder(f"{name} is not a number")
    return float(value)


def _number(message: Mapping[str, Any], name: str, default: int) -> int:
    value = _optional(message, name, int)
    return default if value is None else int(value)


def _optional(message: Mapping[str, Any], name: str, kind: Any) -> Any:
    value = message.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidOrder(f"{name} is of a wrong type")
    return value
