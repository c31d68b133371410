"""Folders of modules in front of the `PYTHONPATH` of a task. Pure."""

from collections.abc import Mapping

import msgspec

from ..wire.messages import TaskSpec

_PATH = "PYTHONPATH"
#: Puts folders in front of the PYTHONPATH that the node has, then becomes the command.
_IN_FRONT = 'PYTHONPATH="$0${PYTHONPATH:+:$PYTHONPATH}"; export PYTHONPATH; exec "$@"'


def with_folders(
    spec: TaskSpec, folders: str, below: Mapping[str, str], variables: Mapping[str, str]
) -> TaskSpec:
    """Return the task with these folders and variables. below: the environment below its own."""
    path = ":".join([folders, *filter(None, [spec.env.get(_PATH) or below.get(_PATH)])])
    return _with_variables(spec, {**variables, _PATH: path})


def with_folders_on_node(spec: TaskSpec, folders: str, variables: Mapping[str, str]) -> TaskSpec:
    """Return the task with these folders and variables, for a machine with an unknown environment."""
    if own := spec.env.get(_PATH):
        return _with_variables(spec, {**variables, _PATH: f"{folders}:{own}"})
    spec = _with_variables(spec, variables)
    return msgspec.structs.replace(spec, wrap=("/bin/sh", "-c", _IN_FRONT, folders, *spec.wrap))


def _with_variables(spec: TaskSpec, variables: Mapping[str, str]) -> TaskSpec:
    return msgspec.structs.replace(spec, env={**spec.env, **variables})
