"""The page data of a run: the atoms of one frame, and curves of the log up to that frame.

A frame never changes once it exists, because pages and proxies cache it. So a curve ends at the
time step of its own frame.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jobscribe.apps.app import AppError, Frame, Run

from . import dump, thermo
from .decks import COLUMNS, Deck
from .rewriting import Values

#: Maximum number of atoms and rows, so that a reply stays below 250 KB.
MOST_ATOMS, MOST_ROWS = 11_000, 4_000


def available(folder: Path, known: int, every: int) -> int:
    """Return how many of the `known` frames are available. LAMMPS writes the positions of a step
    before its row of the log.
    """
    last = dump.frame(folder, known - 1)
    return known if last is None or _logged(folder, last.step, every) else known - 1


def frame(run: Run, asked: Frame, deck: Deck, values: Values) -> dict[str, Any]:
    """Return the page data of a frame. Raises AppError for a frame that does not exist."""
    span = dump.frame(run.run_dir, asked.index)
    if span is None or not _logged(run.run_dir, span.step, int(values["thermoEvery"])):
        frames = dump.count(run.run_dir)
        raise AppError(f"frame {asked.index} does not exist (yet): there are {frames} frames")
    if asked.report in deck.coloured:
        picture = _atoms(run.run_dir, span, deck, values, *deck.coloured[asked.report])
    else:
        title, usual = deck.curves[asked.report]
        picture = curves(
            f"{title} until step {span.step}",
            thermo.rows(run.run_dir, span.step),
            columns(asked.args.get("columns"), usual),
        )
    return picture | {"frameIndex": asked.index, "frameCount": dump.count(run.run_dir)}


def curves(title: str, rows: Iterable[tuple[float, ...]], columns: Sequence[str]) -> dict[str, Any]:
    """Return these columns over the step."""
    at = [list(COLUMNS).index(c) for c in columns]
    picked = [(int(row[0]), *(row[n] for n in at)) for row in rows]
    finite = [row for row in picked if all(math.isfinite(v) for v in row)]
    stride = max(1, -(-len(finite) // MOST_ROWS))
    notes = _notes(stride, "row", len(picked) - len(finite))
    shown = finite[::stride]
    steps = [row[0] for row in shown]
    return {
        "title": title + notes,
        "xLabel": "step",
        "xRange": [steps[0], steps[-1]] if steps else [0, 0],
        "x": steps,
        "plots": [
            {"label": COLUMNS[c], "points": [row[n] for row in shown]}
            for n, c in enumerate(columns, 1)
        ],
    }


def _atoms(
    folder: Path, span: dump.Span, deck: Deck, values: Values, label: str, column: str
) -> dict[str, Any]:
    snapshot = dump.read(folder, span, MOST_ATOMS)
    places = list(
        zip(snapshot.column("x"), snapshot.column("y"), snapshot.column(column), strict=True)
    )
    finite = [
        p for p in places if math.isfinite(p[0]) and math.isfinite(p[1]) and math.isfinite(p[2])
    ]
    notes = _notes(snapshot.stride, "atom", len(places) - len(finite))
    first = dump.box(folder)
    return {
        "title": f"{label}, step {span.step}{notes}",
        "xLabel": "x / sigma",
        "yLabel": "y / sigma",
        "xRange": _outer(snapshot.x, first[0]),
        "yRange": _outer(snapshot.y, (first[1][0], first[1][1] + deck.lift(values))),
        "x": [round(p[0], 2) for p in finite],
        "y": [round(p[1], 2) for p in finite],
        "value": [int(p[2]) if column == "type" else round(p[2], 3) for p in finite],
        "valueLabel": label,
    }


def _logged(folder: Path, step: int, every: int) -> bool:
    """Return whether the log has reached the row of this step, if the step has a row."""
    last = thermo.last_step(folder)
    return last is not None and last >= step - step % every


def _outer(one: tuple[float, float], other: tuple[float, float]) -> list[float]:
    """Return a range that contains both, so that the picture of a growing box does not jump."""
    low, high = min(one[0], other[0]), max(one[1], other[1])
    return [math.floor(low * 100) / 100, math.ceil(high * 100) / 100]


def _notes(stride: int, noun: str, odd: int) -> str:
    notes = [f"1 of {stride} {noun}s shown"] if stride > 1 else []
    notes += [f"{odd} {noun}{'s' * (odd > 1)} without a number left out"] if odd else []
    return f" ({', '.join(notes)})" if notes else ""


def columns(asked: Any, usual: Sequence[str]) -> Sequence[str]:
    """Check the names of log columns in a request. Return the usual columns if there are none."""
    names = [c for c in COLUMNS if c != "step"]
    if asked is None:
        return usual
    if not isinstance(asked, list) or not asked or any(c not in names for c in asked):
        raise AppError(f"columns must be a list of some of: {', '.join(names)}")
    return asked
