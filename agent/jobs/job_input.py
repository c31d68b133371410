"""Command line and input file of an app's job command. The keeper stores the input file in the
evidence.
"""

import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ...runtime import failpoints
from ...runtime.execution.folder import INPUT

if TYPE_CHECKING:  # saves a job command a tenth of its start
    from ...protocol.wire.messages import AppInput, TaskSpec

#: Interpreter options: neither the user's environment nor the working directory may change the job
#: command's imports.
_FLAGS = ("-E", "-P", "-u")
#: Code to import this package where it is not installed for the interpreter, but was found by the
#: agent's own search path.
_BOOT = "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); from {} import main; sys.exit(main(sys.argv[1:]))"


class RunInput(NamedTuple):
    """The content of the input file. The first three fields as in AppInput. also: names of
    configured apps. The other fields are folders.
    """

    simulation_type: str
    compute_model: str
    data: dict[str, Any]
    run_dir: Path
    lib: Path
    also: tuple[str, ...]


def input_json(app: "AppInput", run_dir: str, also: Sequence[str]) -> str:
    """Return the content of the input file. lib is the user's folder of this app: <user>/<simulation
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
    """Read an input file written by `input_json`."""
    fields = json.loads(path.read_bytes())
    return RunInput(
        fields["simulationType"],
        fields["computeModel"],
        fields["data"],
        Path(fields["runDir"]),
        Path(fields["lib"]),
        tuple(fields["also"]),
    )


def with_job_command(
    spec: "TaskSpec", evidence: PurePath | str, roots: Sequence[str]
) -> "TaskSpec":
    """Return the spec with the job command as its command line. evidence: folder of the input file.
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
    """Return the search path entries before the standard library: they come from PYTHONPATH, which a
    job does not inherit.
    """
    library = os.path.dirname(os.__file__)
    first = itertools.takewhile(lambda p: p != library and not p.endswith(".zip"), sys.path)
    return tuple(p for p in first if os.path.isabs(p) and os.path.isdir(p))
