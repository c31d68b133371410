"""Run seeds of the simulator by hand: `--seed N` one, `--seeds N` so many, from `--first`."""

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".types"))

from simulator import Violation, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.seeds)
    total: Counter[str] = Counter()
    failed = 0
    for seed in seeds:
        try:
            total += run(seed)
        except Violation as e:
            failed += 1
            print(f"seed {seed}: {e}")
            if args.seed is not None:
                raise
    for what, n in sorted(total.items()):
        print(f"{n:6d}  {what}")
    print(f"{len(seeds)} seeds, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
