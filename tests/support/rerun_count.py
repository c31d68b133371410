"""Count the repeated tests of a whole run: `make test` starts several pytest processes, which append
to one file; this program prints it and fails if there are too many.

Usage: python tests/support/rerun_count.py FILE
"""

import os
import sys
from pathlib import Path

#: Names the file; without it, nothing is counted.
VARIABLE = "TEST_RERUNS"
#: Maximum repeats of a whole run. More of them hide defects or mean that the machine is too busy to
#: test on.
AT_MOST = 3


def add(line: str) -> None:
    """Count one repeat of a test."""
    if path := os.environ.get(VARIABLE):
        with open(path, "a", encoding="utf-8") as file:
            file.write(" ".join(line.split()) + "\n")


def main(path: Path) -> int:
    """Print the repeats; return 1 if there are more than `AT_MOST`, else 0."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    print(f"{len(lines)} repeats of tests in this run, {AT_MOST} are allowed")
    for line in lines:
        print(f"  {line}")
    return int(len(lines) > AT_MOST)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
