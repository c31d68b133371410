"""Observed runs on the real cluster, a supervisor whose answers are checked all the time, and
helpers that kill processes.

The oracle is that of tests/chaos (the stamps that jobs write to disk), plus Slurm's own state,
queried directly. Nodes of this cluster have their own hostnames and share this machine's processes,
so each stamp's process can be inspected.
"""

import contextlib
import copy
import http.client
import itertools
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from consistency_check import check_books
from login_nodes import Users
from loop_lag import check_lag
from oracle import Oracle
from site_locations import ROOM
from slurm_cluster import Job, Slurm, sites
from supervisor_process import SupervisorProcess, jid_of, req_id, until

from jobscribe.runtime import processes

ALICE, BOB = "WitAlice", "WitBobby"
PEOPLE = {ALICE: "alice", BOB: "bob"}
#: A third user, whose agent no test kills.
CAROL = "WitCarol"
UNIX_NAMES = {**PEOPLE, CAROL: "key"}
#: Maximum interval of the queries to Slurm (seconds). An end is reported, and a status is true
#: again after a restart, within the times below.
POLL_SECS = 1.0
TOLD_SECS, TRUE_SECS = (POLL_SECS + 30) * ROOM, 5 * ROOM
#: A canceled job is gone within this time after its grace (seconds).
GONE_SECS = 1 * ROOM
#: Timeout of a Slurm command (seconds).
CALL_SECS = 6.0
CODE = 5
PROGRAMS = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo", "sacctmgr")

_gates = itertools.count(1)

#: Wrapper for Slurm's commands: it logs each call, and can disturb the first sbatch of a job. $PPID
#: is the agent.
_PROGRAM = """#!/bin/sh
real=/usr/bin/{name}
read -r up _ </proc/uptime
echo "$up {name} $(id -un) $*" >>{place}/calls
[ {name} = sbatch ] || exec "$real" "$@"
for jid in $(ls {place}/tricks); do case $* in *"$jid"*) mv {place}/tricks/$jid {place}/played/$jid 2>/dev/null && trick=$(cat {place}/played/$jid) ;; esac; done
keeper=$(ps -o ppid= -p $PPID | tr -d ' ')
case ${{trick-}} in
    "") exec "$real" "$@" ;;
    "killed before") kill -KILL $PPID ;;
    "killed after") "$real" "$@" >{place}/said.$$; kill -KILL $PPID ;;
    "both killed after") "$real" "$@" >{place}/said.$$; kill -KILL "$keeper" $PPID ;;
    "killed while it waits") setsid sh -c 'sleep 2; exec "$0" "$@"' "$real" "$@" >/dev/null 2>&1 & sleep 0.5; kill -KILL $PPID ;;
    "answer lost") "$real" "$@" >{place}/said.$$; echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1 ;;
    "no answer") "$real" "$@" >{place}/said.$$; sleep 100 ;;
    "taken late") setsid sh -c 'sleep 14; exec "$0" "$@"' "$real" "$@" >/dev/null 2>&1 & sleep 100 ;;
    "taken twice") "$real" "$@" >/dev/null; exec "$real" "$@" ;;
esac
"""


_ON_THIS_BOOT = """#!/bin/sh
exec unshare --mount sh -c 'mount --bind "{boot}" /proc/sys/kernel/random/boot_id && exec "$0" "$@"' "{python}" "$@"
"""


class ObservedSupervisor:
    """One supervisor with the sbatch driver; each user is a separate unix user."""

    def __init__(self, site: SupervisorProcess, slurm: Slurm, users: Users, place: Path) -> None:
        self.site, self.slurm, self.users, self.place = site, slurm, users, place
        #: jids of jobs that a test itself has killed
        self.killed: set[str] = set()
        self.oracle = Oracle(site, place)
        self.watch = Watch(self)

    def restart(self) -> float:
        """kill -9 of the supervisor, and start a new one. Return the time when it was up
        (monotonic).
        """
        assert self.site.stop(signal.SIGKILL) == -signal.SIGKILL
        self.site.start()
        return time.monotonic()

    def reboot(self) -> float:
        """Power cut of the machine with supervisor, keepers and agents; the boot id changes. (See
        `houses`.)
        """
        assert self.site.process is not None
        self.kill(
            self.site.process.pid,
            *self.agents(),
            *self.agents(what="keeper"),
            *self.site.titled("relay"),
        )
        self.site.stop(signal.SIGKILL)
        _boot(self.place, 2)
        self.site.start()
        return time.monotonic()

    # ---- agents

    def agents(self, uid: str = "", what: str = "agent") -> list[int]:
        """Return the pids of running agents (or keepers), of this user or of all."""
        names = [UNIX_NAMES[uid]] if uid else sorted(UNIX_NAMES.values())
        title = f"jobscribe {what} ".encode()
        return [
            pid
            for name in names
            for pid in self.users.processes(name)
            if _line(pid).startswith(title)
        ]

    def agent(self, uid: str) -> int:
        return int(until(lambda: self.agents(uid), f"the agent of {uid} runs", 60)[0])

    def keeper(self, uid: str) -> int:
        return int(until(lambda: self.agents(uid, "keeper"), f"the keeper of {uid} runs", 60)[0])

    def kill(self, *pids: int) -> None:
        """SIGKILL all of them at once; return when they are gone."""
        known = [(pid, processes.start_ticks(pid)) for pid in pids]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid, ticks in known:
            until(
                lambda pid=pid, ticks=ticks: ticks is None or not processes.alive(pid, ticks),
                f"{pid} is gone",
            )  # type: ignore[misc]

    # ---- Slurm's commands

    def trick(self, case: "ObservedRun", what: str) -> None:
        """Set the disturbance of this run's first sbatch."""
        (self.place / "tricks" / case.jid).write_text(what)

    def played(self, case: "ObservedRun") -> bool:
        return (self.place / "played" / case.jid).exists()

    def calls(self) -> list[tuple[float, str, str]]:
        """Return the agents' calls of Slurm commands: seconds since boot, command, agent."""
        rows = (line.split(" ", 3) for line in (self.place / "calls").read_text().splitlines())
        return [(float(at), name, who) for at, name, who, *_ in rows]

    # ---- final checks

    def check(self) -> str:
        """Cancel all active runs; check records, job stamps, the watch and event loop lag. Return a
        summary.
        """
        for job in self.site.post("job-list", active=True)[
            "jobs"
        ]:  # left by a failed test; they must not disturb the next one
            self.site.post("run-cancel", reqId=req_id(), uid=job["uid"], computeJid=job["jid"])
        until(
            lambda: not self.site.post("job-list", active=True)["jobs"],
            "nothing is pending or running",
            TOLD_SECS,
        )
        check_books(self.site)
        assert not self.watch.lies, self.watch.lies
        said = self.oracle.check(killed=frozenset(self.killed))
        late = check_lag(self.site)
        assert not late, late
        return f"{said}, {self.watch.looks} looks"


class ObservedRun:
    """An observed run. text: the command; empty: it waits at a gate of its own and exits with
    `code`.
    """

    def __init__(
        self,
        observed: ObservedSupervisor,
        text: str = "",
        *,
        uid: str = ALICE,
        code: int = CODE,
        deaf: bool = False,
        **fields: Any,
    ) -> None:
        """deaf: no process of it ends by SIGTERM."""
        self.observed, self.uid, self.gate = observed, uid, f"gate-{next(_gates)}"
        fields = {"graceSecs": 1.0, "batch": {}, **fields}
        w = observed.oracle
        self.run = (
            w.job(text, uid=uid, **fields) if text else w.gated(code, self.gate, uid=uid, **fields)
        )
        if deaf:
            self.run["command"][2] = "trap '' TERM HUP INT\n" + self.run["command"][2]
        self.jid = jid_of(self.run)

    def submit(self) -> "ObservedRun":
        self.observed.oracle.submit(self.run, req_id())
        self.observed.watch.add(self)
        return self

    def started(self, secs: float = 60) -> "ObservedRun":
        until(lambda: self.observed.oracle.started(self.run), f"{self} has started", secs, 0.05)
        self.observed.site.running(self.run, secs)
        return self

    def queued(self, secs: float = 60) -> "ObservedRun":
        """Wait until jobscribe reports it in Slurm's queue."""
        until(lambda: self.status()["queueState"] == "slurm", f"{self} waits for Slurm", secs, 0.05)
        return self

    def status(self, **fields: Any) -> dict[str, Any]:
        return self.observed.oracle.status(self.run, **fields)

    def cancel(self) -> dict[str, Any]:
        return self.observed.oracle.heard(self.observed.site.cancel(self.run))

    def go(self) -> None:
        self.observed.oracle.open(self.gate)

    @property
    def alive(self) -> bool:
        return self.observed.oracle.alive(self.run)

    @property
    def starts(self) -> int:
        return len(self.observed.oracle.started(self.run))

    @property
    def jobs(self) -> list[Job]:
        """Return all Slurm jobs of it, active or over."""
        return [
            j
            for j in self.observed.slurm.queued(active=False)
            if j.name.startswith(f"js-{self.jid}-")
        ]

    def __str__(self) -> str:
        return self.jid


class Watch(threading.Thread):
    """A client that continuously asks for every run and reads its record. lies: the false
    answers.
    """

    def __init__(self, observed: ObservedSupervisor) -> None:
        super().__init__(daemon=True)
        self._house, self._over = observed, threading.Event()
        self._cases: dict[str, ObservedRun] = {}
        self._heard: dict[tuple[str, int], str] = {}
        self._own = Oracle(observed.site, observed.place / "watch")
        self.lies: list[str] = []
        self.looks = 0
        #: jid: (time, status) of every change
        self.said: dict[str, list[tuple[float, dict[str, Any]]]] = {}

    def add(self, case: ObservedRun) -> None:
        self._cases[case.jid] = case

    def run(self) -> None:
        site = copy.copy(self._house.site)
        site._connection = None
        with contextlib.ExitStack() as ending:
            ending.callback(site._disconnect)
            self._watch(site)

    def _watch(self, site: SupervisorProcess) -> None:
        while not self._over.wait(0.2):
            for case in list(self._cases.values()):
                try:
                    site.url = self._house.site.url
                    self._look(site, case)
                except (OSError, http.client.HTTPException):  # no supervisor is running now
                    site._disconnect()
                except AssertionError as e:
                    self.lies.append(str(e))

    def _look(self, site: SupervisorProcess, case: ObservedRun) -> None:
        status = site.status(case.run)
        self._own.heard(status)
        before = self.said.setdefault(case.jid, [])
        if not before or _gist(before[-1][1]) != _gist(status):
            before.append((time.monotonic(), status))
        if status["state"] in ("completed", "error") or status["over"]:
            del self._cases[case.jid]
            # the answer came before this check
            assert not case.alive, f"{case} lives, and this was said: {status}"
        self.looks += 1
        with contextlib.suppress(FileNotFoundError):  # the record is written soon after the answer
            record = json.loads((site.root / "supervisor-job" / f"{case.jid}.json").read_text())
            self._own.heard(
                {
                    "computeJid": f"record of {case.jid}",
                    "computeJobSerial": record["computeJobSerial"],
                    "state": record["status"],
                    "reason": record.get("reason"),
                }
            )

    def ever(self, case: ObservedRun, true: Callable[[dict[str, Any]], bool]) -> bool:
        return any(true(status) for _, status in self.said.get(case.jid, []))

    def end(self) -> None:
        self._over.set()
        self.join()


def _gist(status: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(status.get(k) for k in ("state", "known", "over", "queueState", "reason"))


def _line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def ended(
    cases: Iterable[ObservedRun], secs: float = TOLD_SECS, go: bool = True
) -> dict[ObservedRun, dict[str, Any]]:
    """Wait until all are over and return their statuses. go: open their gates."""
    said: dict[ObservedRun, dict[str, Any]] = {}
    waits = list(cases)
    deadline = time.monotonic() + secs
    for case in waits:
        while not (status := case.status(waitSecs=0.5))["over"]:
            for other in waits if go else ():
                other.go()
            assert time.monotonic() < deadline, (
                f"not over within {secs:g} s: {[(str(c), c.status(), c.jobs) for c in waits]}"
            )
        said[case] = status
    return said


def true_again(cases: list[ObservedRun], state: str = "running", secs: float = TRUE_SECS) -> float:
    """Check that no status is ever false, and wait until all are known. Return the seconds that
    took.
    """
    begun = time.monotonic()
    while True:
        said = [case.status() for case in cases]
        assert {s["state"] for s in said} <= {state} and not any(s["over"] for s in said), said
        took = time.monotonic() - begun
        if all(s["known"] for s in said):
            return took
        assert took < secs, f"not everything is known again within {secs:g} s: {said}"
        time.sleep(0.02)


def well_ended(said: dict[ObservedRun, dict[str, Any]], code: int = CODE) -> None:
    """Check that each run ended with its exit code and last line, once."""
    for case, status in said.items():
        exit_ = status["exit"]
        assert (status["state"], status["reason"]) == (
            ("error" if code else "completed"),
            "exit",
        ), (str(case), status)
        assert (
            exit_["code"],
            exit_["source"],
            exit_["lastLines"] if code else "the last line",
        ) == (code, "script", "the last line"), (str(case), status)
        assert case.starts == 1, str(case)


def _boot(place: Path, number: int) -> None:
    (place / "boot").write_text(f"{number:08x}-0000-4000-8000-000000000000\n")


@contextlib.contextmanager
def houses(
    slurm: Slurm,
    users: Users,
    *sets: str,
    sshd: Any = None,
    fields: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[ObservedSupervisor]:
    """Run a supervisor with a simulated boot id for it and its agents; remove everything
    afterwards.

    fields: of the cluster `lab`.
    """
    place = Path(tempfile.mkdtemp(prefix="witness-", dir=slurm.place))
    place.chmod(0o777)
    folder = place / "bin"
    folder.mkdir()
    for name in PROGRAMS:
        (folder / name).write_text(_PROGRAM.format(name=name, place=place))
        (folder / name).chmod(0o755)
    folder.chmod(0o755)
    for name in ("tricks", "played"):
        (place / name).mkdir()
        (place / name).chmod(0o777)
    (place / "calls").touch()
    (place / "calls").chmod(0o666)
    _boot(place, 1)
    (place / "python").write_text(_ON_THIS_BOOT.format(boot=place / "boot", python=sys.executable))
    (place / "python").chmod(0o755)
    environment = {**slurm.env, "PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin"}
    cluster = {
        "environment": environment,
        "pollMaxSecs": POLL_SECS,
        "callSecs": CALL_SECS,
        **(fields or {}),
    }
    slurm.well()
    with sites(slurm, users, lambda: sshd) as made:
        site = made.make(
            "limits.agent_start_secs=60",
            *sets,
            clusters={"lab": cluster},
            people=UNIX_NAMES,
            python=str(place / "python"),
            **options,
        )
        observed = ObservedSupervisor(site, slurm, users, place)
        site.start()
        observed.watch.start()
        try:
            yield observed
        finally:
            observed.watch.end()
