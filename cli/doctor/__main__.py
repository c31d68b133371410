"""The child process that reads facts. It gets its parameters as JSON on standard input, and prints
the facts of each check as one JSON line.

Each check runs in its own thread. If one hangs (a disk, a driver), the parent ends this process.
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
    # Output of libraries must not mix with the JSON lines.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def read(name: str) -> None:
        try:
            answer: Facts = {"check": name, "facts": CHECKS[name].read(given)}
        except Exception as e:  # one failing check must not affect the others
            answer = {"check": name, "error": f"{type(e).__name__}: {e}"}
        with lock:
            out.write(json.dumps(answer) + "\n")
            out.flush()

    threads = [threading.Thread(target=read, args=(name,), daemon=True) for name in given["checks"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
