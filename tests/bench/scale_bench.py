"""Costs of a supervisor by the number of queued runs and of connected agents.

`python tests/bench/scale_bench.py` prints tables; asserts nothing.

The queue belongs to one user. Two runs that wait for a file hold both slots while it is filled and
while the supervisor restarts. The agents are links of the product in this process.
"""

import argparse
import json
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_crowd import Crowd, metrics, settled, snapshots
from known_agents import tell_of_agents
from local_site import pss_mib
from supervisor_process import UID, SupervisorProcess, jid_of, req_id, shell, spec, until

from jobscribe.protocol.ids import AgentKey

CHUNK, FIRST, SAMPLE, PAGES = 10_000, 50, 300, 9
#: Exponent from which growth is superlinear.
LINEAR = 1.2
Costs = dict[str, float]


def cpu_secs(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_at_rest(pid: int) -> float:
    """Return the CPU seconds when records and indexes are written, too."""
    before = -1.0
    while (now := cpu_secs(pid)) - before > 0.02:
        before = now
        time.sleep(0.5)
    return now


def post(site: SupervisorProcess, path: str, **body: Any) -> Any:
    """Like `site.post`, for requests that take minutes."""
    connection = site.connection(timeout=900)
    connection.request(
        "POST", "/api/" + path, json.dumps(body), {"Authorization": "Bearer " + site.token}
    )
    reply = connection.getresponse()
    said = reply.read()
    connection.close()
    if reply.status != 200:
        raise RuntimeError(f"{path}: {reply.status} {said[:1000]!r}")
    return json.loads(said)


def took(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def queue(n: int) -> Costs:
    """Measure a queue of n runs."""
    site = SupervisorProcess(("slots.local_sequential=2",))
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        try:
            return _queue(site.start(), n, Path(folder) / "go")
        finally:
            site.end()


def _queue(site: SupervisorProcess, n: int, go: Path) -> Costs:
    out: Costs = {}
    blockers = [shell(f"while [ ! -e {go} ]; do sleep 0.05; done") for _ in range(2)]
    for run in blockers:
        site.running(_submitted(site, run))
    run = spec(["/bin/true"])
    cpu = cpu_secs(site.pid)
    secs = took(lambda: _fill(site, run, n))
    out["submit, s"] = secs
    out["submit, CPU of the supervisor, s"] = cpu_at_rest(site.pid) - cpu
    _progress(f"{n} runs queued in {secs:.1f} s")
    out["memory (PSS), MiB"] = pss_mib(site.pid)
    pages = [took(lambda: post(site, "job-list", limit=100)) for _ in range(PAGES)]
    out["first page of `job list`, ms"] = statistics.median(pages) * 1000
    pages = [took(lambda: post(site, "job-list", limit=100, uid=UID)) for _ in range(PAGES)]
    out["first page of one user, ms"] = statistics.median(pages) * 1000
    _lag(site, out, "until the restart")
    site.stop()
    out["restart, s"] = took(site.start)
    out["restart, CPU of the supervisor, s"] = cpu_secs(site.pid)
    out["memory (PSS) after the restart, MiB"] = pss_mib(site.pid)
    _progress(f"restarted in {out['restart, s']:.1f} s")
    until(lambda: all(site.status(b)["known"] for b in blockers), "the agent is back", 60)
    go.touch()
    _wait(site, run, FIRST - 1)
    cpu, began = cpu_secs(site.pid), time.perf_counter()
    _wait(site, run, FIRST + SAMPLE - 1)
    out[f"{SAMPLE} completed at this length, jobs/s"] = SAMPLE / (time.perf_counter() - began)
    out["CPU of the supervisor per completed job, ms"] = (cpu_secs(site.pid) - cpu) * 1000 / SAMPLE
    group = {"uid": UID, "simulationId": run["simulationId"]}
    cpu = cpu_secs(site.pid)
    out["cancel --group, s"] = took(lambda: post(site, "group-cancel", reqId=req_id(), **group))
    while not post(site, "job-group", **group, limit=0, waitSecs=10)["over"]:
        pass
    out["cancel --group, CPU of the supervisor, s"] = cpu_at_rest(site.pid) - cpu
    _lag(site, out, "from the restart on")
    return out


def _lag(site: SupervisorProcess, out: Costs, when: str) -> None:
    loop = metrics(site)["loop"]
    out[f"loop lag p99.9, {when}, ms"] = loop["p999"] * 1000
    out[f"longest round of the loop, {when}, ms"] = loop["worst"]["secs"] * 1000
    _progress(f"longest round {when}: {loop['worst']['secs']:.3f} s at {loop['worst']['what']}")


def _submitted(site: SupervisorProcess, run: dict[str, Any]) -> dict[str, Any]:
    site.submit(run)
    return run


def _fill(site: SupervisorProcess, run: dict[str, Any], n: int) -> None:
    for first in range(0, n, CHUNK):
        indices = f"{first}-{min(first + CHUNK, n) - 1}"
        post(site, "run-array", reqId=req_id(), run=run, indices=indices)


def _wait(site: SupervisorProcess, run: dict[str, Any], index: int) -> None:
    jid = f"{jid_of(run)}_{index}"
    while not post(site, "run-status", uid=UID, computeJid=jid, waitSecs=30)["over"]:
        pass


def storm(n: int) -> Costs:
    """Measure the simultaneous reconnect of n agents after their supervisor was killed."""
    keys = [AgentKey("local", "sequential", f"Storm{i:03d}", "localhost") for i in range(n)]
    site = SupervisorProcess()
    try:
        site.start()
        before = pss_mib(site.pid)
        site.stop()
        tell_of_agents(site, keys)
        site.start()
        with Crowd(site, keys) as crowd:
            until(lambda: settled(site, n, n), "all are connected", 120, 0.1)
            memory = pss_mib(site.pid) - before
            seen = snapshots(site)
            site.stop(signal.SIGKILL)
            until(lambda: not crowd.up, "all have noticed", 60)
            time.sleep(3.0)  # their backoff has reached its maximum, as after any restart
            site.start()
            cpu = cpu_secs(site.pid)
            secs = took(lambda: until(lambda: settled(site, n, seen + n), "all are back", 120, 0.1))
            out = {
                "all back and believed, s": secs,
                "CPU of the supervisor meanwhile, s": cpu_secs(site.pid) - cpu,
                "memory (PSS) of the agents, MiB": memory,
            }
            _lag(site, out, "in the storm")
            return out
    finally:
        site.end()


def growth(values: dict[int, float]) -> str:
    """Name the growth of a cost between the two largest sizes, above its value at the smallest.

    A value that changes by less than half is flat; the exponent says the rest.
    """
    *first, (n1, v1), (n2, v2) = values.items()
    n0, least = first[0] if first else (0, 0.0)
    if max(v1, v2) < 1.5 * min(v1, v2) or v2 <= v1:
        return "flat" if v2 >= v1 / 1.5 else "falls"
    if v1 <= 0:
        return "too small to measure below the largest size"
    exponent = math.log(max(v2 - least, 1e-9) / max(v1 - least, 1e-9))
    exponent /= math.log((n2 - n0) / (n1 - n0))
    if v1 - least < 0.2 * least:  # the first step is too small to compare with
        exponent = math.log(v2 / v1) / math.log(n2 / n1)
    if exponent >= LINEAR and math.log(v2 / v1) / math.log(n2 / n1) < 1.1:
        exponent = 1.0  # the value at the smallest size was too inexact to subtract
    names = ((0.3, "logarithmic"), (0.8, "sublinear"), (LINEAR, "linear"))
    name = next((name for bound, name in names if exponent < bound), "superlinear")
    return f"{name} (n^{exponent:.1f})"


def table(what: str, sizes: list[int], measured: Callable[[int], Costs]) -> None:
    costs = {n: measured(n) for n in sizes}
    print(f"| {what} |", " | ".join(f"{n:,}" for n in sizes), "| growth |")
    print("| --- |" + " --- |" * (len(sizes) + 1))
    for name in costs[sizes[0]]:
        values = {n: costs[n][name] for n in sizes}
        # for rates, a fall is the cost
        shape = growth({n: 1 / v if name.endswith("/s") else v for n, v in values.items()})
        cells = [f"{v:.{0 if v >= 100 else 1 if v >= 10 else 2}f}" for v in values.values()]
        print(f"| {name} |", " | ".join(cells), f"| {shape} |", flush=True)
    print()


def _progress(text: str) -> None:
    print(f"{text}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1000,10000,100000", metavar="N,N")
    parser.add_argument("--agents", default="10,100,1000", metavar="N,N")
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    table("queued runs", [int(n) for n in given.sizes.split(",")], queue)
    table("reconnecting agents", [int(n) for n in given.agents.split(",")], storm)


if __name__ == "__main__":
    main()
