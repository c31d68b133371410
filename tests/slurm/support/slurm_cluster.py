"""A real Slurm cluster for these tests (etc/engines/slurm.sh), direct queries about its jobs, and
supervisors that use it.

Tests rely on squeue and sacct as queried here, without any product code.
"""

import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engine_scripts import CALL_SECS, Refused, Script, free_ports
from login_nodes import Sshd, Users
from supervisor_process import SupervisorProcess, until

#: All final states of a job.
OVER = frozenset(
    (
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "OUT_OF_MEMORY",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "REVOKED",
    )
)
#: Default account. `chem` may also use the partition `small`; `spent` has no hours left.
ACCOUNT = "research"
NODES = 3
#: Pause between two questions to Slurm, each of which is a process (seconds).
ASK_SECS = 0.2
_UP = ("idle", "mix", "alloc", "comp")
DAEMONS = ("munged", "mariadb", "slurmdbd", "slurmctld")

_names = itertools.count(1)


class Job(NamedTuple):
    """Slurm's data about one job. asked: `squeue` or `sacct`. state: without sacct's additions
    (`CANCELLED by 1001`).
    """

    asked: str
    id: str
    name: str
    user: str
    account: str
    partition: str
    state: str
    reason: str
    nodes: str
    comment: str
    exit: str = ""
    whole_state: str = ""


class Slurm:
    """The cluster. Methods for daemons and nodes are verbs of the script; `well` restores the
    original state.
    """

    def __init__(self, **given: str) -> None:
        """given: further parameters of the script."""
        self.place = Path(tempfile.mkdtemp(prefix="jobscribe-slurm-", dir="/var/tmp"))
        self.place.chmod(0o755)
        count = int(given.get("NODES", NODES))
        self.port = free_ports(2 + count)
        prefix = f"n{self.port}-"
        self.conf = self.place / "slurm.conf"
        self.nodes = tuple(f"{prefix}{n}" for n in range(1, count + 1))
        #: environment with which Slurm's commands use this cluster
        self.env = {"SLURM_CONF": str(self.conf)}
        self.script = Script(
            "slurm",
            {
                "DIR": str(self.place),
                "PORT": str(self.port),
                "NODE": prefix,
                "NODES": str(NODES),
                "NAME": "lab",
                "GPUS": "1",
                **given,
            },
        )

    # ---- the whole cluster

    def up(self, people: Mapping[str, Sequence[str]] | None = None) -> None:
        """Start the cluster. people: accounts of unix users, who need not exist yet."""
        self.script(
            "up",
            PEOPLE=" ".join(f"{user}:{','.join(names)}" for user, names in (people or {}).items()),
        )

    def clean(self) -> None:
        self.script("clean")
        shutil.rmtree(self.place, ignore_errors=True)

    def accounts(self, users: Sequence[str], names: Sequence[str] = (ACCOUNT,)) -> None:
        """Add unix users with the accounts to which they may charge."""
        self.script("account", ",".join(users), ",".join(names))

    def well(self) -> None:
        """Restore the original state: all daemons and nodes up, no job left."""
        if self.status() != dict.fromkeys((*DAEMONS, *self.nodes), "up") or self.down_nodes():
            self.script("well")
        self.cancel_all()

    def status(self) -> dict[str, str]:
        """Return the state of each daemon: up, down or frozen."""
        lines = [line.split() for line in self.script("status", code=None).splitlines()]
        return {line[0]: line[1] for line in lines}

    # ---- daemons and nodes

    def start(self, daemon: str) -> None:
        self.script("start", daemon)

    def stop(self, daemon: str) -> None:
        self.script("stop", daemon)

    def kill(self, daemon: str) -> None:
        self.script("kill", daemon)

    def restart(self, daemon: str) -> None:
        self.script("restart", daemon)

    def freeze(self, daemon: str) -> None:
        self.script("freeze", daemon)

    def thaw(self, daemon: str) -> None:
        self.script("thaw", daemon)

    def crash(self, node: str) -> None:
        """Power cut: all its processes end. Slurm notices after half a minute, or at once with
        `set_down`.
        """
        self.script("crash", node)

    def boot(self, node: str) -> None:
        """Start the node again. After `set_down` it accepts jobs only after `resume`."""
        self.script("boot", node)

    def drain(self, node: str) -> None:
        self.ask("scontrol", "update", f"nodename={node}", "state=drain", "reason=maintenance")

    def set_down(self, node: str) -> None:
        """Set it down like an operator: its jobs are NODE_FAIL at once."""
        self.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=operator")

    def resume(self, node: str) -> None:
        """Let it accept jobs again. (A node that registers anew needs no resume.)"""
        self.ask("scontrol", "update", f"nodename={node}", "state=resume", code=None)
        until(lambda: node not in self.down_nodes(), f"{node} takes jobs again")

    def node_state(self, node: str) -> str:
        """Return sinfo's state: `idle`, `alloc`, `drain`, `down*`..."""
        return self.ask("sinfo", "-hN", "-n", node, "-p", "batch", "-o", "%T").strip()

    def down_nodes(self) -> list[str]:
        lines = self.ask("sinfo", "-hN", "-p", "batch", "-o", "%N %T").splitlines()
        up = [n for n, state in map(str.split, lines) if state.startswith(_UP)]
        return [n for n in self.nodes if n not in up]

    @contextlib.contextmanager
    def forgetting(self, secs: int = 2) -> Iterator[None]:
        """Let squeue forget jobs this soon after their end."""
        self.script("reconfigure", FORGET_SECS=str(secs))
        try:
            yield
        finally:
            self.script("reconfigure", FORGET_SECS="300")

    # ---- queries

    def ask(self, *command: str, code: int | None = 0, given: str = "") -> str:
        """Return the output of a Slurm command, run as root (both streams if it may fail)."""
        env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", **self.env}
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            timeout=CALL_SECS,
            env=env,
            cwd="/",
        )
        if code is not None and done.returncode != code:
            raise Refused(
                f"{' '.join(command)}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return done.stdout if code == 0 else done.stdout + done.stderr

    def queued(
        self, *, user: str | None = None, name: str | None = None, active: bool = True
    ) -> list[Job]:
        """Return the jobs of squeue. active: only jobs that are not over."""
        form = "|".join(("%A", "%j", "%u", "%a", "%P", "%T", "%r", "%N", "%k"))
        chosen = [w for flag, value in (("-u", user), ("-n", name)) if value for w in (flag, value)]
        rows = [
            ["" if w == "(null)" else w for w in line.split("|")]
            for line in self.ask("squeue", "-h", "-t", "all", "-o", form, *chosen).splitlines()
        ]
        jobs = [Job("squeue", *row) for row in rows]
        return [j for j in jobs if not active or j.state not in OVER]

    def accounted(
        self, *, user: str | None = None, name: str | None = None, job: str | None = None
    ) -> list[Job]:
        """Return the jobs of accounting, which lags behind squeue but forgets no job. A requeued
        job is there more than once.
        """
        form = "jobid,jobname,user,account,partition,state,reason,nodelist,comment,exitcode"
        chosen = [
            w
            for flag, value in (("-u", user), ("--name", name), ("-j", job))
            if value
            for w in (flag, value)
        ]
        said = self.ask(
            "sacct",
            "-nXPD",
            "--delimiter=\x1f",
            "-S",
            "now-1days",
            *([] if user else ["-a"]),
            "-o",
            form,
            *chosen,
        )
        rows = [line.split("\x1f") for line in said.splitlines()]
        return [
            Job("sacct", *row[:5], row[5].split(" ")[0], *row[6:9], row[9], row[5]) for row in rows
        ]

    def job(self, job: str) -> Job | None:
        """Return the current data about a job from squeue, or from accounting if squeue has
        forgotten it.
        """
        found = [j for j in self.queued(active=False) if j.id == job]
        return (found or self.accounted(job=job)[-1:] or [None])[-1]

    def state(self, job: str) -> str:
        found = self.job(job)
        return found.state if found else ""

    def until_state(self, job: str, *states: str, secs: float = 60) -> Job:
        """Wait until the job is in one of the states (default: over), and return it."""
        wanted = frozenset(states) or OVER

        def look() -> Job | None:
            found = self.job(job)
            assert found is None or found.state in wanted or found.state not in OVER, found
            return found if found and found.state in wanted else None

        said: Job = until(look, f"job {job} is {' or '.join(sorted(wanted))}", secs, ASK_SECS)
        return said

    # ---- jobs

    def submit(
        self, users: Users, who: str, script: str, *options: str, env: dict[str, str] | None = None
    ) -> str:
        """Submit a job of this user directly; return its id."""
        said = users.run(
            who,
            "sbatch",
            "--parsable",
            "-o",
            "/dev/null",
            *options,
            given="#!/bin/sh\n" + script,
            env=self.env | (env or {}),
        )
        return said.strip()

    def cancel(self, job: str) -> None:
        self.ask("scancel", job)

    def hold(self, job: str) -> None:
        self.ask("scontrol", "hold", job)

    def release(self, job: str) -> None:
        self.ask("scontrol", "release", job)

    def requeue(self, job: str) -> None:
        self.ask("scontrol", "requeue", job)

    def time_out(self, job: str) -> None:
        """End its time limit now; Slurm ends the job at its next check, within half a minute."""
        self.ask("scontrol", "update", f"jobid={job}", "endtime=now")

    def cancel_all(self) -> None:
        """Cancel all jobs, and wait until nothing of them is left on any node."""
        deadline = time.monotonic() + 60
        while left := [j.id for j in self.queued()]:
            assert time.monotonic() < deadline, self.queued()
            self.ask("scancel", *left, code=None)
            time.sleep(ASK_SECS)

    def processes(self, node: str) -> list[int]:
        """Return the pids of all processes on a node, including slurmd."""
        path = self.place / "run" / f"{node}.uts"
        if not path.exists():
            return []
        found = []
        for each in Path("/proc").glob("[0-9]*/ns/uts"):
            with contextlib.suppress(OSError):
                if str(each.readlink()) == path.read_text().strip():
                    found.append(int(each.parts[2]))
        return found


class Sites:
    """Supervisors of the source tree with the sbatch driver, each on a fresh root with a file that
    describes this cluster.
    """

    def __init__(self, slurm: Slurm, users: Users, sshd: Callable[[], Sshd]) -> None:
        self._slurm, self._users, self._sshd = slurm, users, sshd
        self.sites: list[SupervisorProcess] = []

    def cluster(self, access: str = "runuser", **fields: Any) -> dict[str, Any]:
        """Return a cluster entry. access `ssh`: at the server `main`, linked by the user's own
        connection. fields: override or add settings.
        """
        said: dict[str, Any] = {
            "access": access,
            "folder": "$HOME/scratch",
            "environment": dict(self._slurm.env),
            "pollSecs": 0.4,
            "pollMaxSecs": 1.0,
            "pythons": ["/usr/bin/python3"],
        }
        said["defaults"] = {"partition": "batch", "memoryMb": 50} | (
            {} if access == "account" else {"account": ACCOUNT}
        )
        match access:
            case "runuser" | "sudo":
                said["users"] = {}
            case "ssh":
                said |= {"login": [self._sshd().login()], "link": "ssh"}
        return said | fields

    def make(
        self,
        *sets: str,
        clusters: dict[str, dict[str, Any]] | None = None,
        people: dict[str, str] | None = None,
        **options: Any,
    ) -> SupervisorProcess:
        """Return an unstarted supervisor. clusters: fields of each by name, as `cluster` takes them
        (`{"lab": {"access": "ssh"}}`).

        people: uid and the matching unix user (`{"AliceAAA": "alice"}`). options: those of the
        supervisor.
        """
        site = SupervisorProcess(("drivers.use=sbatch", *sets), disk=True, **options)
        described = []
        for name, fields in (clusters or {"lab": {}}).items():
            one = {"name": name, **self.cluster(**fields)}
            if "users" in one:
                one["users"] = {uid: self._users[who] for uid, who in (people or {}).items()} | one[
                    "users"
                ]
            if one["access"] == "account" and "folder" not in fields:
                one["folder"] = str(site.place / "shared")
                Path(one["folder"]).mkdir(exist_ok=True)
            described.append(one)
        file = site.place / "clusters.yml"
        file.write_text(json.dumps({"clusters": described}, indent=1), encoding="utf-8")
        if options.get("who") is not None:
            for path in (
                file,
                *(Path(c["folder"]) for c in described if Path(c["folder"]).exists()),
            ):
                shutil.chown(path, options["who"])
        site.add_environment(JOBSCRIBE_SBATCH_CLUSTERS=str(file))
        self.sites.append(site)
        return site

    def end(self) -> None:
        """End all supervisors and everything they started, even if some steps fail."""
        with contextlib.ExitStack() as ending:
            ending.callback(self._users.end_processes)
            ending.callback(self._slurm.cancel_all)
            for site in self.sites:
                ending.callback(site.end)


@contextlib.contextmanager
def sites(slurm: Slurm, users: Users, sshd: Callable[[], Sshd]) -> Iterator[Sites]:
    made = Sites(slurm, users, sshd)
    try:
        yield made
    finally:
        made.end()
