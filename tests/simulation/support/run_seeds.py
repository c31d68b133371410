"""Run seeds of the simulator: `--seed N` runs one (with `--trace`, step by step); `--seeds N` runs
N seeds from `--first` on, in `--jobs` processes. `--supervisors several` gives each life 2 or 3 of them;
by default the seed decides.
"""

import argparse
import concurrent.futures
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator

from sim_coverage import never_happened
from simulator import Violation, run

#: Number of seeds per process and batch.
SLICE = 20
#: With this number of seeds, everything in `sim_coverage` must have happened.
ENOUGH = 300
#: Number of failures to print; the others are only counted.
SHOWN = 10


def one(seed: int, *, trace: bool, several: bool | None) -> int:
    try:
        lived = run(seed, print if trace else None, several=several)
    except Violation as e:
        print(f"seed {seed}: {e}")
        return 1
    print(f"seed {seed}: {lived.steps} steps, log {lived.digest}")
    return 0


def slice_of(first: int, count: int, several: bool | None) -> tuple[Counter[str], list[str], int]:
    """Return the counted events of these lives, the violations, and the number of steps."""
    total: Counter[str] = Counter()
    broken, steps = [], 0
    for seed in range(first, first + count):
        try:
            lived = run(seed, several=several)
        except Violation as e:
            broken.append(f"seed {seed}: {e}")
        else:
            total += lived.happened
            steps += lived.steps
    return total, broken, steps


def in_processes(
    first: int, count: int, jobs: int, several: bool | None
) -> Iterator[tuple[Counter[str], list[str], int]]:
    slices = [
        (n, min(SLICE, first + count - n), several) for n in range(first, first + count, SLICE)
    ]
    if jobs == 1:
        yield from (slice_of(*s) for s in slices)
        return
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(slice_of, *zip(*slices, strict=True))


def many(first: int, count: int, jobs: int, several: bool | None) -> int:
    began = time.monotonic()
    total: Counter[str] = Counter()
    failed = steps = done = 0
    for happened, broken, walked in in_processes(first, count, jobs, several):
        total += happened
        steps += walked
        done += SLICE
        for sentence in broken[: max(0, SHOWN - failed)]:
            print(sentence, flush=True)
        failed += len(broken)
        if done % 1000 == 0 and done < count:
            print(
                f"... {done} seeds, {failed} failed, {time.monotonic() - began:.0f} s", flush=True
            )
    for what, n in sorted(total.items()):
        print(f"{n:8d}  {what}")
    missing = never_happened(total) if count >= ENOUGH else []
    if missing:
        print("never happened: " + "; ".join(missing))
    print(
        f"{count} seeds from {first}, {steps} steps, {failed} failed, {time.monotonic() - began:.1f} s"
    )
    return 1 if failed or missing else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--supervisors", choices=("one", "several"))
    args = parser.parse_args()
    several = None if args.supervisors is None else args.supervisors == "several"
    if args.seed is not None:
        return one(args.seed, trace=args.trace, several=several)
    return many(args.first, args.seeds, max(1, args.jobs), several)


if __name__ == "__main__":
    sys.exit(main())
