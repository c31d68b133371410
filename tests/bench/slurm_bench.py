"""Compare the sbatch driver on a real cluster with bare `sbatch` and `squeue`: `python
tests/bench/slurm_bench.py [part...]`. Asserts nothing.

Needs root and Slurm (etc/engines/slurm.sh install slurm sshd); prints a message if either is
missing. It starts its own cluster and login node, as the tests in tests/slurm do. The bare side
submits as the same unix users and polls squeue until the job is over, at the minimum interval that
agents may use. The benchmark alternates between both sides. Wrapper programs first on the agents'
PATH count Slurm commands. Parts: warm, cold, rates, waiting, sign_in; default: all.
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import secrets
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

import asyncssh
from engine_scripts import why_not
from login_nodes import Sshd, Users
from loop_lag import loop
from slurm_cluster import ACCOUNT, OVER, Sites, Slurm, sites
from supervisor_process import SupervisorProcess, spec

from jobscribe.client.api.random_ids import simulation_id
from jobscribe.runtime import processes

WARM, BULK, WAITING, ASKED, SIGNED = 6, 100, 50, 200, 3
#: Seconds to watch waiting runs. A client that polled each run separately would do so every
#: EACH_SECS.
WATCHED_SECS, EACH_SECS = 30.0, 5.0
SECS = 300.0
#: Poll intervals of a typical site, and of the tests. Long pauses hide jobscribe's own cost.
CLUSTERS = {
    "usual": {"pollSecs": 2.0, "pollMaxSecs": 30.0},
    "quick": {"pollSecs": 0.2, "pollMaxSecs": 1.0},
}
NEW = ("bob", "key", "kbd", "cert")
COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo", "sacctmgr")
MIB = 20
#: As in jobscribe's batch scripts: Slurm creates a login environment on the node, which takes time.
OWN = "--export=NONE"
HERTZ = os.sysconf("SC_CLK_TCK")
OPTIONS = ("--parsable", "-o", "/dev/null", "-p", "batch", "-A", ACCOUNT, f"--mem={MIB}")


def timed(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def spread(times: list[float]) -> str:
    """Return the median, the fastest and the slowest value."""
    return f"{statistics.median(times):.2f} s ({min(times):.2f}-{max(times):.2f})"


def ratio(ours: list[float], beside: list[float]) -> str:
    a, b = statistics.median(ours), statistics.median(beside)
    return f"ratio {a / b:.2f}, {a - b:+.2f} s"


def row(what: str, here: str, beside: str = "", goal: str = "") -> None:
    print(f"| {what} | {here} | {beside} | {goal} |", flush=True)


def true(uid: str, cluster: str = "usual", **batch: Any) -> dict[str, Any]:
    wishes = {"cluster": cluster, "memoryMb": MIB, **batch}
    return {**spec(["/bin/true"], uid, batch=wishes), "simulationId": simulation_id()}


def done(site: SupervisorProcess, run: dict[str, Any]) -> None:
    reply = site.finished(run, SECS)
    if reply["state"] != "completed":
        raise RuntimeError(f"{reply}\n{site.log()[-3000:]}")


class Bench:
    """The cluster with its users, and the supervisors that use it. `Bench.uid("alice")` is the uid
    of user `alice`.
    """

    def __init__(self, slurm: Slurm, users: Users, sshd: Sshd, made: Sites) -> None:
        self.slurm, self.users, self.sshd, self._made = slurm, users, sshd, made
        self._counted, folder = slurm.place / "counted", slurm.place / "counting"
        folder.mkdir(exist_ok=True)
        for name in COMMANDS:
            program = folder / name
            program.write_text(
                f'#!/bin/sh\necho {name} >>{self._counted}\nexec /usr/bin/{name} "$@"\n'
            )
            program.chmod(0o755)
        self._counted.touch()
        self._counted.chmod(0o666)
        self._environment = {**slurm.env, "PATH": f"{folder}:/usr/bin:/bin"}

    @staticmethod
    def uid(name: str) -> str:
        return name.title().ljust(8, "U")

    @contextlib.contextmanager
    def site(self, *names: str, access: str = "runuser") -> Iterator[SupervisorProcess]:
        """Start a fresh supervisor with both clusters, for these users."""
        fields = {"access": access, "environment": self._environment}
        clusters: dict[str, dict[str, Any]] = {
            name: {**fields, **polls} for name, polls in CLUSTERS.items()
        }
        site = self._made.make(
            clusters=clusters, people={} if access == "ssh" else {self.uid(n): n for n in names}
        ).start()
        try:
            yield site
        finally:
            site.stop(secs=60)
            self.slurm.cancel_all()
            self.users.end_processes()

    def calls(self) -> Counter[str]:
        """Return how often agents ran each Slurm command."""
        return Counter(self._counted.read_text().split())

    # ---- the bare side

    def bare(self, name: str, *command: str) -> str:
        """Run a Slurm command directly as this user."""
        done = subprocess.run(
            command,
            input="#!/bin/sh\n/bin/true\n",
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", **self.slurm.env},
            user=self.users.uid(name),
            group=self.users.uid(name),
            extra_groups=[],
        )
        return done.stdout.strip()

    def submit_and_poll(self, name: str, secs: float, *more: str) -> float:
        """Return the seconds from the job's start (when Slurm creates its output file) to the
        answer that it is over.
        """
        output = self.users.home(name) / f"bare-{secrets.token_hex(4)}"
        job = self.bare(name, "sbatch", *OPTIONS, "-o", str(output), *more)
        while self.bare(name, "squeue", "-h", "-t", "all", "-o", "%T", "-j", job) not in OVER:
            time.sleep(secs)
        return time.time() - output.stat().st_mtime

    def submit_many(self, name: str, secs: float, *more: str) -> None:
        for _ in range(BULK):
            self.bare(name, "sbatch", *OPTIONS, *more)
        while self.bare(name, "squeue", "-h", "-u", self.users[name]):
            time.sleep(secs)

    # ---- processes

    def ours(self, name: str, part: str) -> list[int]:
        """Return this user's keepers or agents."""
        title = f"jobscribe {part} ".encode()
        return [
            p.pid
            for p in processes.table().values()
            if processes._read(f"/proc/{p.pid}/cmdline").startswith(title)
            and self._owns(name, p.pid)
        ]

    def _owns(self, name: str, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return f"\nUid:\t{self.users.uid(name)}\t" in Path(f"/proc/{pid}/status").read_text()
        return False

    def held(self, name: str) -> list[float]:
        """Return the seconds of each event loop block over 50 ms in this user's agents."""
        return [
            float(s)
            for s in re.findall(r"the event loop was blocked for ([0-9.]+) s ", self._said(name))
        ]

    def connected(self, name: str) -> int:
        """Return how often an agent of this user connected to its supervisor."""
        return len(re.findall(r" connected$", self._said(name), re.MULTILINE))

    def _said(self, name: str) -> str:
        return "".join(
            log.read_text(errors="replace")
            for log in self.users.home(name).glob("scratch/jobscribe-*/job_agent.log")
        )


def cpu(pid: int) -> tuple[float, float]:
    """Return CPU seconds of the process, and of the children it waited for."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / HERTZ, (int(words[13]) + int(words[14])) / HERTZ


def pss_mib(pid: int) -> float:
    return next(
        int(line.split()[1]) / 1024
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        if line.startswith("Pss:")
    )


def lag(site: SupervisorProcess) -> str:
    said = loop(site)
    return f"p99.9 {said['p999'] * 1000:.0f} ms, longest {said['worst']['secs'] * 1000:.0f} ms"


def any_phase() -> None:
    """Sleep up to one second. Slurm's controller checks its queue once a second, so both sides
    start at all phases of that cycle.
    """
    time.sleep(random.random())


def stages(site: SupervisorProcess, run: Mapping[str, Any], began: float) -> list[float]:
    """Return the seconds until the script was written, then until it ran, until its command ended,
    and until the answer arrived. began: wall clock.
    """
    over = time.time()
    tasks = site.post(
        "job-tasks", uid=run["uid"], computeJid=f"{run['uid']}-{run['simulationId']}-command"
    )["tasks"]
    folder = Path(tasks[0]["evidence"])
    moments = [
        began,
        *((folder / name).stat().st_mtime for name in ("batch.sh", "started", "exit-code")),
        over,
    ]
    return [b - a for a, b in itertools.pairwise(moments)]


# ---- parts


def warm(bench: Bench) -> None:
    times: dict[str, list[float]] = {}
    parts: dict[str, list[list[float]]] = {name: [] for name in CLUSTERS}
    known: dict[str, list[float]] = {name: [] for name in CLUSTERS}
    uid = bench.uid("alice")

    def ours(cluster: str) -> None:
        any_phase()
        run, at = true(uid, cluster), time.time()
        times.setdefault(cluster, []).append(timed(lambda: done(site, run)))
        parts[cluster].append(stages(site, run, at))

    def alone(cluster: str, *more: str) -> None:
        any_phase()
        secs = CLUSTERS[cluster]["pollSecs"]
        name = f"bare {cluster} {' '.join(more)}".strip()
        times.setdefault(name, []).append(
            timed(lambda: known[cluster].append(bench.submit_and_poll("alice", secs, *more)))
        )

    with bench.site("alice") as site:
        for cluster in CLUSTERS:
            done(site, true(uid, cluster))
        for _ in range(WARM):
            for cluster in CLUSTERS:
                ours(cluster)
                alone(cluster)
            alone("quick", OWN)
        waits = [timed(lambda: bench.bare("alice", "sbatch", "--wait", *OPTIONS)) for _ in range(2)]
    for cluster, polls in CLUSTERS.items():
        took, beside = times[cluster], times["bare " + cluster]
        row(
            f"warm `/bin/true`, submit to completed, median of {WARM}, Slurm asked every {polls['pollSecs']:g} s",
            spread(took),
            f"{spread(beside)} sbatch, then squeue as often: {ratio(took, beside)}; {min(waits):.2f} s sbatch --wait",
        )
        if (same := f"bare {cluster} {OWN}") in times:
            row(
                "the same",
                "",
                f"{spread(times[same])} sbatch {OWN}, then squeue as often: {ratio(took, times[same])}",
            )
        m = [statistics.median(p[n] for p in parts[cluster]) for n in range(4)]
        row(
            "of it",
            f"{m[0] * 1000:.0f} ms until its script lies there; {m[1]:.2f} s sbatch, and until Slurm starts it; {m[2] + m[3]:.2f} s until its end is known",
            f"{statistics.median(known[cluster]):.2f} s from its start until squeue says its end",
        )


def cold(bench: Bench) -> None:
    """Measure cold starts. A new unix user's first run transfers the code; the same user's first
    run on the other cluster finds it there.
    """
    sent, there, alone = [], [], []
    with bench.site(*NEW) as site:
        for name in NEW:
            any_phase()
            alone.append(timed(lambda: bench.submit_and_poll(name, 0.2)))
            any_phase()
            sent.append(timed(lambda: done(site, true(bench.uid(name), "quick"))))
            any_phase()
            there.append(timed(lambda: done(site, true(bench.uid(name), "usual"))))
    row(
        f"cold: new unix user, code sent, agent started, median of {len(NEW)}, asked every 0.2 s",
        spread(sent),
        f"{spread(alone)} sbatch and squeue: {ratio(sent, alone)}",
    )
    row(
        "the same where the code lies there, asked every 2 s",
        spread(there),
        f"{ratio(there, alone)}",
    )


def rates(bench: Bench) -> None:
    uid = bench.uid("alice")
    with bench.site("alice") as site:
        done(site, true(uid))
        alone, same = (
            timed(lambda: bench.submit_many("alice", 2.0)),
            timed(lambda: bench.submit_many("alice", 2.0, OWN)),
        )
        agent, keeper = bench.ours("alice", "agent")[0], bench.ours("alice", "keeper")[0]
        before, calls, held = (
            [cpu(p) for p in (site.pid, agent, keeper)],
            bench.calls(),
            len(bench.held("alice")),
        )
        runs = [true(uid) for _ in range(BULK)]
        began = time.perf_counter()
        site.post("run-many", reqId=secrets.token_hex(12), runs=runs)
        accepted = time.perf_counter() - began
        states = [site.wait(run, SECS)["state"] for run in reversed(runs)]
        took = time.perf_counter() - began
        now, more = [cpu(p) for p in (site.pid, agent, keeper)], bench.calls() - calls
        row(
            f"{BULK} short runs of one user, jobs a minute",
            f"{BULK / took * 60:.0f} ({states.count('completed')} completed in {took:.1f} s; accepted in {accepted:.2f} s)",
            f"{BULK / alone * 60:.0f} ({alone:.1f} s) a loop of sbatch, then squeue every 2 s: ratio {alone / took:.2f}; "
            f"{BULK / same * 60:.0f} ({same:.1f} s) sbatch {OWN}: ratio {same / took:.2f}",
        )
        asked = ", ".join(f"{n} {name}" for name, n in more.most_common())
        polls = sum(n for name, n in more.items() if name != "sbatch")
        row(
            "Slurm's commands meanwhile",
            f"{asked}: {sum(more.values()) / BULK:.2f} a job; without sbatch {polls / took * 60:.0f} a minute",
            f"each of them asked for every {EACH_SECS:g} s: about {BULK / 2 * took / EACH_SECS:.0f}",
        )
        own = [(b[0] - a[0]) / BULK * 1000 for a, b in zip(before, now, strict=True)]
        theirs = (now[1][1] - before[1][1]) / BULK * 1000
        row(
            "CPU a job: supervisor, agent, keeper",
            f"{own[0]:.1f}, {own[1]:.1f}, {own[2]:.1f} ms",
            f"{theirs:.1f} ms the commands of Slurm's that the agent ran",
        )
        rounds = bench.held("alice")[held:]
        row(
            "loops meanwhile",
            f"supervisor {lag(site)}; agent: {len(rounds)} rounds over 50 ms, longest {max(rounds, default=0) * 1000:.0f} ms, "
            f"so that {sum(s - 0.05 for s in rounds) / took * 100:.2f} % of all moments had to wait longer",
            "",
            "p99.9 <= 50 ms",
        )
        row(
            "memory (PSS) then: supervisor, agent, keeper",
            ", ".join(f"{pss_mib(p):.1f}" for p in (site.pid, agent, keeper)) + " MiB",
        )


def waiting(bench: Bench) -> None:
    """Measure 50 runs that wait while another user holds all nodes."""
    uid = bench.uid("alice")
    with bench.site("alice") as site:
        done(site, true(uid))
        full = bench.slurm.ask(
            "sbatch",
            "--parsable",
            "-o",
            "/dev/null",
            "-N",
            "3",
            "--exclusive",
            "-p",
            "debug",
            "-t",
            "5",
            "--wrap",
            "exec sleep 1000",
        ).strip()
        bench.slurm.until_state(full, "RUNNING")
        runs = [true(uid) for _ in range(WAITING)]
        site.post("run-many", reqId=secrets.token_hex(12), runs=runs)
        deadline = time.monotonic() + SECS
        while (
            not all(site.status(r)["queueState"] == "slurm" for r in runs)
            and time.monotonic() < deadline
        ):
            time.sleep(0.2)
        agent = bench.ours("alice", "agent")[0]
        before, spent, began = bench.calls(), cpu(agent), time.monotonic()
        asked = sorted(
            timed(lambda run=run: site.status(run)) * 1000 for run in runs * (ASKED // WAITING)
        )
        while (secs := time.monotonic() - began) < WATCHED_SECS:
            time.sleep(min(1.0, WATCHED_SECS - secs))
        more, used = bench.calls() - before, cpu(agent)
        row(
            f"{WAITING} runs wait in Slurm's queue: commands of Slurm's a minute, in the first {WATCHED_SECS:g} s",
            f"{sum(more.values()) / WATCHED_SECS * 60:.0f} ({dict(more)}); agent {(used[0] - spent[0]) / WATCHED_SECS * 100:.1f} % of a core",
            f"each of them asked for every {EACH_SECS:g} s: {WAITING * 60 / EACH_SECS:.0f}",
        )
        row(
            f"status of one of them, median of {ASKED}, p99",
            f"{statistics.median(asked):.1f}, {asked[int(len(asked) * 0.99)]:.1f} ms",
            f"{timed(lambda: bench.bare('alice', 'squeue', '-h', '-u', bench.users['alice'])) * 1000:.0f} ms one squeue",
        )
        before, began = bench.calls(), time.monotonic()
        for run in runs:
            site.cancel(run)
        states = [site.wait(run, SECS)["state"] for run in runs]
        more = bench.calls() - before
        row(
            f"all {WAITING} canceled",
            f"{states.count('canceled')} in {time.monotonic() - began:.1f} s, by {dict(more)}",
        )
        bench.slurm.cancel(full)


def sign_in(bench: Bench) -> None:
    """Measure a sign-in with password and code, at a supervisor with no earlier sign-in: the answer
    to the request, then the agent's start, which a run waits for.
    """
    answered, up, alone = [], [], []
    for _ in range(SIGNED):
        alone.append(timed(lambda: asyncio.run(bare_sign_in(bench, "one"))))
        with bench.site("one", access="ssh") as site:
            uid = bench.uid("one")
            site.submit(true(uid, "quick"))
            body = {
                "uid": uid,
                "cluster": "quick",
                "username": bench.users["one"],
                "password": bench.users.password,
                "otp": bench.users.code("one"),
            }
            before, began = bench.connected("one"), time.perf_counter()
            answer = site.ask("POST", "/api/sbatch-login", json.dumps(body).encode())
            answered.append(time.perf_counter() - began)
            if answer.code != 200:
                raise RuntimeError(f"{answer}\n{site.log()[-3000:]}")
            while bench.connected("one") == before:
                time.sleep(0.01)
            up.append(time.perf_counter() - began)
    row(
        f"sign-in by password and code, until it is answered (signed in, code sent), median of {SIGNED}",
        spread(answered),
        f"{spread(alone)} asyncssh and `true`: {ratio(answered, alone)}",
    )
    row("the same until the agent is connected", spread(up), ratio(up, alone))


async def bare_sign_in(bench: Bench, name: str) -> None:
    """Connect, sign in and execute `true`."""
    answer = bench.users.password + bench.users.code(name)

    class Client(asyncssh.SSHClient):
        def kbdint_auth_requested(self) -> str:
            return ""

        def kbdint_challenge_received(
            self, name: str, instructions: str, lang: str, prompts: Any
        ) -> list[str]:
            return [answer for _ in prompts]

    async with asyncssh.connect(
        "127.0.0.1",
        bench.sshd.port(),
        known_hosts=str(bench.sshd.known_hosts),
        config=None,
        agent_path=None,
        username=bench.users[name],
        client_keys=None,
        password_auth=False,
        client_factory=Client,
    ) as connection:
        await connection.run("true", check=True)


PARTS: dict[str, Callable[[Bench], None]] = {
    "warm": warm,
    "cold": cold,
    "rates": rates,
    "waiting": waiting,
    "sign_in": sign_in,
}


def main(*wanted: str) -> int:
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        print(
            f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr
        )
        return 2
    for engine in ("slurm", "sshd"):
        if reason := why_not(engine):
            print(f"the driver sbatch is not measured: {reason}")
            return 0
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, Python {sys.version.split()[0]}",
        flush=True,
    )
    began = time.monotonic()
    slurm = Slurm()
    users = Users(slurm.conf)
    sshd = Sshd(users)
    with contextlib.ExitStack() as ending:
        ending.callback(users.clean)
        ending.callback(slurm.clean)
        users.up()
        slurm.up(users.accounts())
        if not wanted or "sign_in" in wanted:
            ending.callback(sshd.down)
            sshd.up()
        print(
            f"{slurm.ask('sinfo', '--version').strip()}, {len(slurm.nodes)} nodes, up in {time.monotonic() - began:.0f} s\n\n"
            "| what | here | beside it, in the same run | goal |\n| --- | --- | --- | --- |",
            flush=True,
        )
        with sites(slurm, users, lambda: sshd) as made:
            bench = Bench(slurm, users, sshd, made)
            for name in wanted or PARTS:
                PARTS[name](bench)
    print(
        f"\nload at the end {os.getloadavg()[0]:.2f}, {time.monotonic() - began:.0f} s", flush=True
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
