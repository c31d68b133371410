"""The functions of the app `heat`: prepare a run, read its frames and curves, an analysis,
downloads.

Needs no numpy: the program's files have a simple format, and frames are read in processes that must
start fast.
"""

import csv
import importlib.util
import json
import os
import re
import sys
from array import array
from math import floor
from pathlib import Path
from typing import Any

from ..app import App, AppError, Data, Field, Frame, Model, Prepared, Report, Run, checked

#: Maximum number of rows and columns of a picture. A finer plate is subsampled, so that a frame
#: stays small.
SHOWN = 160
HISTORY, FRAMES = "history.csv", "frames"

MODEL = Model(
    name="heatAnimation",
    title="Heat in a plate",
    kind="parallel",
    fields=(
        Field(name="size", title="Cells along each edge", default=100, minimum=10, maximum=1000),
        Field(name="frames", title="Frames", default=100, minimum=1, maximum=5000),
        Field(name="steps", title="Time steps a frame", default=20, minimum=1, maximum=100_000),
        Field(
            name="diffusivity",
            title="Thermal diffusivity",
            default=1.1,
            minimum=0.001,
            maximum=20.0,
            unit="cm2/s",
        ),
        Field(
            name="edge",
            title="Edge of the plate (10 cm)",
            default="insulated",
            choices=("insulated", "cold"),
        ),
        Field(name="hotSpots", title="Hot spots", default=5, minimum=0, maximum=100),
        Field(
            name="temperature",
            title="Temperature of a hot spot",
            default=100.0,
            minimum=-273.15,
            maximum=5000.0,
            unit="degC",
        ),
        Field(
            name="seed",
            title="Seed that places the hot spots",
            default=1,
            minimum=0,
            maximum=2**31 - 1,
        ),
        Field(
            name="paceSecs",
            title="Pause before each frame, to watch it",
            default=0.0,
            minimum=0.0,
            maximum=60.0,
            unit="s",
        ),
    ),
    reports=(
        Report(name="heatAnimation", title="Temperature of the plate", picture="heatmap"),
        Report(name="temperatureAnimation", title="Mean and highest temperature", picture="curves"),
    ),
)
_HEADER = re.compile(
    rb"\{'descr': '<f4', 'fortran_order': False, 'shape': \((\d+), (\d+)\), \} *\n"
)


def parameters(data: Data, model: str) -> Data:
    return checked(data, MODEL)


def prepare(run: Run) -> Prepared:
    given = checked(run.data, MODEL)
    if importlib.util.find_spec("numpy") is None:
        raise AppError(
            "heat needs numpy on the machine of its jobs: pip install 'jobscribe[heat]', or install numpy in the container image"
        )
    (run.run_dir / FRAMES).mkdir()
    (run.run_dir / "in.json").write_text(json.dumps(given, indent=1) + "\n", encoding="utf-8")
    (run.run_dir / "parameters.py").write_bytes(
        Path(__file__).with_name("__main__.py").read_bytes()
    )
    # the plates are small, so threads would slow the program down
    return Prepared(
        command=(sys.executable, "-P", "parameters.py"),
        env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


def frame(run: Run, asked: Frame) -> Any:
    history = _history(run)
    if not 0 <= asked.index < len(history):
        raise AppError(
            f"frame {asked.index} does not exist; there are {len(history)} so far, numbered from 0"
        )
    position = {"frameIndex": asked.index, "frameCount": len(history)}
    match asked.report:
        case "heatAnimation":
            return position | _heatmap(run, asked.index, history)
        case "temperatureAnimation":
            return position | _curves(history[: asked.index + 1])
        case other:
            raise AppError(
                f"heat has no report {other!a}; the reports are: {', '.join(r.name for r in MODEL.reports)}"
            )


def hottest(run: Run, args: Data) -> Any:
    """Analysis: return the highest and the highest mean temperature, each with its time."""
    history = _history(run)
    if not history:
        raise AppError("there are no frames yet")
    return {quantity: _highest(history, i) for i, quantity in ((2, "mean"), (3, "maximum"))}


def download(run: Run, suffix: str) -> str:
    if suffix in ("", "csv", HISTORY):
        return HISTORY
    if suffix != "npy":
        raise AppError(
            f"there is no download {suffix!a}; the downloads are: csv (temperatures over time), npy (the last frame)"
        )
    history = _history(run)
    if not history:
        raise AppError("there are no frames yet")
    return f"{FRAMES}/{_name(len(history) - 1)}"


# ---- files of the program


def _name(index: int) -> str:
    return f"{index:05d}.npy"


def _history(run: Run) -> list[tuple[float, ...]]:
    """Return (frame, time, mean, maximum) of every frame. A line is written after its frame; an
    incomplete last line is ignored.
    """
    try:
        text = (run.run_dir / HISTORY).read_text(encoding="ascii")
    except FileNotFoundError:
        return []
    lines = text[: text.rfind("\n") + 1].splitlines()[1:]
    return [tuple(float(v) for v in row) for row in csv.reader(lines)]


def _highest(history: list[tuple[float, ...]], column: int) -> dict[str, float]:
    row = max(history, key=lambda r: r[column])
    return {"temperature": row[column], "time": row[1], "frame": int(row[0])}


def _curves(history: list[tuple[float, ...]]) -> dict[str, Any]:
    _, times, mean, maximum = (list(column) for column in zip(*history, strict=True))
    return {
        "title": "Mean and highest temperature",
        "xLabel": "Time [s]",
        "yLabel": "Temperature [degC]",
        "xRange": [times[0], times[-1]],
        "x": times,
        "plots": [
            {"label": "Mean [degC]", "points": mean},
            {"label": "Highest [degC]", "points": maximum},
        ],
    }


def _heatmap(run: Run, index: int, history: list[tuple[float, ...]]) -> dict[str, Any]:
    size, values = _plate(run.run_dir / FRAMES / _name(index))
    step = -(-size // SHOWN)
    # three times as fast as round(v, 2), which takes most of the time of a frame
    rows = [
        [floor(v * 100 + 0.5) / 100 for v in values[y * size : (y + 1) * size : step]]
        for y in range(0, size, step)
    ]
    edge = [0.0, 10.0, len(rows)]
    top = max(history[0][3], 0.0)
    return {
        "title": f"t = {history[index][1]:g} s",
        "xLabel": "x [cm]",
        "yLabel": "y [cm]",
        "zLabel": "Temperature [degC]",
        "xRange": edge,
        "yRange": edge,
        "zMatrix": rows,
        "zRange": [min(0.0, *(min(r) for r in rows)), top],
    }


def _plate(path: Path) -> "tuple[int, array[float]]":
    """Read a .npy file of the program: (cells along an edge, temperatures row by row)."""
    data = path.read_bytes()
    end = 10 + int.from_bytes(data[8:10], "little")
    header = _HEADER.fullmatch(data[10:end])
    values = array("f")
    if (
        header is None
        or data[:8] != b"\x93NUMPY\x01\x00"
        or len(data) - end != int(header[1]) * int(header[2]) * values.itemsize
    ):
        raise AppError(f"{os.path.basename(path)} is not a frame that heat has written")
    values.frombytes(data[end:])
    if sys.byteorder == "big":
        values.byteswap()
    return int(header[1]), values


app = App(
    name="heat",
    title="Heat in a plate",
    version="1",
    models=(MODEL,),
    parameters=parameters,
    prepare=prepare,
    frame=frame,
    downloads=lambda run: (HISTORY,) if (run.run_dir / HISTORY).exists() else (),
    download=download,
    analysis={"hottest": hottest},
)
