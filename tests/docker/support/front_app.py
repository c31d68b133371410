"""An app that reports its machine (a container reports its id) and its unix user, and a site hook.

It is installed in the image, like a site's own apps, and in the front end.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from jobscribe.apps.app import (
    App,
    AppError,
    Data,
    Field,
    Frame,
    Model,
    Prepared,
    Report,
    Run,
    checked,
)

MODELS = (
    Model(
        name="walkAnimation",
        title="Walk",
        kind="parallel",
        reports=(Report(name="walkAnimation", title="Walk", picture="curves"),),
        fields=(
            Field(name="file", title="File of the library", default=""),
            Field(name="frames", title="Frames", default=3),
        ),
    ),
    Model(
        name="lookReport",
        title="Look",
        kind="sequential",
        reports=(Report(name="lookReport", title="Look", picture="curves"),),
        fields=(Field(name="file", title="File of the library", default=""),),
    ),
)

_PROGRAM = """
import json, os, time
given = json.load(open("in.json"))
def frame(number):
    with open("frame.new", "w") as f:
        json.dump({"number": number, "content": given["content"]}, f)
    os.rename("frame.new", f"frame{number}.json")
    with open(os.environ["JOBSCRIBE_REPORT"], "a") as report:
        report.write(json.dumps({"frameCount": number + 1}) + "\\n")
for number in range(given["frames"]):
    frame(number)
print("waits", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
frame(given["frames"])
print("is over")
"""


def _given(data: Data, name: str) -> dict[str, Any]:
    return checked(data, next(m for m in MODELS if m.name == name))


def _here() -> dict[str, Any]:
    return {"node": os.uname().nodename, "unix": os.getuid()}


def _prepare(run: Run) -> Prepared:
    given = _given(run.data, run.model)
    given["content"] = (run.lib / given["file"]).read_text() if given["file"] else ""
    (run.run_dir / "in.json").write_text(json.dumps(given))
    return Prepared(
        command=(sys.executable, "-c", "pass" if run.model == "lookReport" else _PROGRAM)
    )


def _result(run: Run) -> Any:
    return {
        "plots": [],
        "content": json.loads((run.run_dir / "in.json").read_text())["content"],
        **_here(),
    }


def _frame(run: Run, asked: Frame) -> Any:
    try:
        found = json.loads((run.run_dir / f"frame{asked.index}.json").read_text())
    except FileNotFoundError:
        raise AppError(f"frame {asked.index} is not there") from None
    return {
        "frameIndex": asked.index,
        "frameCount": len(list(run.run_dir.glob("frame*.json"))),
        "title": "walk",
        **found,
        **_here(),
    }


def _keep(lib: Path, args: Data) -> Any:
    lib.mkdir(parents=True, exist_ok=True)
    (lib / "kept.txt").write_text(str(args["text"]))
    return _here()


app = App(
    name="walk",
    title="Walk",
    version="1",
    models=MODELS,
    parameters=_given,
    prepare=_prepare,
    result=_result,
    frame=_frame,
    downloads=lambda run: ("in.json",),
    download=lambda run, suffix: "in.json",
    lib_files=lambda data: tuple(f for f in (_given(data, str(data["report"]))["file"],) if f),
    analysis={"where": lambda run, args: _here()},
    stateful={"keep": _keep},
    stateless={"where": lambda args: _here()},
)


def plan(uid: str) -> str:
    """Return a plan without stored runs for users listed in a file that a test writes."""
    path = Path(os.environ["FRONT_PLACE"]) / "free"
    return "free" if path.exists() and uid in path.read_text().split() else "kept"
