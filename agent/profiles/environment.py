"""The environment of a job with a profile, and the modules that its processes need. Pure, except
`stage`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ...protocol.ids import Token
from ...protocol.jobs import profiling
from ...protocol.launch.python_path import with_folders, with_folders_on_node
from ...protocol.wire.messages import TaskSpec
from ...runtime.execution.folder import write
from .notes import no_samples

#: The folder of the modules, in this package; and its name in the evidence of a task.
STAGED = Path(__file__).parent / "staged"
_COPY = "profiler"
_MODULES = ("sitecustomize.py", "jobscribe_profiler.py", "jobscribe_recorders.py")


def with_profiler(token: Token, spec: TaskSpec, below: Mapping[str, str]) -> TaskSpec:
    """Return the task with its profile. below: the environment below that of the task."""
    found = profiling.option(spec.profile)
    if found is None:
        return spec
    variables = _variables(token, spec, str(found))
    if found.in_process:
        return with_folders(spec, str(STAGED), below, variables)
    return msgspec.structs.replace(spec, env={**spec.env, **variables})


def staged(token: Token, spec: TaskSpec, evidence: str) -> tuple[TaskSpec, dict[str, bytes]]:
    """Return the task with its profile for another machine or container, which shares evidence and
    run directory only, and the files that it needs: content by path below the evidence. No agent
    takes samples there, so processes record their own memory. Raises OSError.
    """
    found = profiling.option(spec.profile)
    if found is None or not (found.in_process or found.kind == "mem"):
        return spec, {}
    kind = str(found) if found.in_process else profiling.IN_PROCESS
    files = {f"{_COPY}/{name}": (STAGED / name).read_bytes() for name in _MODULES}
    variables = _variables(token, spec, kind)
    return with_folders_on_node(spec, os.path.join(evidence, _COPY), variables), files


def stage(token: Token, spec: TaskSpec, evidence: str) -> TaskSpec:
    """Return the task as `staged`, with its files written. Raises OSError."""
    found = profiling.option(spec.profile)
    spec, files = staged(token, spec, evidence)
    if found is not None and not files:
        no_samples(token, spec.run_dir, found)
    for name, content in files.items():
        path = Path(evidence) / name
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        write(str(path), content)
    return spec


def _variables(token: Token, spec: TaskSpec, kind: str) -> dict[str, str]:
    folder = os.path.join(spec.run_dir, profiling.task_folder(token))
    return {profiling.VARIABLE: kind, profiling.FOLDER_VARIABLE: folder}
