"""The spec of a plain command, made of what a Python program gives: a list of words and options by
name. Pure.
"""

import difflib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...protocol.api.requests import RunSpec
from ...protocol.jobs.roles import TaskRole
from .requests import bad_request

#: What `command_spec` takes besides the command: for the run, and in `task`.
OPTIONS = (
    *(f for f in RunSpec.__struct_fields__ if f not in ("uid", "command", "data", "roles")),
    "task",
)
TASK_OPTIONS = tuple(f for f in TaskRole.__struct_fields__ if f not in ("name", "command"))


def command_spec(uid: str, sid: str, command: Sequence[str], options: Mapping[str, Any]) -> RunSpec:
    """The spec of a plain command. `options` are fields of RunSpec by their Python names; None
    means the default.

    The option `task` makes it a run with one role, main, of one task: what that asks for, as fields
    of TaskRole (`{"image": ...}`). Raises TypeError for a command that is no list of texts,
    ClientError("badRequest") when a value does not have its shape.
    """
    _check_command(command)
    fields = {k: v for k, v in options.items() if v is not None}
    _check_names(fields, OPTIONS, "a run")
    _check_names(fields.get("task") or {}, TASK_OPTIONS, "task")
    try:
        if (task := fields.pop("task", None)) is None:
            spec = RunSpec(uid=uid, simulation_id=sid, command=tuple(command), **fields)
        else:
            main = TaskRole(**{"name": "main", "command": tuple(command), **task})
            spec = RunSpec(uid=uid, simulation_id=sid, roles=(main,), **fields)
        return msgspec.convert(msgspec.to_builtins(spec), RunSpec)
    except (TypeError, msgspec.ValidationError) as e:
        raise bad_request(str(e)) from None


def _check_command(command: object) -> None:
    """A text would be taken for a list of its letters. Raises TypeError, ClientError("badRequest")."""
    if isinstance(command, str | bytes) or not isinstance(command, Sequence):
        line = command if isinstance(command, str) else "echo hi"
        raise TypeError(
            f"a command is a list of words, and not {type(command).__name__}: "
            f"{shlex.split(line, posix=True) if _splits(line) else [line]!r}, or for a shell {['sh', '-c', line]!r}"
        )
    if not command:
        raise bad_request("a command has at least one word")
    for n, word in enumerate(command):
        if not isinstance(word, str):
            raise TypeError(
                f"word {n} of the command is {word!r:.60}, and must be text: str({word!r:.60})"
            )
        if "\0" in word:
            raise bad_request("a word of a command cannot hold a NUL")


def _splits(line: str) -> bool:
    try:
        return bool(shlex.split(line))
    except ValueError:
        return False


def _check_names(given: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Raises ClientError("badRequest") that names the option which was probably meant, and all that
    there are.
    """
    for name in given:
        if name in known:
            continue
        if what == "a run" and name in TASK_OPTIONS:
            raise bad_request(
                f"a run has no option {name!r}; it is asked for by task={{{name!r}: {given[name]!r:.60}}}"
            )
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise bad_request(f"{what} has no option {name!r}; {meant}there are: {', '.join(known)}")
