"""A supervisor on both hosts, users whose jobs are observed in containers, and helpers that kill
them.

The oracle is that of tests/chaos: the stamps that jobs write to disk. A process in a container
stamps its inner pid; its outer pid is found from that and the start time. An observed job runs in
its user's own directory, the only part of the host that it sees.
"""

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from consistency_check import check_books
from docker_hosts import Host, Hosts, sites
from loop_lag import check_lag
from oracle import Oracle, Stamp
from site_locations import ROOM
from supervisor_process import SupervisorProcess, jid_of, req_id, spec, until

from jobscribe.runtime import processes

#: A lost state is reported as unknown within LOST_SECS; a status is true again within TRUE_SECS
#: after a restart (seconds).
LOST_SECS, TRUE_SECS = 10 * ROOM, 5 * ROOM
#: A canceled job is gone within this time after its grace (seconds).
GONE_SECS = 1 * ROOM
#: Placement of a run: by an agent's keeper, or in a container of the task's own.
AGENT, TASK = "agent", "task"
CODE = 5
#: Users that already have an agent start their jobs sooner.
USERS = tuple(f"YardUsr{n}" for n in range(9))
#: Memory of each host for tasks, in MiB.
MEMORY = 6000
#: Replaces `flock -n 8`, which the image does not have: exclusive, without waiting.
LOCK = "python3 -ISc 'import fcntl; fcntl.flock(8, 6)'"

_letters = itertools.count()


def fresh_uid() -> str:
    """Return a new user."""
    return f"Yard{next(_letters):04d}"


def outside(stamp: Stamp) -> int | None:
    """Return the outer pid of the process that wrote this stamp. Two containers may have started in
    the same tick, so its token is compared too.
    """
    mark = f"JOBSCRIBE_TOKEN={stamp.token}".encode()
    for p in processes.table().values():
        same = p.ticks == stamp.born and not p.over and _inner(p.pid) == stamp.pid
        if same and mark in processes._read(f"/proc/{p.pid}/environ").split(b"\0"):
            return p.pid
    return None


def _inner(pid: int) -> int:
    """Return the pid in its own container."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def lives(stamp: Stamp) -> bool:
    return outside(stamp) is not None


class DockerSupervisor:
    """One site with the docker driver."""

    def __init__(self, site: SupervisorProcess, hosts: Hosts) -> None:
        self.site, self.hosts = site, hosts
        #: jids of jobs that a test itself has killed
        self.killed: set[str] = set()
        self._witnesses: dict[str, Oracle] = {}

    def oracle(self, uid: str) -> Oracle:
        if uid not in self._witnesses:
            own = self.site.root / "user" / uid
            own.mkdir(parents=True, exist_ok=True)
            self._witnesses[uid] = Oracle(self.site, own / "witness", lives)
        return self._witnesses[uid]

    def restart(self) -> None:
        """kill -9 of the supervisor, and start a new one."""
        assert self.site.stop(signal.SIGKILL) == -signal.SIGKILL
        self.site.start()

    def host_of(self, name: str) -> Host:
        """Return the host of the container with this name."""
        return next(h for h in self.hosts.hosts.values() if h.inspect(name))

    def check(self) -> str:
        """Cancel all active runs; check records, job stamps and event loop lag. Return a
        summary.
        """
        for job in self.site.post("job-list", active=True)[
            "jobs"
        ]:  # left by a failed test; they must not disturb the next one
            self.site.post("run-cancel", reqId=req_id(), uid=job["uid"], computeJid=job["jid"])
        check_books(self.site)
        said = [w.check(killed=frozenset(self.killed)) for w in self._witnesses.values()]
        assert not (late := check_lag(self.site)), late
        return f"{len(said)} users: " + "; ".join(said[:3])


class Case:
    """An observed run. place: AGENT or TASK."""

    def __init__(
        self,
        docker_site: DockerSupervisor,
        place: str,
        text: str = "",
        *,
        uid: str | None = None,
        code: int = CODE,
        deaf: bool = False,
        **fields: Any,
    ) -> None:
        """text: the command; empty: it waits at a gate of its own and exits with `code`. deaf: no
        process of it ends by SIGTERM.
        """
        self.docker_site, self.site, self.place, self.uid = (
            docker_site,
            docker_site.site,
            place,
            uid or fresh_uid(),
        )
        self.oracle = docker_site.oracle(self.uid)
        self.gate = f"gate-{next(_letters)}"
        run = (
            self.oracle.job(text, uid=self.uid, **fields)
            if text
            else self.oracle.gated(code, self.gate, uid=self.uid, **fields)
        )
        whole = run["command"][2].replace("flock -n 8", LOCK)
        if text.startswith("exec "):  # it is the job's own main process and stamps no end
            whole = whole.replace(f"( {text}\n)", text)
        run["command"] = ["/bin/sh", "-c", ("trap '' TERM HUP INT\n" if deaf else "") + whole]
        self.run = run if place == AGENT else as_task(run)
        self.jid = jid_of(self.run)

    def submit(self) -> "Case":
        self.oracle.submit(self.run, req_id())
        return self

    def started(self, secs: float = 60) -> "Case":
        until(lambda: self.oracle.started(self.run), f"{self} has started", secs)
        self.site.running(self.run, secs)
        return self

    def status(self, **fields: Any) -> dict[str, Any]:
        return self.oracle.status(self.run, **fields)

    def go(self) -> None:
        self.oracle.open(self.gate)

    def __str__(self) -> str:
        return f"{self.place} {self.jid}"

    # ---- its container

    @property
    def container(self) -> tuple[Host, str]:
        for host in self.docker_site.hosts.hosts.values():
            mark = [f"jobscribe.uid={self.uid}", f"jobscribe.part={self.place}"]
            found = host.containers(
                *mark, *([f"jobscribe.jid={self.jid}"] if self.place == TASK else []), running=True
            )
            if found:
                return host, found[0]
        raise AssertionError(f"{self} has no container")

    def on(self, host: Host) -> bool:
        """Return whether it runs in a container of this host. (The other host may be down.)"""
        return bool(
            host.containers(
                f"jobscribe.uid={self.uid}", f"jobscribe.part={self.place}", running=True
            )
        )

    def docker(self, *words: str) -> str:
        """Run a docker command on its container."""
        host, name = self.container
        return host.docker(*words, name)

    @property
    def first(self) -> int:
        """Outer pid of process 1 of its container."""
        host, name = self.container
        return int(host.inspect(name)["State"]["Pid"])

    @property
    def job(self) -> int:
        found = outside(self.oracle.started(self.run)[-1])
        assert found is not None, f"{self} does not run"
        return found

    @property
    def agent(self) -> int:
        """Pid of the agent, a child of the keeper."""
        keeper = self.first

        def look() -> int | None:
            children = [
                p.pid for p in processes.table().values() if p.parent == keeper and not p.over
            ]
            return next(
                (
                    p
                    for p in children
                    if b"jobscribe agent" in Path(f"/proc/{p}/cmdline").read_bytes()
                ),
                None,
            )

        return int(until(look, f"the agent of {self} runs"))


def as_task(run: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the same run as the only task of a gang."""
    run = dict(run)
    role = {"name": "main", "command": run.pop("command"), "memoryMb": 64, **fields}
    return run | {"roles": [role], "retry": {"count": 0, "platform": 0}}


def killed(pid: int) -> None:
    """SIGKILL a process and wait until it is gone."""
    ticks = processes.start_ticks(pid)
    assert ticks is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: not processes.alive(pid, ticks), f"{pid} is gone")


def ended(
    cases: Iterable[Case], secs: float = LOST_SECS, go: bool = True
) -> dict[Case, dict[str, Any]]:
    """Wait until all are over and return their statuses. go: open their gates."""
    said: dict[Case, dict[str, Any]] = {}
    waits = list(cases)
    deadline = time.monotonic() + secs
    for case in waits:
        while not (status := case.status(waitSecs=0.5))["over"]:
            for other in waits if go else ():
                other.go()
            assert time.monotonic() < deadline, (
                f"not over within {secs:g} s: {[(str(c), c.status()) for c in waits]}"
            )
        said[case] = status
    return said


@contextlib.contextmanager
def yards(hosts: Hosts, *sets: str, **pool: Any) -> Iterator[DockerSupervisor]:
    """Run a supervisor and remove everything of it afterwards. pool: fields of the pool."""
    for host in hosts.hosts.values():
        host.well()
    host = {"cpu": 32, "memoryMb": MEMORY, "agentsMb": MEMORY, "sequential": 12}
    with sites(hosts) as made:
        fields = {"host": host, "sequential": {"memoryMb": 256, "runs": 4}, **pool}
        yield DockerSupervisor(
            made.make("slots.op_run=8", "limits.agent_start_secs=50", *sets, pool=fields).start(),
            hosts,
        )


def crowd(docker_site: DockerSupervisor, each: int) -> dict[tuple[str, str], list[Case]]:
    """Start `each` waiting jobs for each placement and host, and return them by (place, host). Each
    host has its own user.
    """
    cases = [
        Case(docker_site, place, uid=uid)
        for _ in range(each)
        for place in (AGENT, TASK)
        for uid in USERS[: len(docker_site.hosts.hosts)]
    ]
    for case in cases:
        if case.place == TASK:  # no more tasks of this size fit on one host, only a small one
            case.run["roles"][0]["memoryMb"] = (MEMORY - 400) // each
        case.submit()
    out: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        case.started()
        out.setdefault((case.place, case.container[0].name), []).append(case)
    assert {len(found) for found in out.values()} == {each}, {
        where: len(found) for where, found in out.items()
    }
    return out


def check_next(cases: list[Case]) -> None:
    """Check that the next run of each of these users, at the same placement, works."""
    runs = []
    for case in cases:
        run = spec(["/bin/sh", "-c", "exit 0"], case.uid)
        runs.append(run if case.place == AGENT else as_task(run))
        case.site.submit(runs[-1])
    assert [c.site.wait(r, 90)["state"] for c, r in zip(cases, runs, strict=True)] == [
        "completed"
    ] * len(runs)
