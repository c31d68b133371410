"""The configuration of the test site: apps with unusual behaviour, and the hooks that decide
permissions.
"""

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from jobscribe.apps.app import App, AppError, Data, Field, Model, Prepared, Report, Run, checked
from jobscribe.protocol.errors import Refusal

#: The name of the administrator. `may` and `admin` get uids, which for development users derive
#: from their names.
ADMIN_NAME = "the admin"

MODELS = (
    Model(
        name="slowAnimation",
        title="Slow",
        kind="parallel",
        reports=(Report(name="slowAnimation", title="Slow", picture="curves"),),
        fields=(
            Field(name="secs", title="Seconds", default=0.0, minimum=0.0, maximum=3600.0),
            Field(name="code", title="Code", default=0),
        ),
    ),
    Model(
        name="slowReport",
        title="Slow",
        kind="sequential",
        reports=(Report(name="slowReport", title="Slow", picture="curves"),),
        fields=(
            Field(name="secs", title="Seconds", default=0.0, minimum=0.0, maximum=3600.0),
            Field(name="file", title="File", default=""),
            Field(name="trouble", title="Trouble", default=""),
        ),
    ),
)

_PROGRAM = """
import json, os, sys, time
given = json.load(open("in.json"))
print("begins", flush=True)
if given.get("trouble") == "raise":
    raise RuntimeError("a big ugly error")
time.sleep(given["secs"])
sys.exit(given.get("code", 0))
"""


def _model(name: str) -> Model:
    return next(m for m in MODELS if m.name == name)


def _prepare(run: Run) -> Prepared:
    given: dict[str, Any] = checked(run.data, _model(run.model))
    if given.get("trouble") == "alert":
        raise AppError("the magnet is too strong")
    if given.get("file"):
        given["content"] = (run.lib / given["file"]).read_text()
    (run.run_dir / "in.json").write_text(json.dumps(given))
    return Prepared(command=(sys.executable, "-c", _PROGRAM))


def _result(run: Run) -> Any:
    given = json.loads((run.run_dir / "in.json").read_text())
    if given.get("trouble") == "nan":
        return {"plots": [{"points": [1.0, math.nan]}]}
    if given.get("trouble") == "large":
        return {"plots": [], "text": "x" * (9 << 20)}
    return {"plots": [], "content": given.get("content")}


def _outcome(run: Run, code: int) -> str | None:
    return "a big ugly error" if code == 1 else None


def _download(run: Run, suffix: str) -> str:
    if suffix == "late":
        time.sleep(100)
    if suffix == "big":
        (run.run_dir / "big.bin").write_bytes(os.urandom(1 << 20) * 32)
        return "big.bin"
    if suffix == "out":
        return "../../../../../secret/server"
    if suffix == "link":
        (run.run_dir / "link").unlink(missing_ok=True)
        (run.run_dir / "link").symlink_to("/etc/passwd")
        return "link"
    return "in.json"


def _sleeps(args: Data) -> Any:
    time.sleep(float(args["secs"]))
    return {"slept": args["secs"]}


def _hangs(run: Run, args: Data) -> Any:
    """Call that hangs. It first writes its pid."""
    (run.run_dir / "hangs").write_text(str(os.getpid()))
    time.sleep(100)


def _picture(lib: Path, args: Data) -> Any:
    """Write a file to the library and return its name."""
    lib.mkdir(parents=True, exist_ok=True)
    (lib / "preview.tif").write_bytes(b"II*\0" + bytes(1000))
    return {"name": "preview.tif"}


slow = App(
    name="slow",
    title="Slow",
    version="1",
    models=MODELS,
    parameters=lambda data, model: checked(data, _model(model)),
    prepare=_prepare,
    result=_result,
    frame=lambda run, frame: {
        "frameIndex": frame.index,
        "frameCount": 1,
        "title": "t",
        "x": [0.0],
        "plots": [],
    },
    outcome=_outcome,
    download=_download,
    downloads=lambda run: ("in.json",),
    lib_files=lambda data: (
        tuple(f for f in (checked(data, MODELS[1]).get("file"),) if f)
        if data.get("report") == "slowReport"
        else ()
    ),
    analysis={
        "sleep": lambda run, args: _sleeps(args),
        "hangs": _hangs,
        "unsendable": lambda run, args: {"a": [{1, 2}]},
    },
    stateful={"picture": _picture},
    stateless={"sleep": _sleeps, "huge": lambda args: "x" * (20 << 20)},
)

failing = App(
    name="failing",
    title="Proprietary",
    version="1",
    models=(MODELS[1],),
    parameters=lambda data, model: {},
    prepare=_prepare,
    result=_result,
)

TELLING = (
    Model(
        name="tellingAnimation",
        title="Telling",
        kind="parallel",
        reports=(Report(name="tellingAnimation", title="Telling", picture="curves"),),
        fields=(
            Field(name="lines", title="Lines that the code reports by itself", default=""),
            Field(name="percent", title="What the app makes of it", default="50"),
            Field(name="nap", title="Argument of a sleep that it starts", default="600"),
        ),
    ),
)

_TELLS = """
import json, os, subprocess
given = json.load(open("in.json"))
with open(os.environ["JOBSCRIBE_REPORT"], "a") as report:
    report.writelines(line + "\\n" for line in given["lines"].splitlines())
print("told", flush=True)
subprocess.call(["sleep", given["nap"]])
"""


def _prepare_telling(run: Run) -> Prepared:
    (run.run_dir / "in.json").write_text(json.dumps(checked(run.data, TELLING[0])))
    return Prepared(command=(sys.executable, "-c", _TELLS))


def _progress_of_telling(run: Run) -> dict[str, Any]:
    """Return no progress if the code reports it itself."""
    given = json.loads((run.run_dir / "in.json").read_text())
    return {} if given["lines"] else {"percentComplete": float(given["percent"])}


#: Has a process below its program, and reports the given progress.
telling = App(
    name="telling",
    title="Telling",
    version="1",
    models=TELLING,
    parameters=lambda data, model: checked(data, TELLING[0]),
    prepare=_prepare_telling,
    progress=_progress_of_telling,
    frame=lambda run, frame: {"frameIndex": frame.index, "frameCount": 1},
)


def _file(name: str) -> set[str]:
    """Return the words of a file that a test writes beside the root."""
    path = Path(os.environ.get("HOUSE", "/nonexistent")) / name
    return set(path.read_text().split()) if path.exists() else set()


def user(request: Any) -> str | None:
    """User hook of a front end beside that of `jobscribe up`. It trusts the request header."""
    said: str | None = request.headers.get("X-User")
    return said


def may(uid: str, api: str, simulation_type: str) -> Refusal | None:
    if uid in _file("expired"):
        return Refusal("planRequired", "your trial has ended")
    if simulation_type == "failing" and uid not in _file("proprietary"):
        return Refusal("forbidden", "you have no licence for this code")
    return None


def admin(uid: str) -> bool:
    return uid in _file("admins")


def plan(uid: str) -> str | None:
    return "premium" if uid in _file("premium") else "free"
