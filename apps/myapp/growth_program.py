"""The program that a run of `myapp` executes: height and weight of a dog, week by week. A
stand-alone file, copied as `parameters.py`.

Reads in.json and writes growth.json, both in its own directory. Imports nothing of this package: a
simulation code knows only its run directory.
"""

import json
import math
import os
import sys
import time

#: Height and weight of a newborn, as fractions of the grown dog.
NEWBORN_HEIGHT, NEWBORN_WEIGHT = 0.2, 0.015
WEEKS_A_YEAR = 52


def height(week: float, adult: float, weeks_to_grow: float) -> float:
    """Return the height: growth slows down and reaches 95 % at `weeks_to_grow`."""
    rate = -math.log(0.05 / (1 - NEWBORN_HEIGHT)) / weeks_to_grow
    return adult * (1 - (1 - NEWBORN_HEIGHT) * math.exp(-rate * week))


def weight(week: float, adult: float, weeks_to_grow: float) -> float:
    """Return the weight by a Gompertz curve (slow, fast, slow), which reaches 95 % at
    `weeks_to_grow`.
    """
    start = -math.log(NEWBORN_WEIGHT)
    rate = math.log(start / -math.log(0.95)) / weeks_to_grow
    return adult * math.exp(-start * math.exp(-rate * week))


def main() -> None:
    with open("in.json", encoding="utf-8") as f:
        dog = json.load(f)
    time.sleep(dog["paceSecs"])
    # bigger dogs grow for longer
    weeks_to_grow = 30 + 0.5 * dog["adultWeight"]
    weeks = range(round(dog["years"] * WEEKS_A_YEAR) + 1)
    grown: dict[str, list[float]] = {
        "weeks": list(weeks),
        "height": [round(height(w, dog["adultHeight"], weeks_to_grow), 3) for w in weeks],
        "weight": [round(weight(w, dog["adultWeight"], weeks_to_grow), 3) for w in weeks],
    }
    with open("growth.json.new", "w", encoding="utf-8") as f:
        json.dump(grown, f)
    os.rename("growth.json.new", "growth.json")
    sys.stdout.write(
        f"grew for {len(weeks) - 1} weeks to {grown['height'][-1]} cm and {grown['weight'][-1]} kg\n"
    )


if __name__ == "__main__":
    main()
