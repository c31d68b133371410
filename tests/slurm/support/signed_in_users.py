"""One supervisor whose users sign in, on a cluster with two login nodes. The second looks like a
separate machine to processes.
"""

import contextlib
import copy
import itertools
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engine_scripts import free_ports
from login_nodes import Sshd, Users
from slurm_cluster import Sites, Slurm
from supervisor_process import SupervisorProcess, jid_of, shell, until

from jobscribe.runtime import processes

ALICE, BOB = "AliceAAA", "BobBBBBB"
WHO = {ALICE: "alice", BOB: "bob"}
#: Five times the slowest step on a busy machine.
SECS = 150.0
#: Longer than the maximum path of a unix socket.
DEEP = "$HOME/scratch/" + "projects-of-this-group/" * 4 + "and-below"
_gates = itertools.count(1)


class FarNode:
    """A login node with its own hostname, boot id and processes; the file system is shared.
    `reboot` ends all its processes.
    """

    def __init__(self, sshd: Sshd) -> None:
        self._sshd, self.port, self.name = sshd, free_ports(1), "js-login2"
        self._dir = sshd.users.place
        self._process: subprocess.Popen[bytes] | None = None

    def login(self) -> dict[str, Any]:
        return {**self._sshd.login("other"), "port": self.port}

    def start(self) -> None:
        said = (self._dir / "run" / "other.conf").read_text().splitlines()
        kept = [line for line in said if line.split()[:1] not in (["Port"], ["PidFile"])]
        conf, boot = self._dir / "run" / "far.conf", self._dir / "run" / "far.boot"
        conf.write_text(
            "\n".join([f"Port {self.port}", f"PidFile {self._dir}/run/far.pid", *kept]) + "\n"
        )
        boot.write_text(f"{uuid.uuid4()}\n")
        (service,) = self._dir.glob("jobscribe-sshd-*")
        inside = f"hostname {self.name}; mount -t tmpfs -o mode=1777 none /tmp; mount --bind {boot} /proc/sys/kernel/random/boot_id; {service} -f {conf} -E {self._dir}/log/far; exec sleep infinity"
        self._process = subprocess.Popen(
            [
                "unshare",
                "--uts",
                "--pid",
                "--mount",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "sh",
                "-c",
                inside,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        until(
            lambda: (
                subprocess.run(["ss", "-Hltn", f"sport = :{self.port}"], capture_output=True).stdout
            ),
            "the far login node is up",
        )

    def stop(self) -> None:
        """Kill all its processes at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def reboot(self) -> None:
        self.stop()
        self.start()

    def cut_off(self) -> None:
        """End its sshd and all sessions; agents run on."""
        for pid in self.processes():
            if processes._read(f"/proc/{pid}/cmdline").startswith(
                (b"sshd", b"jobscribe-sshd", str(self._dir).encode())
            ):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        assert self._process is not None
        first = [p for p in processes.table().values() if p.parent == self._process.pid]
        mine = os.readlink(f"/proc/{first[0].pid}/ns/pid") if first else ""
        return (
            [p.pid for p in processes.table().values() if _namespace(p.pid) == mine] if mine else []
        )


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


class SignedInUsers:
    """A supervisor and its users. clusters: see `described`. Each thread has its own connection."""

    def __init__(
        self,
        site: SupervisorProcess,
        slurm: Slurm,
        users: Users,
        sshd: Sshd,
        far: FarNode | None = None,
    ) -> None:
        self._site, self.slurm, self.users, self.sshd, self.far = site, slurm, users, sshd, far
        self.root, self._mine = site.root, threading.local()
        self._copies: list[SupervisorProcess] = []

    @property
    def site(self) -> SupervisorProcess:
        if getattr(self._mine, "url", None) != self._site.url:
            self._mine.site, self._mine.url = copy.copy(self._site), self._site.url
            self._mine.site._connection = None
            self._copies.append(self._mine.site)
        found: SupervisorProcess = self._mine.site
        return found

    def close(self) -> None:
        for copied in self._copies:
            copied._disconnect()

    # ---- the supervisor

    def kill(self) -> None:
        self._site.stop(signal.SIGKILL)

    def start(self) -> None:
        self._site.start()

    # ---- users

    def login(
        self, uid: str, cluster: str, *, code: int = 200, username: str | None = None, **given: str
    ) -> dict[str, Any]:
        """Sign in with the password; return the answer."""
        name = self.users[WHO[uid]] if username is None else username
        body = {
            "uid": uid,
            "cluster": cluster,
            "username": name,
            **(given or {"password": self.users.password}),
        }
        while (
            answer := self.site.ask("POST", "/api/sbatch-login", json.dumps(body).encode())
        ).code == 429 and code == 200:
            assert b"in progress" in answer.body, answer
            time.sleep(0.2)
        assert answer.code == code, (answer.code, answer.body)
        said: dict[str, Any] = answer.json()
        return said

    def ready(self, uid: str, cluster: str) -> bool:
        return bool(self.site.post("sbatch-login-status", uid=uid, cluster=cluster)["ready"])

    # ---- runs

    def run(self, text: str, uid: str, cluster: str, **fields: Any) -> dict[str, Any]:
        run = shell(
            text, uid, **{"graceSecs": 1.0, "batch": {"cluster": cluster, "memoryMb": 20}, **fields}
        )
        self.site.submit(run)
        return run

    def gated(self, uid: str, cluster: str, code: int = 0) -> tuple[dict[str, Any], Path]:
        """Return a run that counts its starts and ends when the gate file exists, and the gate."""
        gate = self.users.home(WHO[uid]) / f"gate-{next(_gates)}"
        text = f"echo begun; echo x >>{gate}.begun; until [ -e {gate} ]; do sleep 0.2; done; echo over; exit {code}"
        return self.run(text, uid, cluster), gate

    def open(self, gate: Path) -> None:
        gate.touch()

    def status(self, run: Mapping[str, Any]) -> dict[str, Any]:
        return self.site.status(dict(run))

    def until(
        self, run: Mapping[str, Any], true: Callable[[dict[str, Any]], Any], what: str
    ) -> dict[str, Any]:
        """Return its status once the condition is true."""
        last: list[dict[str, Any]] = []

        def look() -> dict[str, Any] | None:
            last[:] = [self.status(run)]
            return last[0] if true(last[0]) else None

        try:
            found: dict[str, Any] = until(look, what, SECS, 0.2)
        except BaseException as e:
            raise AssertionError(f"{what}: {e}: {last}\n{self._site.log()[-3000:]}") from None
        return found

    def running(self, run: Mapping[str, Any], gate: Path | None = None) -> str:
        """Wait until it is reported as running (and has begun); return its Slurm job."""
        until(lambda: gate is None or Path(f"{gate}.begun").exists(), "it has begun", SECS)
        return str(
            self.until(run, lambda s: s["state"] == "running" and s["known"], "it runs")["batch"][
                "jobId"
            ]
        )

    def unknown(self, run: Mapping[str, Any], *words: str) -> None:
        """Check that its state is reported as unknown, and since when."""
        said = self.until(
            run,
            lambda s: s["known"] is False and all(w in str(self.why(run)) for w in words),
            f"{words} is said",
        )
        assert said["state"] == "running" and said["over"] is False and said["since"], said

    def why(self, run: Mapping[str, Any]) -> dict[str, Any]:
        said: dict[str, Any] = self.site.post(
            "job-why", uid=run["uid"], computeJid=jid_of(dict(run))
        )
        return said

    def over(
        self, run: Mapping[str, Any], state: str = "completed", gate: Path | None = None
    ) -> dict[str, Any]:
        """Wait for the end and return the status; check the state, and that it began once."""
        said = self.site.wait(dict(run), SECS)
        assert (said["state"], said["known"]) == (state, True), said
        assert self.slurm.state(said["batch"]["jobId"]) == said["batch"]["state"], said
        assert gate is None or Path(f"{gate}.begun").read_text() == "x\n", "it began once"
        mine = [
            j
            for j in self.slurm.queued(user=self.users[WHO[run["uid"]]], active=False)
            if j.comment.split("/")[0].endswith(f" {jid_of(dict(run))}")
        ]
        assert len(mine) == 1, mine
        return said

    # ---- agents and keepers

    def base(self, uid: str, cluster: str) -> Path:
        (found,) = {
            p.parent.parent
            for p in self.users.home(WHO[uid]).glob(f"**/agent/sbatch.parallel.{uid}@{cluster}")
        }
        return found

    def folder(self, uid: str, cluster: str) -> Path:
        return self.base(uid, cluster) / "agent" / f"sbatch.parallel.{uid}@{cluster}"

    def keepers(self, uid: str, cluster: str) -> list[int]:
        """Return the pids of this agent's keepers on any node, of the current lease and the
        previous one.
        """
        owners = set()
        for lease in (self.folder(uid, cluster) / "lease").glob("*"):
            with contextlib.suppress(OSError, ValueError):  # it is ending, or not written yet
                said = json.loads(lease.read_text())
                owners.add((said["pid"], said["startTicks"]))
        titled = [
            p.pid
            for p in processes.table().values()
            if not p.over and _titled(p.pid, b"jobscribe keeper")
        ]
        return [pid for pid in titled if (_own_number(pid), processes.start_ticks(pid)) in owners]

    def agents(self, uid: str, cluster: str) -> list[int]:
        keepers = self.keepers(uid, cluster)
        return [
            p.pid
            for p in processes.table().values()
            if p.parent in keepers and not p.over and _titled(p.pid, b"jobscribe agent")
        ]

    def agent(self, uid: str, cluster: str) -> int:
        (pid,) = until(lambda: self.agents(uid, cluster), "there is an agent", SECS)
        return int(pid)

    def socket(self, uid: str, cluster: str) -> Path:
        return Path(json.loads((self.folder(uid, cluster) / "agents.json").read_text())["link"])

    def end_on_login_node(self, uid: str) -> None:
        """End the user's processes like a reboot of the login node. Jobs run elsewhere."""
        jobs = {pid for node in self.slurm.nodes for pid in self.slurm.processes(node)}
        for pid in self.users.processes(WHO[uid]):
            if pid not in jobs:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)


def _own_number(pid: int) -> int:
    """Return the pid in its own namespace, or 0 if it is gone."""
    said = processes._read(f"/proc/{pid}/status").partition(b"\nNSpid:")[2].split(b"\n")[0].split()
    return int(said[-1]) if said else 0


def _titled(pid: int, title: bytes) -> bool:
    return processes._read(f"/proc/{pid}/cmdline").startswith(title)


def all_at_once(*plays: Callable[[], None]) -> None:
    """Run each in a thread; raise their errors."""
    with ThreadPoolExecutor(len(plays)) as pool:
        done: list[Future[None]] = [pool.submit(play) for play in plays]
    errors = [e for d in done if (e := d.exception()) is not None]
    if errors:
        raise ExceptionGroup(
            f"{len(errors)} of {len(plays)}",
            [
                e
                if isinstance(e, Exception)
                else AssertionError(str(e)).with_traceback(e.__traceback__)
                for e in errors
            ],
        )


@contextlib.contextmanager
def signed_in(
    sites: Sites,
    slurm: Slurm,
    users: Users,
    sshd: Sshd,
    clusters: Mapping[str, dict[str, Any]],
    *sets: str,
    far: FarNode | None = None,
) -> Iterator[SignedInUsers]:
    site = sites.make(*sets, clusters=dict(clusters), people=dict(WHO))
    at = SignedInUsers(site, slurm, users, sshd, far)
    try:
        at.start()
        yield at
    finally:
        at.close()
        if far is not None:
            far.stop()
        users.end_processes()
        for who in WHO.values():
            for path in users.home(who).glob("gate-*"):
                path.unlink(missing_ok=True)
            for path in (users.home(who) / "scratch").iterdir():
                shutil.rmtree(path, ignore_errors=True)
