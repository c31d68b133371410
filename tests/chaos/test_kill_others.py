"""kill -9 of agents, keepers, job commands, shells, fork servers and workers, alone and together:
the end of every job is reported correctly.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from consistency_check import check_books
from oracle import Oracle, kill
from site_locations import ROOM, dice, new_site, share
from supervisor_process import SupervisorProcess, naps, req_id, shell, spec, until

from jobscribe.runtime import processes

CODE = 5
#: A lost exit status is reported within this time after the loss (seconds).
LOST_SECS = 10
COMBINATIONS = share(4, 100)
PID_SECS = 30.0

APP = """
import os, time
from jobscribe.apps.app import App, Model, Prepared

def hang(lib, args):
    lib.mkdir(parents=True, exist_ok=True)
    (lib / "pid").write_text(str(os.getpid()))
    time.sleep(600)

app = App(
    name="frail", title="Frail", version="1", models=(Model(name="m", title="m", kind="sequential"),),
    parameters=lambda data, model: {}, prepare=lambda run: Prepared(command=("/bin/sh", "-c", run.data["shell"])), result=lambda run: {},
    stateful={"hang": hang}, stateless={"echo": lambda args: args},
)
"""


@pytest.fixture(scope="module")
def site(who: int | None) -> Iterator[SupervisorProcess]:
    site = new_site(
        who,
        "slots.local_sequential=4",
        "apps.also=frail=frail_app:app",
        modules={"frail_app.py": APP},
    )
    try:
        yield site.start()
    finally:
        left = site.end()
    assert left == {}, "processes outlived their keeper"


@pytest.fixture
def oracle(site: SupervisorProcess) -> Iterator[Oracle]:
    yield Oracle(site)
    check_books(site)


_uids = (
    f"KillOth{c}" for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789" * 9
)


class Case:
    """A job with its own user and its own gate, at which it waits; and its processes."""

    def __init__(
        self, site: SupervisorProcess, oracle: Oracle, *, app: bool = False, uid: str | None = None
    ) -> None:
        self.site, self.oracle, self.uid = site, oracle, uid or next(_uids)
        self.gate = f"gate-{self.uid}"
        run = oracle.gated(CODE, self.gate, uid=self.uid)
        if app:
            text = run.pop("command")[2]
            run = spec(
                (),
                self.uid,
                simulationType="frail",
                computeModel="m",
                data={"models": {"m": {}}, "shell": text},
            )
        self.run = run
        oracle.submit(run, req_id())
        (self.stamp,) = until(lambda: oracle.started(run), "it has started")
        site.running(run)
        found = processes.find(self.stamp.pid)
        assert found is not None
        self.session = found.session

    @property
    def agent(self) -> int:
        return self.site.agent_pid(self.uid)

    @property
    def keeper(self) -> int:
        return int(self.site.keeper(self.uid)["pid"])

    @property
    def reaper(self) -> int:
        found = processes.find(self.keeper)
        assert found is not None and found.parent in self.site.titled("reaper")
        return found.parent

    def ancestor(self, generations: int) -> int:
        """Return the pid of an ancestor of the job's shell. 1: the parent, and so on."""
        pid = self.stamp.pid
        for _ in range(generations):
            found = processes.find(pid)
            assert found is not None
            pid = found.parent
        return pid

    def let_go(self) -> None:
        self.oracle.open(self.gate)

    def end(self, secs: float = 30) -> dict[str, Any]:
        def over() -> bool:
            self.let_go()
            return bool(self.site.status(self.run)["over"])

        until(over, "it is over", secs)
        return self.oracle.status(self.run)

    def check_end(self, source: str) -> None:
        """Check that the job continued, and that its exit code and last line are reported
        correctly.
        """
        assert processes.alive(self.stamp.pid, self.stamp.born), "it was not touched"
        self.check_told(self.end(), source)

    def check_told(self, said: dict[str, Any], source: str) -> None:
        assert (said["state"], said["reason"], said["exit"]["code"]) == ("error", "exit", CODE), (
            said
        )
        assert said["exit"]["source"] == source, said
        assert (
            said["exit"]["lastLines"] == "the last line"
            and self.site.output(self.run, tail=14).body == b"the last line\n"
        )

    def check_killed(self) -> None:
        """Check that a signal ended the job and that no cancel was requested."""
        said = self.end()
        assert (
            said["state"],
            said["reason"],
            said["exit"]["signal"],
            said["exit"]["stopReason"],
        ) == ("error", "signal", signal.SIGKILL, None), said
        self.check_gone()

    def check_gone(self) -> None:
        assert not processes.alive(self.stamp.pid, self.stamp.born)
        left = [
            p.pid for p in processes.table().values() if p.session == self.session and not p.over
        ]
        assert left == [], "its tree is gone"

    def check_slots(self) -> None:
        """Check that the next job of this user starts."""
        assert self.site.finished(shell("exit 0", self.uid))["state"] == "completed"


# ---- one at a time


def test_an_agent(site: SupervisorProcess, oracle: Oracle) -> None:
    case = Case(site, oracle)
    site.kill(case.agent)
    case.check_end("keeper")
    case.check_slots()


def test_a_keeper(site: SupervisorProcess, oracle: Oracle) -> None:
    case = Case(site, oracle)
    site.kill(case.keeper)
    case.check_end("keeper")
    case.check_slots()


def test_agent_and_keeper_at_once(site: SupervisorProcess, oracle: Oracle) -> None:
    case = Case(site, oracle)
    agent, keeper = case.agent, case.keeper
    for pid in (agent, keeper):
        os.kill(pid, signal.SIGSTOP)
    for pid in (agent, keeper):
        site.kill(pid)
    case.check_end("keeper")
    case.check_slots()


def test_a_reaper(site: SupervisorProcess, oracle: Oracle) -> None:
    """It is needed only after the death of its keeper."""
    case = Case(site, oracle)
    site.kill(case.reaper)
    case.check_end("keeper")
    case.check_slots()


def test_a_keeper_at_the_end_of_its_job(site: SupervisorProcess, oracle: Oracle) -> None:
    """The job ends while its keeper is stopped. Then the keeper is killed, and never ran again."""
    case = Case(site, oracle)
    keeper = case.keeper
    os.kill(keeper, signal.SIGSTOP)
    until(lambda: case.let_go() or not processes.alive(case.stamp.pid, case.stamp.born), "its end")
    site.kill(keeper)
    case.check_told(case.end(), "keeper")
    case.check_slots()


def test_the_command(site: SupervisorProcess, oracle: Oracle) -> None:
    case = Case(site, oracle)
    kill(case.stamp)
    case.check_killed()
    case.check_slots()


def test_the_interpreter_of_a_job_command(site: SupervisorProcess, oracle: Oracle) -> None:
    case = Case(site, oracle, app=True)
    job_command = case.ancestor(1)
    assert b"job_command" in Path(f"/proc/{job_command}/cmdline").read_bytes()
    site.kill(job_command)
    case.check_killed()
    case.check_slots()


def test_the_apps_side_of_a_job_command(site: SupervisorProcess, oracle: Oracle) -> None:
    """The job command runs the next step in a new process: nothing of the run is lost."""
    case = Case(site, oracle, app=True)
    job_command = case.ancestor(1)
    side = next(
        p.pid
        for p in processes.table().values()
        if p.parent == job_command and p.pid != case.stamp.pid
    )
    site.kill(side)
    said = case.end()
    assert (said["state"], said["exit"]["code"]) == ("error", CODE)
    case.check_slots()


def test_the_template(site: SupervisorProcess, oracle: Oracle) -> None:
    case = Case(site, oracle)
    (template,) = site.titled("template")
    site.kill(template)
    assert site.finished(shell("exit 0", next(_uids)))["state"] == "completed"
    case.check_end("keeper")


def test_a_worker(site: SupervisorProcess, oracle: Oracle) -> None:
    """The caller gets a retryable error at once; the run beside it and the next call are not
    affected.
    """
    case = Case(site, oracle)
    body = {"uid": case.uid, "simulationType": "frail"}
    answers: list[Any] = []

    def hang() -> None:
        connection = site.connection(60)
        call = json.dumps({**body, "jobCmd": "stateful_compute", "method": "hang", "args": {}})
        connection.request("POST", "/api/call", call, {"Authorization": "Bearer " + site.token})
        reply = connection.getresponse()
        answers.append((reply.status, json.loads(reply.read())))
        connection.close()

    thread = threading.Thread(target=hang)
    thread.start()
    file = site.root / "user" / case.uid / "frail" / "lib" / "pid"
    site.kill(int(until(lambda: file.exists() and file.read_text(), "somebody computes")))
    thread.join()
    ((status, said),) = answers
    assert (status, said["code"]) == (422, "appFailed") and "SIGKILL" in said["error"], (
        status,
        said,
    )
    assert site.post("call", **body, jobCmd="stateless_compute", method="echo", args={"n": 1}) == {
        "n": 1
    }
    case.check_end("keeper")


# ---- exit status unknown


def test_keeper_and_reaper_while_no_supervisor_is_there(
    site: SupervisorProcess, oracle: Oracle
) -> None:
    """Both processes that could have read the exit are gone; the command itself continues."""
    case = Case(site, oracle)
    reaper, keeper = case.reaper, case.keeper
    site.stop(signal.SIGKILL)
    site.kill(reaper)
    site.kill(keeper)
    assert processes.alive(case.stamp.pid, case.stamp.born)
    site.start()
    site.running(case.run)
    case.let_go()
    begun = time.monotonic()
    said = site.wait(case.run, LOST_SECS * ROOM)
    print(f"lost after {time.monotonic() - begun:.2f} s")
    assert (said["state"], said["reason"], said["exit"]["source"]) == ("error", "lost", "lost")
    assert said["error"], "with a sentence"
    case.check_gone()
    case.check_slots()


def test_a_pid_that_is_another_process_by_now(site: SupervisorProcess, oracle: Oracle) -> None:
    """Keeper and job are gone, and unrelated processes have their pids. Neither is mistaken for
    them or harmed.
    """
    if os.geteuid() != 0 or not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK):
        pytest.skip(
            "the next pid can be chosen by root only, in a kernel with CONFIG_CHECKPOINT_RESTORE"
        )
    case = Case(site, oracle)
    main, keeper, reaper = case.stamp.pid, case.keeper, case.reaper
    with _undertaker() as bury:
        site.stop(signal.SIGKILL)
        site.kill(reaper)
        site.kill(keeper)
        # a session id stays in use while the session has a process, even a zombie
        members = [p.pid for p in processes.table().values() if p.session == main]
        for pid in members:
            site.kill(pid)
        for pid in (reaper, keeper, *members):
            bury(pid)
    with _stranger(main) as first, _stranger(keeper) as second:
        site.start()
        said = site.wait(case.run, LOST_SECS * ROOM)
        assert (said["state"], said["reason"]) == ("error", "lost")
        case.check_slots()
        assert [s.poll() for s in (first, second)] == [None, None]


@contextlib.contextmanager
def _undertaker() -> Iterator[Callable[[int], None]]:
    """Adopt and reap orphan processes at once, because not every machine's init does. Yield a
    function that waits for the end of a pid.
    """

    def bury(pid: int) -> None:
        with contextlib.suppress(ChildProcessError):
            until(lambda: os.waitpid(pid, os.WNOHANG)[0], f"{pid} is over")

    assert processes.become_subreaper()
    try:
        yield bury
    finally:
        ctypes.CDLL(None).prctl(36, 0)  # PR_SET_CHILD_SUBREAPER


@contextlib.contextmanager
def _stranger(pid: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process that has exactly this pid, in its own session."""
    stranger = _with_pid(pid)
    try:
        yield stranger
    finally:
        stranger.kill()
        assert stranger.wait() == -signal.SIGKILL


def _with_pid(pid: int) -> "subprocess.Popen[bytes]":
    deadline = time.monotonic() + PID_SECS
    while time.monotonic() < deadline:
        if Path(f"/proc/{pid}").exists():  # another process or thread took the pid
            time.sleep(0.05)
            continue
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
        if stranger.pid == pid:
            return stranger
        stranger.kill()
        stranger.wait()
    pytest.fail(
        f"pid {pid} was not to be had in {PID_SECS} s: this machine starts too many processes, or one that stays has it"
    )


# ---- together


@pytest.mark.timeout(60 + COMBINATIONS * 10)
def test_any_of_them_at_any_instant_while_jobs_end(
    site: SupervisorProcess, oracle: Oracle, who: int | None
) -> None:
    """Exit code and last line are right every time."""
    chance = dice(f"others/{who}")
    uids = [next(_uids) for _ in range(2)]
    killed: list[str] = []
    for _ in range(COMBINATIONS):
        cases = [Case(site, oracle, uid=uid) for uid in uids]
        acts = [*_kills(site, cases, chance), *[case.let_go for case in cases]]
        chance.shuffle(acts)
        for act in acts:
            killed.append(act() or "let go")
            time.sleep(chance.choice((0, 0, 0.01, 0.1)))
        if site.process is None:
            site.start()
        for case in cases:
            case.check_told(case.end(60), "keeper")
        for path in (site.place / "witness").glob("*.open"):
            path.unlink()
    print(
        f"{COMBINATIONS} combinations: "
        + ", ".join(f"{killed.count(k)} x {k}" for k in sorted(set(killed)))
    )
    assert len(set(killed)) == 5, "each of them was killed"
    for case in cases:
        case.check_slots()


def _kills(site: SupervisorProcess, cases: list[Case], chance: Any) -> list[Callable[[], str]]:
    """Return kill functions for a random choice of supervisor, fork server, and each job's agent
    and keeper.
    """

    def one(pid: int, name: str) -> str:
        ticks = processes.start_ticks(pid)
        if ticks is not None:
            processes.send_signal(pid, ticks, signal.SIGKILL)
        return name

    def supervisor() -> str:
        site.stop(signal.SIGKILL)
        return "supervisor"

    able: list[Callable[[], str]] = [
        supervisor,
        lambda: one(site.titled("template")[0] if site.titled("template") else 0, "template"),
    ]
    for case in cases:
        agent, keeper = case.agent, case.keeper
        able += [
            lambda agent=agent: one(agent, "agent"),
            lambda keeper=keeper: one(keeper, "keeper"),
        ]  # type: ignore[misc]
    return chance.sample(able, chance.randint(2, 4))  # type: ignore[no-any-return]


def test_the_verdict_on_all_of_that(site: SupervisorProcess) -> None:
    """By the jobs' own stamps: no job ran twice, no process is left, and each reported end is the
    real one.
    """
    oracle = Oracle(site)
    killed = {s.token.split("/")[0] for s in oracle.stamps()} - {
        s.token.split("/")[0] for s in oracle.stamps() if s.what == "end"
    }
    print(oracle.check(killed=frozenset(killed)))
    assert naps("86400") == []
