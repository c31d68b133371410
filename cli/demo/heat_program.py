"""The demo's computation without LAMMPS: heat spreading over a plate, with numpy. Runs as a job.

Usage: heat_program.py SECONDS. Writes temperature.npy and the means over time, temperature.csv, into
its directory, and prints `<permille> <steps> <mean> <change>` regularly. Must not import this package:
a job has only its own directory.
"""

import sys
import time

import numpy as np


def relax(plate: "np.ndarray", steps: int) -> float:
    """Run `steps` steps of Jacobi's method. Return the largest change of the last step."""
    change = 0.0
    for _ in range(steps):
        new = 0.25 * (plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:])
        change = float(np.abs(new - plate[1:-1, 1:-1]).max())
        plate[1:-1, 1:-1] = new
    return change


def main(secs: float) -> None:
    plate = np.zeros((600, 600))
    plate[0, :] = 100.0
    steps, begun = 0, time.monotonic()
    print("    Done    Steps         Mean       Change", flush=True)
    means = ["step,mean temperature\n"]
    while (passed := time.monotonic() - begun) < secs:
        change = relax(plate, 50)
        steps += 50
        means.append(f"{steps},{plate.mean():.6f}\n")
        print(
            f"{1000 * passed / secs:8.0f} {steps:8d} {plate.mean():12.6f} {change:12.6f}",
            flush=True,
        )
    with open("temperature.csv", "w", encoding="ascii") as file:
        file.writelines(means)
    np.save("temperature.npy", plate)
    print(f"    1000 {steps:8d} {plate.mean():12.6f}  saved temperature.npy", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
