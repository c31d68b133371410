"""One turn of one contestant: start it, measure it, stop it. Prints the results as one JSON line.

Runs with the interpreter of the contestant: `python turn.py NAME '{"sizes": [1000], ...}'`. NAME is
a module `peer_NAME` with a context manager `start(folder)` that yields a `Contestant` of two slots.
"""

import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from process_tree import adopt_orphans, cpu_secs, end_descendants, pss_mib


class Contestant(Protocol):
    def submit(self) -> Any:
        """Submit `/bin/true`. Return its handle when the submission is acknowledged."""

    def bulk(self, n: int) -> list[Any]:
        """Submit `/bin/true` n times by the fastest documented way. Return the handles."""

    def wait(self, handles: list[Any]) -> None:
        """Return when all of them have ended."""

    def check(self) -> None:
        """Raise if a command has failed. Not part of a measurement."""


def measure(contestant: Contestant, sizes: list[int], single: int, latencies: int) -> Any:
    contestant.wait([contestant.submit() for _ in range(4)])  # all slots are warm now
    bulk = {n: _rate(n, lambda n=n: contestant.wait(contestant.bulk(n))) for n in sizes}
    one_by_one = _rate(
        single, lambda: contestant.wait([contestant.submit() for _ in range(single)])
    )
    acknowledged, done = [], []
    for _ in range(latencies):
        began = time.perf_counter()
        handle = contestant.submit()
        acknowledged.append((time.perf_counter() - began) * 1000)
        contestant.wait([handle])
        done.append((time.perf_counter() - began) * 1000)
    contestant.check()
    return {
        "bulk": bulk,
        "oneByOne": one_by_one,
        "acknowledgedMs": acknowledged,
        "doneMs": done,
        "pssMib": pss_mib(),
    }


def _rate(n: int, action: Callable[[], None]) -> Any:
    """Return jobs per second, and the CPU milliseconds per job of each process."""
    before, began = cpu_secs(), time.perf_counter()
    action()
    secs, after = time.perf_counter() - began, cpu_secs()
    cpu = {title: (after[title] - before[title]) * 1000 / n for title in before | after}
    return {"rate": n / secs, "cpuMs": sum(cpu.values()), "cpuMsOf": cpu}


def main() -> None:
    name, plan = sys.argv[1], json.loads(sys.argv[2])
    # programs below print what they like; the result goes to the real stdout
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-", ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        try:
            with importlib.import_module(f"peer_{name}").start(Path(folder)) as contestant:
                print(json.dumps(measure(contestant, **plan)), file=out, flush=True)
        except BaseException:
            traceback.print_exc()
        finally:
            end_descendants()
    # the library of a peer may wait at the end for servers that are gone
    os._exit(0)


if __name__ == "__main__":
    main()
