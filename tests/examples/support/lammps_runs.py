"""Runs of the LAMMPS plug-in without a supervisor: call its functions as a job command and a worker
would.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from jobscribe.apps.app import App, Frame, Run

PACKAGE = Path(__file__).resolve().parents[3] / "etc/examples/lammps"
REPLY_BYTES = 250_000


def run_of(folder: Path, model: str = "crackAnimation", **fields: Any) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    return Run(run_dir=folder, lib=folder / "lib", model=model, data={"models": {model: fields}})


def computed(app: App, run: Run) -> tuple[int, list[dict[str, Any]]]:
    """Prepare and execute a run. Return the exit code and each new value that `progress` returned."""
    prepared = app.prepare(run)
    said: list[dict[str, Any]] = []
    with (run.run_dir / "stdout").open("wb") as out, (run.run_dir / "stderr").open("wb") as err:
        process = subprocess.Popen(
            prepared.command,
            cwd=run.run_dir,
            env={**os.environ, **prepared.env},
            stdout=out,
            stderr=err,
        )
    deadline = time.monotonic() + 60
    while process.poll() is None:
        now = app.progress(run)
        if not said or said[-1] != now:
            said.append(now)
        if time.monotonic() > deadline:
            process.send_signal(signal.SIGKILL)
            process.wait()
            pytest.fail(f"not computed within 60 s: {said[-1]}")
        time.sleep(0.02)
    said.append(app.progress(run))
    return process.returncode, said


def frame(app: App, run: Run, report: str, index: int, **args: Any) -> Any:
    assert app.frame is not None
    return app.frame(run, Frame(report=report, index=index, args=args))


def sent(picture: Any) -> int:
    """Return the bytes of the reply."""
    return len(json.dumps(picture, separators=(",", ":"), allow_nan=False))
