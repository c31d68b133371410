"""Compare jobscribe with its peers and with a bare skeleton, in the same run: `make bench`. Prints
tables; asserts nothing.

Each repeat runs every contestant once, one after the other, so that the load of the machine affects
all of them. Every figure is the median of the repeats. Peers run in an environment of their own
(etc/engines/peers.sh); a contestant that cannot run is named with the reason.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fresh_disk import fresh_disk

HERE = Path(__file__).resolve().parent
PEERS = HERE.parents[1] / "build" / "bench-peers"
#: Contestants, and whether a submission is acknowledged by more than the client itself.
ACKNOWLEDGES = {
    "jobscribe": True,
    "skeleton": True,
    "hyperqueue": True,
    "celery": True,
    "rq": True,
    "dask": False,
    "parsl": False,
}
OWN = ("jobscribe", "skeleton")
#: References of the goals, and the factor by which each multiplies the reference's speed.
GOALS = {"hyperqueue": 1.0, "skeleton": 0.5, "celery": 1.0}
TURN_SECS = 600


class Measure(NamedTuple):
    """rising: larger values are better."""

    what: str
    unit: str
    rising: bool
    value: Callable[[Any], float]


def measures(plan: dict[str, Any]) -> list[Measure]:
    def p99(values: list[float]) -> float:
        return sorted(values)[int(0.99 * (len(values) - 1))]

    out = []
    for n in plan["sizes"]:
        turn: Callable[[Any], Any] = lambda r, n=str(n): r["bulk"][n]
        out += [
            Measure(f"bulk of {n:,}", "/s", True, lambda r, turn=turn: turn(r)["rate"]),
            Measure(
                f"CPU per job, bulk of {n:,}", " ms", False, lambda r, turn=turn: turn(r)["cpuMs"]
            ),
        ]
    single, times = plan["single"], plan["latencies"]
    return [
        *out,
        Measure(f"{single:,} one by one", "/s", True, lambda r: r["oneByOne"]["rate"]),
        Measure("CPU per job, one by one", " ms", False, lambda r: r["oneByOne"]["cpuMs"]),
        Measure(
            f"submit to done, median of {times}",
            " ms",
            False,
            lambda r: statistics.median(r["doneMs"]),
        ),
        Measure("submit to done, p99", " ms", False, lambda r: p99(r["doneMs"])),
        Measure(
            "acknowledged, median", " ms", False, lambda r: statistics.median(r["acknowledgedMs"])
        ),
        Measure("memory (PSS) then", " MiB", False, lambda r: sum(r["pssMib"].values())),
    ]


def take_turn(name: str, plan: dict[str, Any], *, fresh: bool) -> dict[str, Any] | str:
    """Return the results of one turn, or the reason why there are none. fresh: on a new disk."""
    python = Path(sys.executable) if name in OWN else PEERS / "bin" / "python"
    if not python.exists():
        return f"{PEERS} is missing: run etc/engines/peers.sh install"
    path = f"{HERE}:" + os.environ.get("PYTHONPATH", "") if name in OWN else ""
    with contextlib.ExitStack() as after:
        place = {"TMPDIR": str(after.enter_context(fresh_disk()))} if fresh else {}
        process = subprocess.Popen(
            [python, HERE / "peers" / "turn.py", name, json.dumps(plan)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **place, "PYTHONPATH": path},
        )
        try:
            said, errors = process.communicate(timeout=TURN_SECS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it ends its processes
            process.communicate()
            return f"no result within {TURN_SECS} s"
    if not said:
        return (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    result: dict[str, Any] = json.loads(said)
    return result


def take_turns(
    names: Sequence[str], plan: dict[str, Any], repeats: int, *, fresh: bool
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Return the results of each contestant, and the reasons of contestants without a result."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    failed: dict[str, str] = {}
    for repeat in range(repeats):
        for name in [n for n in names if n not in failed]:
            began = time.perf_counter()
            result = take_turn(name, plan, fresh=fresh)
            if isinstance(result, str):
                failed[name] = f"{result} (repeat {repeat + 1})"
            else:
                results[name].append(result)
            print(
                f"repeat {repeat + 1} of {repeats}: {name}, {time.perf_counter() - began:.0f} s,"
                f" load {os.getloadavg()[0]:.1f}" + (f": {failed.get(name)}" * (name in failed)),
                file=sys.stderr,
                flush=True,
            )
    return {name: turns for name, turns in results.items() if turns}, failed


def comparison(results: dict[str, list[dict[str, Any]]], plan: dict[str, Any]) -> None:
    goals = {name: factor for name, factor in GOALS.items() if name in results}
    heads = [f"to {name if f == 1 else f'{f} of {name}'}" for name, f in goals.items()]
    print("| measurement |", " | ".join([*heads, *results]), "|")
    print("| --- |" + " --- |" * (len(heads) + len(results)))
    for measure in measures(plan):
        values = {
            name: statistics.median(map(measure.value, turns)) for name, turns in results.items()
        }
        if measure.what.startswith("acknowledged"):
            values = {name: v for name, v in values.items() if ACKNOWLEDGES[name]}
        print(f"| {measure.what} |", end="")
        ours = values.get("jobscribe")
        for name, factor in goals.items():
            if ours and values.get(name):
                ratio = ours / values[name] if measure.rising else values[name] / ours
                print(f" {ratio / factor:.2f} |", end="")
            else:
                print(" |", end="")
        for name in results:
            value = values.get(name)
            text = "-" if value is None else f"{value:.{0 if value >= 100 else 1}f}{measure.unit}"
            print(f" {text} |", end="")
        print(flush=True)


def where_it_goes(turns: list[dict[str, Any]], plan: dict[str, Any]) -> None:
    """Print the CPU time per job and the memory of each process of jobscribe."""
    columns = {
        f"CPU per job, bulk of {n:,}": [t["bulk"][str(n)]["cpuMsOf"] for t in turns]
        for n in plan["sizes"]
    }
    columns["one by one"] = [t["oneByOne"]["cpuMsOf"] for t in turns]
    memory = [t["pssMib"] for t in turns]
    titles = sorted({title for column in columns.values() for cpu in column for title in cpu})
    print("\n| process of jobscribe |", " | ".join([*columns, "memory (PSS) then"]), "|")
    print("| --- |" + " --- |" * (len(columns) + 1))
    for title in titles:
        shown = "job processes, and others that exited" if title == "exited" else title
        cells = [
            f"{statistics.median(cpu.get(title, 0.0) for cpu in column):.2f} ms"
            for column in columns.values()
        ]
        pss = statistics.median(m.get(title, 0.0) for m in memory)
        print(f"| {shown} |", " | ".join([*cells, f"{pss:.1f} MiB" if pss else ""]), "|")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare jobscribe with its peers.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--sizes", default="1000,10000", help="bulk sizes (default: %(default)s)", metavar="N,N"
    )
    parser.add_argument(
        "--only", help=f"some contestants of {', '.join(ACKNOWLEDGES)}", metavar="NAME,NAME"
    )
    parser.add_argument("--quick", action="store_true", help="1 repeat, bulk of 300")
    parser.add_argument(
        "--fresh-disk", action="store_true", help="each turn on a new ext4 with a journal (root)"
    )
    parser.add_argument("--json", type=Path, help="write all results to a file", metavar="FILE")
    given = parser.parse_args()
    given.only = given.only.split(",") if given.only else list(ACKNOWLEDGES)
    if unknown := [name for name in given.only if name not in ACKNOWLEDGES]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(ACKNOWLEDGES)}")
    return given


def main() -> None:
    given = arguments()
    plan: dict[str, Any] = {
        "sizes": [int(n) for n in given.sizes.split(",")],
        "single": 1000,
        "latencies": 300,
    }
    if given.quick:
        given.repeats, plan = 1, {"sizes": [300], "single": 300, "latencies": 50}
    where = ", a new ext4 for each turn" if given.fresh_disk else ""
    head = f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, 2 slots, `/bin/true`, median of {given.repeats}{where}"
    load = os.getloadavg()[0]
    results, failed = take_turns(given.only, plan, given.repeats, fresh=given.fresh_disk)
    print(f"{head}, load {load:.1f} before and {os.getloadavg()[0]:.1f} after.")
    print(
        "Ratios are speed to the reference of a goal: 1 or more meets it. CPU and memory are those of"
        " all processes, the client included.\n"
    )
    comparison(results, plan)
    if "jobscribe" in results:
        where_it_goes(results["jobscribe"], plan)
    for name, reason in failed.items():
        print(f"\nnot measured: {name}: {reason}")
    print(flush=True)
    if given.json:
        given.json.write_text(json.dumps({"plan": plan, "results": results, "failed": failed}))


if __name__ == "__main__":
    main()
