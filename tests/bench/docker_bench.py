"""Compare the Docker driver on a real engine with `docker run` and the local driver: `python
tests/bench/docker_bench.py [part...]`. Asserts nothing.

Needs root and Docker (etc/engines/docker.sh install); prints a message if either is missing. It
starts its own Docker daemons, as the tests in tests/docker do. `docker run` uses the daemon's unix
socket; the supervisor uses its TLS port, as in a pool of hosts. The benchmark alternates between
both sides. Parts: cold, warm, rates, users, tasks; default: all.
"""

import contextlib
import os
import secrets
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

from docker_hosts import SCRIPT, Host, Hosts, Sites, sites
from loop_lag import BOUND_SECS, loop
from supervisor_process import SupervisorProcess, spec

from jobscribe.client.api.random_ids import simulation_id
from jobscribe.runtime import processes

COLD, WARM, BULK, REPEATS, SLOTS, USERS, TASKS, AT_ONCE = 15, 100, 200, 3, 2, 50, 20, 4
SECS = 300.0
#: Agent startup must not affect the measurements, so a host has capacity for all agents.
ROOM = {"cpu": 64, "memoryMb": 65_536, "sequential": 128, "parallel": 8}
LIMITS = {"memoryMb": 256, "runs": SLOTS}


def fresh_uid() -> str:
    return "B" + secrets.token_hex(4)[:7]


def timed(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def spread(times: list[float]) -> str:
    """Return the median, the fastest and the slowest value."""
    return f"{statistics.median(times):.2f} s ({min(times):.2f}-{max(times):.2f})"


def row(what: str, here: str, beside: str, goal: str) -> None:
    print(f"| {what} | {here} | {beside} | {goal} |", flush=True)


class Bench:
    """One host with the image, and the supervisors that use it."""

    def __init__(self, hosts: Hosts, made: Sites) -> None:
        self._hosts, self._made = hosts, made
        self.host: Host = hosts.hosts["a"]

    @contextlib.contextmanager
    def site(self, use: str = "docker", **fields: Any) -> Iterator[SupervisorProcess]:
        """Start a fresh supervisor. Its host is up and has a relay, because it already ran an
        agent.
        """
        sets = (f"slots.local_sequential={SLOTS}", f"slots.op_run={SLOTS}")
        site = self._made.make(
            *sets, use=use, pool={"hosts": ["a"], "host": ROOM, "sequential": LIMITS, **fields}
        ).start()
        try:
            done(site, true(fresh_uid()))
            yield site
        finally:
            site.stop(secs=60)
            self.host.clear(
                [
                    d
                    for d, said in self.host.deployments().items()
                    if any(str(site.place) in text for text in said)
                ]
            )

    def docker_run(self, *options: str) -> None:
        """Run the same image without any jobscribe code in it."""
        command = [
            *self.host.command,
            "run",
            "--rm",
            *options,
            "--entrypoint",
            "/bin/true",
            self._hosts.image,
        ]
        subprocess.run(
            command,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )


def true(uid: str, **fields: Any) -> dict[str, Any]:
    return {**spec(["/bin/true"], uid, **fields), "simulationId": simulation_id()}


def done(site: SupervisorProcess, run: dict[str, Any]) -> None:
    reply = site.finished(run, SECS)
    if reply["state"] != "completed":
        raise RuntimeError(f"{reply}\n{site.log()[-3000:]}")


def gang(uid: str, tasks: int) -> dict[str, Any]:
    """Run a gang with one container per task."""
    run = {
        **true(uid, jobRunMode="parallel"),
        "roles": [{"name": "worker", "tasks": tasks, "command": ["/bin/true"], "memoryMb": 64}],
    }
    del run["command"]
    return run


def bulk(site: SupervisorProcess, uid: str, driver: str) -> float:
    """Return runs per second, from the request to the last exit."""
    runs = [true(uid, driver=driver) for _ in range(BULK)]

    def all_of_them() -> None:
        site.post("run-many", reqId=secrets.token_hex(12), runs=runs)
        for run in reversed(runs):
            site.wait(run, SECS)

    return BULK / timed(all_of_them)


# ---- processes


def pss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def shims(host: Host) -> list[int]:
    """Return the engine's own processes for each container."""
    mine = {
        host.inspect(name)["State"]["Pid"]
        for name in host.containers("jobscribe.part=agent", running=True)
    }
    return [p.parent for p in processes.table().values() if p.pid in mine]


class Threads:
    """Peak thread count of a process, sampled every few milliseconds."""

    def __init__(self, pid: int) -> None:
        self._folder, self._over = Path(f"/proc/{pid}/task"), threading.Event()
        self.most = self.first = len(os.listdir(self._folder))

    def __enter__(self) -> "Threads":
        self._looker = threading.Thread(target=self._look)
        self._looker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._looker.join()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self.most = max(self.most, len(os.listdir(self._folder)))


def lag(site: SupervisorProcess) -> str:
    """Return how long the supervisor's event loop was blocked since its start."""
    said = loop(site)
    worst = said["worst"]
    return (
        f"loop held p99.9 {said['p999'] * 1000:.0f} ms, longest {worst['secs'] * 1000:.0f} ms"
        + (f" ({worst['what']})" if said["p999"] > BOUND_SECS else "")
    )


# ---- parts


def cold(bench: Bench) -> None:
    ours, alone, bridged = [], [], []
    with bench.site() as site:
        bench.docker_run("--network", "none")
        for _ in range(COLD):
            alone.append(timed(lambda: bench.docker_run("--network", "none")))
            ours.append(timed(lambda: done(site, true(fresh_uid()))))
            bridged.append(timed(bench.docker_run))
    a, b, c = (statistics.median(x) for x in (ours, alone, bridged))
    fastest = min(ours)
    row(
        f"cold start: new user, submit to /bin/true completed, median of {COLD}",
        spread(ours),
        f"{spread(alone)} docker run --network none: ratio {a / b:.2f} (of the fastest: {fastest / min(alone):.2f}); "
        f"{spread(bridged)} with its default network: ratio {a / c:.2f} ({fastest / min(bridged):.2f})",
        "<= 1.3",
    )


def warm(bench: Bench) -> None:
    uid, took = fresh_uid(), {"docker": [], "local": []}  # type: dict[str, dict[str, list[float]]] | Any
    with bench.site("docker,local") as site:
        for n in range(WARM + 3):
            for driver, times in took.items():
                secs = timed(lambda d=driver: done(site, true(uid, driver=d)))
                if n >= 3:
                    times.append(secs)
    a, b = (statistics.median(took[d]) * 1000 for d in ("docker", "local"))
    row(
        f"warm run, submit to done, median of {WARM}",
        f"{a:.1f} ms",
        f"{b:.1f} ms local driver: ratio {a / b:.2f}",
        "",
    )


def rates(bench: Bench) -> None:
    uid = fresh_uid()
    with bench.site("docker,local") as site:
        for driver in ("docker", "local"):
            done(site, true(uid, driver=driver))
        pairs = [(bulk(site, uid, "docker"), bulk(site, uid, "local")) for _ in range(REPEATS)]
    a, b = (statistics.median(p[i] for p in pairs) for i in range(2))
    row(
        f"bulk of {BULK} small runs of one user, {SLOTS} at once, median of {REPEATS}",
        f"{a:.0f}/s",
        f"{b:.0f}/s local driver: ratio {a / b:.2f}",
        "",
    )


def users(bench: Bench) -> None:
    with bench.site() as site:
        before = pss_mib(site.pid)
        runs = [true(fresh_uid()) for _ in range(USERS)]
        with Threads(site.pid) as threads:
            began = time.perf_counter()
            for run in runs:
                site.submit(run)
            states = [site.wait(run, SECS)["state"] for run in runs]
            took = time.perf_counter() - began
        said = lag(site)
        agents, keepers, outside = site.titled("agent"), site.titled("keeper"), shims(bench.host)
        each = [sum(map(pss_mib, pids)) / max(1, len(pids)) for pids in (agents, keepers, outside)]
        row(
            f"{USERS} new users at once on one host, a container each",
            f"{states.count('completed')} served in {took:.1f} s",
            f"{len(agents)} agents; supervisor's threads {threads.first}, at most {threads.most}; {said}",
            "all served; loop <= 50 ms",
        )
        row(
            "memory (PSS) then: supervisor; a container's agent, keeper, and the engine's shim",
            f"{pss_mib(site.pid):.0f} MiB (before: {before:.0f}); {each[0]:.1f}, {each[1]:.1f}, {each[2]:.1f} MiB",
            "",
            "",
        )
        one = statistics.median(
            timed(lambda: bench.docker_run("--network", "none")) for _ in range(3)
        )
        row(
            "the same for each",
            f"{took / USERS:.2f} s",
            f"{one:.2f} s docker run, one after the other: ratio {took / USERS / one:.2f}",
            "",
        )


def tasks(bench: Bench) -> None:
    """Alternate both sides. The image is known on both, so several `docker run` calls save nothing
    after the first.
    """
    uid = fresh_uid()
    took: dict[str, list[float]] = {}

    def take(name: str, action: Callable[[], Any]) -> None:
        took.setdefault(name, []).append(timed(action))

    def several(at_once: int) -> None:
        with ThreadPoolExecutor(at_once) as workers:
            list(workers.map(lambda _: bench.docker_run("--network", "none"), range(TASKS)))

    with bench.site() as site, Threads(site.pid) as threads:
        done(site, gang(uid, 2))
        for n in range(REPEATS * 3):
            take("one", lambda: done(site, gang(uid, 1)))
            take("run", lambda: bench.docker_run("--network", "none"))
            if n < REPEATS:
                take("many", lambda: done(site, gang(uid, TASKS)))
                take("turn", lambda: several(1))
                take("some", lambda: several(AT_ONCE))
        said = lag(site)
    m = {name: statistics.median(times) for name, times in took.items()}
    row(
        "one task in a container of its own, submit to completed",
        spread(took["one"]),
        f"{spread(took['run'])} docker run: ratio {m['one'] / m['run']:.2f}",
        "",
    )
    row(
        f"a gang of {TASKS} of them, with a bridge of its own",
        spread(took["many"]),
        f"{spread(took['turn'])} {TASKS} docker run one after the other: ratio {m['many'] / m['turn']:.2f}; "
        f"{spread(took['some'])} {AT_ONCE} at a time: ratio {m['many'] / m['some']:.2f}",
        "",
    )
    row(
        "the supervisor meanwhile",
        said,
        f"its threads {threads.first}, at most {threads.most}",
        "loop <= 50 ms",
    )


PARTS: dict[str, Callable[[Bench], None]] = {
    "cold": cold,
    "warm": warm,
    "rates": rates,
    "users": users,
    "tasks": tasks,
}


def why_not() -> str:
    """Return why no hosts can run here, or an empty string if they can."""
    said = subprocess.run(
        [SCRIPT, "check"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return (said.stderr.strip() or "docker.sh check failed") if said.returncode else ""


def main(*wanted: str) -> int:
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        print(
            f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr
        )
        return 2
    if reason := why_not():
        print(f"the Docker driver is not measured: {reason}")
        return 0
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, Python {sys.version.split()[0]}",
        flush=True,
    )
    hosts = Hosts()
    try:
        hosts.up()
        version = hosts.hosts["a"].docker("version", "--format", "{{.Server.Version}}").strip()
        print(
            f"Docker {version}, one host\n\n| what | here | beside it, in the same run | goal |\n| --- | --- | --- | --- |",
            flush=True,
        )
        with sites(hosts) as made:
            for name in wanted or PARTS:
                PARTS[name](Bench(hosts, made))
    finally:
        hosts.clean()
    print(f"\nload at the end {os.getloadavg()[0]:.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
