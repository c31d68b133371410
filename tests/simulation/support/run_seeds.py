"""Run seeds of the simulator: `--seed N` runs one (with `--trace`, step by step); `--seeds N` runs
N seeds from `--first` on, in `--jobs` processes. `--supervisors several` gives each life 2 to 5 of them,
and `--number` a certain number; by default the seed decides.
"""

import argparse
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import NamedTuple

from sim_coverage import never_happened
from sim_site import NUMBERS
from simulator import Violation, command, run

#: With this number of seeds, everything in `sim_coverage` must have happened.
ENOUGH = 300
#: Number of failures to print; the others are only counted.
SHOWN = 10
#: Longest interval between two lines about the progress, in seconds.
PROGRESS_SECS = 10.0
#: A life takes 0.2 s of processor time, and seldom 1 s: one that takes longer than this has no end.
LIFE_SECS = 60.0
#: Calls shown of a life without an end, the innermost ones.
CALLS = 12


class Result(NamedTuple):
    """One life. secs: of processor time. broken: the violation, with the command that shows it."""

    seed: int
    happened: Counter[str]
    steps: int
    secs: float
    broken: str | None = None


def one(seed: int, *, trace: bool, several: bool | None, number: int | None) -> int:
    try:
        with _ends(seed, several, number):
            lived = run(seed, print if trace else None, several=several, number=number)
    except Violation as e:
        print(f"seed {seed}: {e}")
        return 1
    print(f"seed {seed}: {lived.steps} steps, log {lived.digest}")
    return 0


def result_of(seed: int, several: bool | None, number: int | None) -> Result:
    began = time.process_time()
    broken, happened, steps = None, Counter[str](), 0
    try:
        with _ends(seed, several, number):
            happened, _, steps = run(seed, several=several, number=number)
    except Violation as e:
        broken = f"seed {seed}: {e}"
    return Result(seed, happened, steps, time.process_time() - began, broken)


@contextmanager
def _ends(seed: int, several: bool | None, number: int | None) -> Iterator[None]:
    """Raise Violation in a life that does not end."""

    def endless(_signal: int, frame: FrameType | None) -> None:
        calls = "".join(traceback.format_stack(frame)[-CALLS:])
        raise Violation(
            f"it has not ended after {LIFE_SECS:g} s of processor time, in\n{calls}to see it again: "
            + command(seed, several, number)
        )

    signal.signal(signal.SIGVTALRM, endless)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIFE_SECS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


class Progress:
    """The results so far of many lives."""

    def __init__(self, seeds: range, jobs: int) -> None:
        self.jobs = jobs
        self.total, self.steps, self.failed = Counter[str](), 0, 0
        self.cpu_secs, self.slowest = 0.0, (0.0, seeds.start)
        self.count, self.left = len(seeds), set(seeds)
        self._began = time.monotonic()

    @property
    def secs(self) -> float:
        return time.monotonic() - self._began

    def add(self, result: Result) -> None:
        """Count a life, and print its failure."""
        self.total += result.happened
        self.steps += result.steps
        self.left.discard(result.seed)
        self.cpu_secs += result.secs
        self.slowest = max(self.slowest, (result.secs, result.seed))
        if result.broken is not None:
            self.failed += 1
            if self.failed <= SHOWN:
                print(result.broken, flush=True)

    def times(self) -> str:
        """Return the processor time per life, and the slowest life."""
        mean = self.cpu_secs / max(1, self.count - len(self.left))
        return f"{mean:.2f} s per life, {self.slowest[0]:.2f} s for seed {self.slowest[1]}"

    def tell(self) -> None:
        """Print one line. The oldest seeds of those left are in progress."""
        done, now = self.count - len(self.left), ", ".join(map(str, sorted(self.left)[: self.jobs]))
        print(
            f"... {done} of {self.count} seeds, {self.failed} failed, {self.secs:.0f} s,"
            f" {self.times()}, now {now}",
            flush=True,
        )


def many(seeds: range, jobs: int, every: float, several: bool | None, number: int | None) -> int:
    """Run these lives. every: seconds between two lines about the progress."""
    progress = Progress(seeds, jobs)
    told = 0.0
    # in other processes also with one job: this one tells the progress of a life that takes long
    with multiprocessing.Pool(jobs) as pool:
        results = pool.imap_unordered(partial(result_of, several=several, number=number), seeds)
        while progress.left:
            with suppress(multiprocessing.TimeoutError):
                progress.add(results.next(max(0.01, told + every - progress.secs)))
            if progress.left and progress.secs - told >= every:
                told = progress.secs
                progress.tell()
    for what, n in sorted(progress.total.items()):
        print(f"{n:8d}  {what}")
    missing = never_happened(progress.total) if len(seeds) >= ENOUGH else []
    if missing:
        print("never happened: " + "; ".join(missing))
    print(
        f"{len(seeds)} seeds from {seeds.start}, {progress.steps} steps, {progress.failed} failed,"
        f" {progress.secs:.1f} s, {progress.times()}"
    )
    return 1 if progress.failed or missing else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--every", type=float, default=PROGRESS_SECS)
    parser.add_argument("--supervisors", choices=("one", "several"))
    parser.add_argument("--number", type=int, choices=sorted(set(NUMBERS)))
    args = parser.parse_args()
    several = None if args.supervisors is None else args.supervisors == "several"
    if args.number is not None:
        several = True
    if args.seed is not None:
        return one(args.seed, trace=args.trace, several=several, number=args.number)
    seeds = range(args.first, args.first + args.seeds)
    return many(seeds, max(1, args.jobs), args.every, several, args.number)


if __name__ == "__main__":
    sys.exit(main())
