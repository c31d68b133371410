"""An app with programs from its user: all that a job can do to its folders, and all that an app can
return.
"""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from jobscribe.apps.app import App, Data, Field, Model, Prepared, Report, Run

MODELS = tuple(
    Model(
        name=name,
        title="Evil",
        kind=kind,
        reports=(Report(name=name, title="Evil", picture="curves"),),
        fields=(Field(name="sh", title="Shell", default=""),),
    )
    for name, kind in (("evilReport", "sequential"), ("evilAnimation", "parallel"))
)
#: Time limit of a call that waits for its file.
_WAIT_SECS = 30.0


def _prepare(run: Run) -> Prepared:
    return Prepared(command=("/bin/sh", "-c", run.data["models"][run.model]["sh"]))


def _until(args: Data) -> Any:
    """Wait until this file exists."""
    deadline = time.monotonic() + _WAIT_SECS
    while not os.path.exists(args["file"]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return {"waited": True}


def _shell(lib: Path, args: Data) -> Any:
    lib.mkdir(parents=True, exist_ok=True)
    return {
        "said": subprocess.run(
            ["/bin/sh", "-c", args["sh"]], cwd=lib, capture_output=True, check=True, text=True
        ).stdout
    }


def _raise(args: Data) -> Any:
    print(args["text"])
    raise ValueError(args["text"])


evil = App(
    name="evil",
    title="Evil",
    version="1",
    models=MODELS,
    parameters=lambda data, model: data["models"],
    prepare=_prepare,
    result=lambda run: {"ok": True},
    frame=lambda run, frame: {"frameIndex": frame.index, "frameCount": 1},
    download=lambda run, suffix: suffix,
    stateful={"sh": _shell},
    stateless={"until": _until, "raise": _raise},
)
