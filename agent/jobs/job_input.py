"""What the agent hands the job command of an app: its command line, and its input, which the keeper
lays beside the evidence.
"""

import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import msgspec

from ...protocol.wire.messages import AppInput, TaskSpec
from ...runtime import failpoints
from ...runtime.execution.folder import INPUT

#: The environment of a job is the user's: neither it nor the directory it begins in decides what
#: the job command imports.
_FLAGS = ("-E", "-P", "-u")
#: Where this package is not installed for the interpreter, but was found by a search path of the
#: agent's own.
_BOOT = "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); from {} import main; sys.exit(main(sys.argv[1:]))"


class RunInput(NamedTuple):
    """simulation_type, compute_model and data as in AppInput; also: apps that the configuration
    names; the rest are folders.
    """

    simulation_type: str
    compute_model: str
    data: dict[str, Any]
    run_dir: Path
    lib: Path
    also: tuple[str, ...]


def text(app: AppInput, run_dir: str, also: Sequence[str]) -> str:
    """The input file's content. The library is the user's folder for this app: <user>/<simulation
    type>/lib.
    """
    lib = PurePath(run_dir).parent.parent / "lib"
    return json.dumps(
        {
            "simulationType": app.simulation_type,
            "computeModel": app.compute_model,
            "data": app.data,
            "runDir": run_dir,
            "lib": str(lib),
            "also": list(also),
        }
    )


def read(path: Path) -> RunInput:
    """The input that `text` wrote."""
    said = json.loads(path.read_bytes())
    return RunInput(
        said["simulationType"],
        said["computeModel"],
        said["data"],
        Path(said["runDir"]),
        Path(said["lib"]),
        tuple(said["also"]),
    )


def with_job_command(spec: TaskSpec, evidence: PurePath | str, roots: Sequence[str]) -> TaskSpec:
    """The spec with the command line of the job command that reads its input out of this folder.
    roots: see `import_roots`.
    """
    module = f"{__package__}.job_command"
    start = ("-c", _BOOT.format(module), ":".join(roots)) if roots else ("-m", module)
    armed = {k: v for k, v in os.environ.items() if k == failpoints.VARIABLE}
    return msgspec.structs.replace(
        spec,
        command=(sys.executable, *_FLAGS, *start, f"{evidence}/{INPUT}"),
        env={**spec.env, **armed},
    )


def import_roots() -> tuple[str, ...]:
    """What this interpreter searches before the standard library: that was said by PYTHONPATH,
    which a job does not get.
    """
    library = os.path.dirname(os.__file__)
    first = itertools.takewhile(lambda p: p != library and not p.endswith(".zip"), sys.path)
    return tuple(p for p in first if os.path.isabs(p) and os.path.isdir(p))
