"""Fair share: three users with 10,000, 100 and 1 runs on two slots of one supervisor.

`python tests/bench/fair_bench.py` prints who ran when, and how long each user waited for the first
start; asserts nothing. The first user's runs are queued before the others submit. Part of `make
bench`.
"""

import argparse
import time
from collections import Counter
from typing import Any

from supervisor_process import SupervisorProcess, req_id, spec

SLOTS, WIDTH, PAGE = 2, 60, 1_000
USERS = {"flood001": 10_000, "modest01": 100, "single01": 1}


def submitted(site: SupervisorProcess, uid: str, count: int, secs: float) -> float:
    """Submit all runs of a user. Return the wall time of the request."""
    began = time.time()
    runs = [spec(["sleep", f"{secs:g}"], uid) for _ in range(count)]
    for start in range(0, count, PAGE):
        site.post("run-many", reqId=req_id(), runs=runs[start : start + PAGE])
    return began


def rows(site: SupervisorProcess, uid: str) -> list[dict[str, Any]]:
    """Return all jobs of a user."""
    out: list[dict[str, Any]] = []
    more: dict[str, Any] = {}
    while True:
        page = site.post("job-list", uid=uid, limit=PAGE, **more)
        out += page["jobs"]
        if page["next"] is None:
            return out
        more = {"before": page["next"]}


def plot(starts: dict[str, list[float]], first: float, last: float) -> None:
    """Print how many runs of each user started in each part of the time."""
    print(f"runs started in each {(last - first) / WIDTH:.2f} s (.: none, 1 to 9, #: 10 or more)")
    for uid, at in starts.items():
        counts = Counter(int((t - first) / (last - first) * WIDTH) for t in at if first <= t < last)
        line = (str(n) if n < 10 else "#" for n in (counts[i] for i in range(WIDTH)))
        print(f"{uid:>10} {''.join(c if c != '0' else '.' for c in line)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secs", type=float, default=0.1, help="run time of each run")
    secs = parser.parse_args().secs
    site = SupervisorProcess((f"slots.local_sequential={SLOTS}", "slots.op_run=2"))
    try:
        site.start()
        at = {uid: submitted(site, uid, count, secs) for uid, count in USERS.items()}
        others = [uid for uid in USERS if uid != "flood001"]
        while any(site.post("job-list", uid=uid, active=True)["jobs"] for uid in others):
            time.sleep(0.5)
        starts = {
            uid: sorted(r["startedAt"] for r in rows(site, uid) if r["startedAt"]) for uid in USERS
        }
        last = max(starts["modest01"][-1], starts["single01"][-1]) + 1.0
        plot(starts, at["modest01"] - 1.0, last)
        for uid, count in USERS.items():
            print(
                f"{uid}: {count} runs, first start {starts[uid][0] - at[uid]:.2f} s after its request"
            )
        mine = [t for t in starts["flood001"] if at["modest01"] < t < starts["modest01"][-1]]
        print(
            f"while modest01 waited, flood001 started {len(mine)} runs and modest01 {len(starts['modest01'])}"
        )
    finally:
        site.end()


if __name__ == "__main__":
    main()
