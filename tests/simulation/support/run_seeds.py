"""Run seeds of the simulator: `--seed N` runs one (with `--trace`, step by step); `--seeds N` runs
N seeds from `--first` on, in `--jobs` processes.
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


def one(seed: int, *, trace: bool) -> int:
    try:
        lived = run(seed, print if trace else None)
    except Violation as e:
        print(f"seed {seed}: {e}")
        return 1
    print(f"seed {seed}: {lived.steps} steps, log {lived.digest}")
    return 0


def several(first: int, count: int) -> tuple[Counter[str], list[str], int]:
    """Return the counted events of these lives, the violations, and the number of steps."""
    total: Counter[str] = Counter()
    broken, steps = [], 0
    for seed in range(first, first + count):
        try:
            lived = run(seed)
        except Violation as e:
            broken.append(f"seed {seed}: {e}")
        else:
            total += lived.happened
            steps += lived.steps
    return total, broken, steps


def in_processes(
    first: int, count: int, jobs: int
) -> Iterator[tuple[Counter[str], list[str], int]]:
    slices = [(n, min(SLICE, first + count - n)) for n in range(first, first + count, SLICE)]
    if jobs == 1:
        yield from (several(*s) for s in slices)
        return
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(several, *zip(*slices, strict=True))


def many(first: int, count: int, jobs: int) -> int:
    began = time.monotonic()
    total: Counter[str] = Counter()
    failed = steps = done = 0
    for happened, broken, walked in in_processes(first, count, jobs):
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
    args = parser.parse_args()
    if args.seed is not None:
        return one(args.seed, trace=args.trace)
    return many(args.first, args.seeds, max(1, args.jobs))


if __name__ == "__main__":
    sys.exit(main())
