"""The process that reads the facts: what is given comes in as JSON on standard input, and each
check's facts leave as a line of JSON.

Each is read in a thread of its own; whoever waits for one that hangs (a disk, a driver) ends this
whole process.
"""

import json
import os
import sys
import threading

from .check_table import CHECKS
from .findings import Facts


def main() -> None:
    given: Facts = json.load(sys.stdin)
    lock = threading.Lock()
    # what libraries print must not come between the lines
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def look(name: str) -> None:
        try:
            answer: Facts = {"check": name, "facts": CHECKS[name].read(given)}
        except Exception as e:  # whatever one of them may meet: the others are told all the same
            answer = {"check": name, "error": f"{type(e).__name__}: {e}"}
        with lock:
            out.write(json.dumps(answer) + "\n")
            out.flush()

    threads = [threading.Thread(target=look, args=(name,), daemon=True) for name in given["checks"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
