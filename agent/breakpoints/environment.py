"""The environment of a job with remote debugging, and the modules that it needs. Pure, except
`stage`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from ...protocol.jobs import debugging
from ...protocol.launch.python_path import with_folders, with_folders_on_node
from ...protocol.wire.messages import TaskSpec
from ...runtime.execution.folder import write

#: The folder of the hook, in this package.
STAGED = Path(__file__).parent / "staged"
_MODULES = (
    debugging.RELAY,
    "jobscribe_pdb.py",
    "jobscribe_dap.py",
    "on_error/sitecustomize.py",
)


def with_debugger(spec: TaskSpec, below: Mapping[str, str], evidence: object) -> TaskSpec:
    """Return the task with the hook, if its run has remote debugging.

    below: the environment below that of the task. evidence: its folder, for sockets.
    """
    folders = _folders(spec, STAGED)
    if folders is None:
        return spec
    return with_folders(spec, folders, below, _variables(spec, evidence))


def staged(spec: TaskSpec, evidence: str) -> tuple[TaskSpec, dict[str, bytes]]:
    """Return the task with the hook for another machine or container, which shares the evidence
    only, and the files that it needs: content by path below the evidence. Raises OSError.
    """
    folders = _folders(spec, Path(evidence) / debugging.COPY)
    if folders is None:
        return spec, {}
    files = {f"{debugging.COPY}/{name}": (STAGED / name).read_bytes() for name in _MODULES}
    return with_folders_on_node(spec, folders, _variables(spec, evidence)), files


def stage(spec: TaskSpec, evidence: str) -> TaskSpec:
    """Return the task as `staged`, with its files written. Raises OSError."""
    spec, files = staged(spec, evidence)
    for name, content in files.items():
        target = Path(evidence) / name
        target.parent.mkdir(0o700, parents=True, exist_ok=True)
        write(str(target), content)
    return spec


def sockets(evidence: str | os.PathLike[str]) -> str:
    """Return the folder of the sockets of a task."""
    return os.path.join(evidence, debugging.SOCKETS)


def _folders(spec: TaskSpec, hook: Path) -> str | None:
    option = debugging.option(spec.env)
    if option is None:
        return None
    return f"{hook / 'on_error'}:{hook}" if option.mode == "on-error" else str(hook)


def _variables(spec: TaskSpec, evidence: object) -> dict[str, str]:
    return {
        debugging.HOOK: "jobscribe_debugger.set_trace",
        debugging.FOLDER: sockets(str(evidence)),
        debugging.SECS_VARIABLE: spec.env.get(
            debugging.SECS_VARIABLE, f"{debugging.DEFAULT_SECS:g}"
        ),
    }
