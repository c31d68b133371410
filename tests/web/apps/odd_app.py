"""An app that breaks the rules for apps if its input requests it. Agents and front ends of these
tests import it.
"""

import json
import os
import sys
import time
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

REPORT = Model(
    name="oddReport",
    title="One answer",
    kind="sequential",
    fields=(
        Field(
            name="answer",
            title="What to answer",
            default="fine",
            choices=("fine", "nan", "huge", "raise", "liar", "list"),
        ),
        Field(name="secs", title="How long it takes", default=0.0),
        Field(name="number", title="Anything", default=1),
    ),
)
MOVIE = Model(
    name="oddAnimation",
    title="Frames",
    kind="parallel",
    fields=(Field(name="secs", title="How long it takes", default=0.0),),
    reports=(
        Report(name="oddAnimation", title="Frames", picture="curves"),
        Report(name="otherAnimation", title="The same", picture="curves"),
    ),
)
MODELS = {m.name: m for m in (REPORT, MOVIE)}
#: Runs for a time, or until a file "go" is in its directory.
PROGRAM = """import os, sys, time
end = time.monotonic() + float(sys.argv[1])
print("odd begins", flush=True)
while time.monotonic() < end and not os.path.exists("go"):
    time.sleep(max(0.0, min(0.05, end - time.monotonic())))
print("odd ends")
"""
LIES = {
    "state": "error",
    "computeJobStart": 0,
    "computeJobSerial": 7,
    "error": "a lie",
    "title": "the truth",
    "nextRequest": "nowhere",
}


def parameters(data: Data, model: str) -> Data:
    given = checked(data, MODELS[model])
    if given.get("number") == 13:
        raise AppError("13 is no number for us")
    if given.get("number") == 14:
        raise KeyError("fourteen")
    return given


def prepare(run: Run) -> Prepared:
    given = checked(run.data, MODELS[run.model])
    for name in lib_files(run.data):
        (run.run_dir / name).write_bytes((run.lib / name).read_bytes())
    return Prepared(command=(sys.executable, "-c", PROGRAM, str(given["secs"])))


def progress(run: Run) -> dict[str, Any]:
    return {**LIES, "frameCount": 3, "percentComplete": 30.0, "words": "as the app says"}


def result(run: Run) -> Any:
    match checked(run.data, REPORT)["answer"]:
        case "nan":
            return {"plots": [{"points": [1.0, float("nan")]}]}
        case "huge":
            return {"text": "x" * (9 * 1024 * 1024)}
        case "raise":
            raise ZeroDivisionError("in result")
        case "liar":
            return LIES
        case "list":
            return [1, 2]
        case _:
            return {"title": "fine", "plots": [{"label": "a", "points": [1, 2]}]}


def frame(run: Run, asked: Frame) -> Any:
    if asked.index > 5:
        raise AppError(f"there is no frame {asked.index} yet")
    return {"title": asked.report, "frameIndex": asked.index, "frameCount": 6, "args": asked.args}


def download(run: Run, suffix: str) -> str:
    """Return a download. big<n>: a file of n bytes; link, up, absolute: paths that lead out of the
    run directory.
    """
    if suffix.startswith("big"):
        path = run.run_dir / f"{suffix}.bin"
        if not path.exists():
            block = bytes(range(256)) * 4096
            with path.open("wb") as f:
                for at in range(0, int(suffix[3:]), len(block)):
                    f.write(block[: int(suffix[3:]) - at])
        return path.name
    if suffix == "slow":
        time.sleep(100)
    if suffix == "link":
        link = run.run_dir / "link"
        if not link.is_symlink():
            link.symlink_to("/etc/passwd")
        return "link"
    if suffix == "page":
        (run.run_dir / 'pagé "1".html').write_text("<script>alert(1)</script>")
        return 'pagé "1".html'
    return {"up": "../../../../../../etc/passwd", "absolute": "/etc/passwd", "nul": "a\0b"}.get(
        suffix, suffix
    )


def lib_files(data: Data) -> tuple[str, ...]:
    name = data.get("models", {}).get("file", "") if isinstance(data.get("models"), dict) else ""
    return (name,) if isinstance(name, str) and name else ()


def _raises(args: Data) -> Any:
    raise ValueError("secret-looking words in here")


def _sleeps(args: Data) -> Any:
    time.sleep(float(args.get("secs", 100)))
    return {"slept": True}


app = App(
    name="odd",
    title="Odd",
    version="1",
    models=(REPORT, MOVIE),
    parameters=parameters,
    prepare=prepare,
    progress=progress,
    result=result,
    frame=frame,
    downloads=lambda run: ("big10",),
    download=download,
    lib_files=lib_files,
    analysis={
        "where": lambda run, args: {
            "files": sorted(p.name for p in run.run_dir.iterdir() if not p.name.startswith("."))
        }
    },
    stateful={
        "library": lambda lib, args: {
            "names": sorted(p.name for p in lib.iterdir()) if Path(lib).exists() else []
        }
    },
    stateless={
        "echo": lambda args: json.loads(json.dumps(args)),
        "raises": _raises,
        "sleeps": _sleeps,
        "huge": lambda args: {"text": "x" * (9 * 1024 * 1024)},
        "exits": lambda args: os._exit(3),
        "nan": lambda args: {"a": [{"b": float("nan")}]},
    },
)
