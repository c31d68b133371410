"""Build the spec of a command from a list of words and options; find the spec of an earlier run.
Pure.
"""

import difflib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...protocol.api.requests import RunSpec
from ...protocol.clusters.batch import BatchRequest
from ...protocol.jobs.roles import TaskRole
from ...runtime.struct_types import resolve
from .errors import refused
from .requests import bad_request

#: Options of `command_spec`: for the run, and in `task`.
OPTIONS = (
    *(f for f in RunSpec.__struct_fields__ if f not in ("uid", "command", "data", "roles")),
    "task",
)
_REQUESTED = "RunRequested"
TASK_OPTIONS = tuple(f for f in TaskRole.__struct_fields__ if f not in ("name", "command"))
#: Fields of `batch` in Python, and their names in requests.
_BATCH_NAMES = {f.name: f.encode_name for f in msgspec.structs.fields(BatchRequest)}


def command_spec(uid: str, sid: str, command: Sequence[str], options: Mapping[str, Any]) -> RunSpec:
    """Return the spec of a command. options: fields of RunSpec; None means the default.

    The option `task` (fields of TaskRole, such as `{"image": ...}`) makes it a run with the role
    `main` of one task. `batch` has the fields of BatchRequest, such as `{"memory_mb": ...}`, or their
    names in requests (`memoryMb`). Raises TypeError if the command is not a list of strings, and
    ClientError("badRequest") for an invalid value.
    """
    _check_command(command)
    fields = {k: v for k, v in options.items() if v is not None}
    _check_names(fields, OPTIONS, "a run")
    _check_names(fields.get("task") or {}, TASK_OPTIONS, "task")
    if isinstance(batch := fields.get("batch"), Mapping):
        fields["batch"] = {_BATCH_NAMES.get(name, name): value for name, value in batch.items()}
        _check_names(fields["batch"], tuple(_BATCH_NAMES.values()), "batch")
    try:
        if (task := fields.pop("task", None)) is None:
            spec = RunSpec(uid=uid, simulation_id=sid, command=tuple(command), **fields)
        else:
            main = TaskRole(**{"name": "main", "command": tuple(command), **task})
            spec = RunSpec(uid=uid, simulation_id=sid, roles=(main,), **fields)
        resolve(RunSpec)
        return msgspec.convert(msgspec.to_builtins(spec), RunSpec)
    except (TypeError, msgspec.ValidationError) as e:
        raise bad_request(str(e)) from None


def newest_request(story: Mapping[str, Any]) -> RunSpec:
    """Return the request of the newest run of a job. story: the answer to `job-story`. Raises
    ClientError (notFound).
    """
    events = [stored["event"] for stored in story["events"]]
    requests = [event for event in events if event["type"] == _REQUESTED]
    if not requests:
        raise refused("notFound", "the request of this job is not stored any more; submit it anew")
    resolve(RunSpec)
    return msgspec.convert(requests[-1]["spec"], RunSpec)


def _check_command(command: object) -> None:
    """Check that a command is a list of words, not a string, which would be split into letters.

    Raises TypeError, ClientError("badRequest").
    """
    if isinstance(command, str | bytes) or not isinstance(command, Sequence):
        line = command if isinstance(command, str) else "echo hi"
        raise TypeError(
            f"a command is a list of words, not {type(command).__name__}: "
            f"{shlex.split(line, posix=True) if _splits(line) else [line]!r}, or for a shell {['sh', '-c', line]!r}"
        )
    if not command:
        raise bad_request("a command has at least one word")
    for n, word in enumerate(command):
        if not isinstance(word, str):
            raise TypeError(
                f"word {n} of the command is {word!r:.60}, but must be a string: str({word!r:.60})"
            )
        if "\0" in word:
            raise bad_request("a word of a command cannot contain a NUL character")


def _splits(line: str) -> bool:
    try:
        return bool(shlex.split(line))
    except ValueError:
        return False


def _check_names(given: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Raise ClientError("badRequest") for an unknown option, with a similar one and all options."""
    for name in given:
        if name in known:
            continue
        if what == "a run" and name in TASK_OPTIONS:
            raise bad_request(
                f"a run has no option {name!r}; write task={{{name!r}: {given[name]!r:.60}}}"
            )
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise bad_request(f"{what} has no option {name!r}; {meant}there are: {', '.join(known)}")
