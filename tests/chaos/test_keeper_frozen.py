"""A frozen keeper: its agent notices, the status is unknown, the keeper is recovered, and nothing
starts twice.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import UID, SupervisorProcess, jid_of, until
from timestamped_jobs import ROOM, Stamps, agent_log, sites, timed, told

from jobscribe.runtime import processes

#: The agent notices a silent keeper within three of these intervals (seconds).
PING_SECS = 1.0
#: The agent kills the keeper after this additional time (seconds).
KILL_SECS = 6.0
JOB_SECS, ROOM_SECS = 1.0, 1.0
PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207


@pytest.fixture
def make_site() -> Iterator[Callable[..., SupervisorProcess]]:
    with sites() as make:
        yield make


@pytest.fixture
def stamps(tmp_path: Path) -> Stamps:
    return Stamps(tmp_path / "stamps")


@pytest.fixture
def site(make_site: Callable[..., SupervisorProcess]) -> SupervisorProcess:
    return make_site(
        f"limits.ping_interval_secs={PING_SECS}",
        f"limits.ping_timeout_secs={PING_SECS}",
        f"limits.keeper_silent_secs={KILL_SECS}",
        "slots.local_sequential=4",
        "limits.op_reply_secs=1",
    ).start()


def frozen_for_good(pid: int) -> None:
    """Freeze a process so that SIGCONT cannot wake it: this process traces it until it is killed."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(PTRACE_SEIZE, pid, None, None) or libc.ptrace(PTRACE_INTERRUPT, pid, None, None):
        pytest.skip(f"a process cannot be traced here: {os.strerror(ctypes.get_errno())}")
    until(lambda: getattr(processes.find(pid), "state", "") == "t", "it stands still")


def released(pid: int) -> bool:
    """Return whether this process, the tracer, has taken the end of a process: before that, its
    parent is not told. The report of its stop may come first.
    """
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return found == pid and not os.WIFSTOPPED(status)


def length(said: dict[str, Any]) -> float:
    return float(said["computeJobEnd"] - said["computeJobStart"])


def test_a_stopped_keeper_is_woken_and_what_ended_meanwhile_ended_then(
    site: SupervisorProcess, stamps: Stamps
) -> None:
    short = stamps.job("short", f"sleep {JOB_SECS}", code=4)
    site.submit(short)
    site.running(short)
    keeper = site.keeper()["pid"]
    os.kill(keeper, signal.SIGSTOP)
    following = stamps.job("following")
    site.submit(following)
    said = site.wait(short)
    assert (said["state"], said["exit"]["code"], said["exit"]["source"]) == ("error", 4, "keeper")
    assert JOB_SECS - 0.1 < length(said) < JOB_SECS + ROOM_SECS
    assert site.wait(following)["state"] == "completed"
    assert [stamps.words(n) for n in ("short", "following")] == [["start", "end"]] * 2
    until(lambda: "answers again" in agent_log(site), "the agent has written its log")
    log = agent_log(site)
    assert (
        "has not answered for" in log
        and "SIGCONT sent" in log
        and "answers again" in log
        and "killed" not in log
    )
    assert site.keeper()["pid"] == keeper


def test_a_keeper_that_hangs_is_told_then_killed_and_its_jobs_are_adopted(
    site: SupervisorProcess, stamps: Stamps
) -> None:
    long, short, lost = (
        stamps.job("long", stamps.until("long"), code=5),
        stamps.job("short", f"sleep {JOB_SECS}", code=4),
        stamps.job("lost"),
    )
    for run in (long, short):
        site.submit(run)
        site.running(run)
    keeper, agent = site.keeper()["pid"], site.agent_pid()
    frozen_for_good(keeper)
    site.submit(lost)
    until(lambda: "TaskPlaced" in site.story(lost), "its order lies before the keeper")
    noticed = timed(
        lambda: told(site, long) == ("running", False), "it was noticed", 3 * PING_SECS * ROOM
    )
    later = stamps.job("later")
    site.submit(later)
    _check_told(site, long, later, keeper)
    until(
        lambda: site.status(short)["queueState"] == "ending", "its exit is known from its evidence"
    )
    assert site.status(short)["known"] is False and site.cancel(short)["state"] == "running"
    until(
        lambda: not processes.alive(keeper, processes.start_ticks(keeper) or 0),
        "it was killed",
        KILL_SECS * ROOM,
    )
    until(lambda: released(keeper), "its parent is told of its end")
    said = site.wait(short)
    assert (said["state"], said["exit"]["code"], said["exit"]["stopReason"]) == ("error", 4, None)
    assert JOB_SECS - 0.1 < length(said) < JOB_SECS + ROOM_SECS
    assert {site.wait(run)["state"] for run in (lost, later)} == {"completed"}
    until(lambda: told(site, long) == ("running", True), "the next keeper has it")
    assert site.keeper()["pid"] != keeper and site.agent_pid() != agent
    stamps.open("long")
    said = site.wait(long)
    assert (said["state"], said["exit"]["code"], said["exit"]["source"]) == ("error", 5, "keeper")
    assert [stamps.words(n) for n in ("long", "short", "lost", "later")] == [["start", "end"]] * 4
    print(f"noticed after {noticed:.2f} s")


def _check_told(
    site: SupervisorProcess, runs: dict[str, Any], waits: dict[str, Any], keeper: int
) -> None:
    """Check that every interface names the keeper, the time since it is silent, and the advice."""
    reasons = {r["what"]: r for r in site.ask("GET", "/health").json()["reasons"]}
    reason = reasons[f"keeper:{site.agent_key()}"]
    assert (
        f"pid {keeper}" in reason["sentence"]
        and reason["since"]
        and f"kill -CONT {keeper}" in reason["try"]
    )
    for run in (runs, waits):
        why = site.post("job-why", uid=UID, computeJid=jid_of(run))
        assert f"pid {keeper}" in f"{why['sentence']} {why['evidence']}" and why["try"][
            0
        ].startswith(f"kill -CONT {keeper} "), why
    said = site.status(waits)
    assert (said["state"], said["queueState"]) == (
        "pending",
        "agent",
    ) and "TaskPlaced" not in site.story(waits)


def test_keeper_and_agent_that_are_both_stopped_are_woken_when_their_driver_looks_for_them(
    site: SupervisorProcess, stamps: Stamps
) -> None:
    short = stamps.job("short", f"sleep {JOB_SECS}", code=4)
    site.submit(short)
    site.running(short)
    keeper, agent = site.keeper()["pid"], site.agent_pid()
    started = time.monotonic()
    for pid in (agent, keeper):
        os.kill(pid, signal.SIGSTOP)
    until(lambda: stamps.words("short") == ["start", "end"], "the job has ended")
    assert told(site, short)[0] == "running"
    said = site.wait(short)
    print(f"known after {time.monotonic() - started:.2f} s")
    assert (said["state"], said["exit"]["code"]) == ("error", 4)
    assert JOB_SECS - 0.1 < length(said) < JOB_SECS + ROOM_SECS
    assert (site.keeper()["pid"], site.agent_pid()) == (keeper, agent)
    assert (
        f"keeper pid {keeper}; SIGCONT sent to {keeper}, {agent}, which a signal had stopped"
        in site.log()
    )
