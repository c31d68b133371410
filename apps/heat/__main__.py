"""The program that a run of `heat` executes: the heat equation on a square plate. A stand-alone
file, copied as `parameters.py`.

Reads in.json. Writes frames/<number>.npy atomically, then a line to history.csv, and its progress
as JSON lines to the file that $JOBSCRIBE_REPORT names. Imports nothing of this package: a
simulation code knows only its run directory.
"""

import json
import os
import sys
import time
from typing import Any

import numpy as np

#: Length of an edge, cm.
EDGE_CM = 10.0
#: Fraction of the largest stable time step.
SAFETY = 0.9
REPORT_SECS = 0.1

Plate = np.ndarray[Any, np.dtype[np.float64]]


def start(size: int, spots: int, temperature: float, seed: int) -> Plate:
    """Return a plate at 0 degC with round hot spots. The same seed gives the same plate."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size] / size
    plate = np.zeros((size, size))
    for _ in range(spots):
        centre_x, centre_y, radius = (
            random.uniform(0.1, 0.9),
            random.uniform(0.1, 0.9),
            random.uniform(0.02, 0.1),
        )
        plate[(x - centre_x) ** 2 + (y - centre_y) ** 2 <= radius**2] = temperature
    return plate


def step(plate: Plate, number: float, *, cold: bool) -> Plate:
    """Compute one explicit step. number: diffusivity * dt / dx**2, at most 1/4. Insulated edges
    pass no heat; cold edges are at 0 degC.
    """
    wide = np.pad(plate, 1, mode="constant" if cold else "edge")
    flow = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:] - 4 * plate
    return np.asarray(plate + number * flow)


class Output:
    """Writes frames, their history and progress reports."""

    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._history = open("history.csv", "w", encoding="ascii", buffering=1)  # noqa: SIM115
        self._history.write("frame,time,mean,maximum\n")
        self._reported = 0.0

    def write(self, index: int, seconds: float, plate: Plate) -> None:
        name = f"frames/{index:05d}.npy"
        with open(f"{name}.new", "wb") as f:
            np.save(f, plate.astype("<f4"))
        os.rename(f"{name}.new", name)
        self._history.write(f"{index},{seconds:.6g},{plate.mean():.6g},{plate.max():.6g}\n")
        sys.stdout.write(
            f"frame {index + 1:5d} of {self._frames}   t = {seconds:.6g} s   highest {plate.max():.6g} degC\n"
        )
        sys.stdout.flush()
        self._report(index + 1)

    def _report(self, count: int) -> None:
        """Report the progress at most every REPORT_SECS, and always at the end."""
        path, now = os.environ.get("JOBSCRIBE_REPORT"), time.monotonic()
        if path is None or (count < self._frames and now - self._reported < REPORT_SECS):
            return
        self._reported = now
        line = (
            json.dumps(
                {
                    "frameCount": count,
                    "frameTotal": self._frames,
                    "percentComplete": round(100 * count / self._frames, 1),
                }
            )
            + "\n"
        )
        with open(path, "ab", buffering=0) as f:
            f.write(line.encode())


def main() -> None:
    with open("in.json", encoding="utf-8") as f:
        given = json.load(f)
    plate = start(given["size"], given["hotSpots"], given["temperature"], given["seed"])
    number = SAFETY / 4
    frame_secs = given["steps"] * number * (EDGE_CM / given["size"]) ** 2 / given["diffusivity"]
    output = Output(given["frames"])
    for index in range(given["frames"]):
        time.sleep(given["paceSecs"])
        for _ in range(given["steps"] if index else 0):
            plate = step(plate, number, cold=given["edge"] == "cold")
        output.write(index, index * frame_secs, plate)
    sys.stdout.write(
        f"{given['frames']} frames, {given['frames'] * frame_secs:.6g} s of the plate\n"
    )


if __name__ == "__main__":
    main()
