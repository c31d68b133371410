"""Kills of supervisor, agent and keeper, alone and together. Jobs continue, acknowledged data is
kept, and the reported outcome is true.
"""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from consistency_check import check_books, events, stories_without_grants
from supervisor_process import SupervisorProcess, req_id, shell, until

from jobscribe.runtime import processes

SLOTS = 3


@pytest.fixture
def site(make_site: Callable[..., SupervisorProcess]) -> Iterator[SupervisorProcess]:
    site = make_site(f"slots.local_sequential={SLOTS}")
    site.start()
    yield site
    check_books(site)


class Witness:
    """A run that records its start and its end, and exits with `code` when it is released."""

    def __init__(self, site: SupervisorProcess, code: int = 0) -> None:
        self.run = shell("")
        self.code = code
        self._stamps, self._gate = (
            site.place / f"stamps-{self.run['simulationId']}",
            site.place / f"gate-{self.run['simulationId']}",
        )
        text = f"echo start $$ >>{self._stamps}; until [ -e {self._gate} ]; do sleep 0.05; done; echo end $$ >>{self._stamps}; echo the last line; exit {code}"
        self.run["command"] = ["/bin/sh", "-c", text]
        self.request = req_id()

    def let_go(self) -> None:
        self._gate.touch()

    def stamps(self) -> list[str]:
        return self._stamps.read_text().splitlines() if self._stamps.exists() else []

    @property
    def pid(self) -> int:
        (line,) = until(self.stamps, "it started")
        return int(line.split()[1])

    def check(self, site: SupervisorProcess, *, source: str | None = None) -> dict[str, Any]:
        """Check that the run ran exactly once and to its end, and that the reported outcome is
        true.
        """
        said = site.wait(self.run)
        started, ended = self.stamps()
        assert (started.split()[0], ended.split()[0]) == ("start", "end") and started.split()[
            1
        ] == ended.split()[1]
        assert (said["state"], said["exit"]["code"]) == (
            "completed" if self.code == 0 else "error",
            self.code,
        ), said
        assert source is None or said["exit"]["source"] == source, said
        assert site.output(self.run, tail=4096).body == b"the last line\n"
        return said


class Watcher:
    """Polls the status of runs from before a restart on. Every answer must be true."""

    def __init__(self, site: SupervisorProcess, witnesses: list[Witness]) -> None:
        self._site, self._witnesses = site, witnesses
        self.heard: list[tuple[int, str, bool, bool]] = []

    def look(self) -> bool:
        """Poll once. Return True as soon as all outcomes are known."""
        all_known = True
        for n, oracle in enumerate(self._witnesses):
            said = self._site.status(oracle.run)
            self.heard.append((n, said["state"], said["known"], said["over"]))
            all_known = all_known and said["known"]
        return all_known


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_restart_keeps_what_runs_starts_what_waits_and_tells_nothing_false(
    site: SupervisorProcess, number: int
) -> None:
    witnesses = [Witness(site) for _ in range(SLOTS + 3)]
    serials = [site.submit(w.run, w.request)["computeJobSerial"] for w in witnesses]
    for w in witnesses[:SLOTS]:
        site.running(w.run)
    pids = [w.pid for w in witnesses[:SLOTS]]
    ticks = [processes.start_ticks(p) for p in pids]

    assert site.stop(number) == (-number if number == signal.SIGKILL else 0)
    assert all(processes.alive(p, t) for p, t in zip(pids, ticks, strict=True) if t)
    site.start()

    watcher = Watcher(site, witnesses)
    until(watcher.look, "all states are known again", 5 * 5)
    assert {h[1:] for h in watcher.heard if h[0] < SLOTS} <= {
        ("running", True, False),
        ("running", False, False),
    }
    assert {h[1:] for h in watcher.heard if h[0] >= SLOTS} == {("pending", True, False)}
    assert all(processes.alive(p, t) for p, t in zip(pids, ticks, strict=True) if t)
    for w, serial in zip(witnesses, serials, strict=True):
        assert site.submit(w.run, w.request)["computeJobSerial"] == serial
    for w in witnesses:
        w.let_go()
    for w in witnesses:
        w.check(site, source="keeper")
    assert stories_without_grants(site.root) == {
        ("RunRequested", "TaskPlaced", "TaskStarted", "TaskEnded", "AttemptEnded", "RunEnded"),
    }


def test_every_acknowledged_request_survives_a_kill_in_the_middle_of_many(
    site: SupervisorProcess,
) -> None:
    runs = [shell("exit 0") for _ in range(400)]
    acknowledged: dict[int, int] = {}

    def ask() -> None:
        for n, run in enumerate(runs):
            try:
                acknowledged[n] = site.submit(run, f"request-n-{n}")["computeJobSerial"]
            except (OSError, AssertionError):
                return

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: len(acknowledged) >= 40, "some are acknowledged")
    assert site.process is not None
    site.process.kill()
    thread.join()
    site.stop(signal.SIGKILL)
    assert 40 <= len(acknowledged) < len(runs)
    site.start()
    for n, serial in acknowledged.items():
        assert site.status(runs[n])["computeJobSerial"] == serial
    for n, run in enumerate(runs[: len(acknowledged) + 5]):
        again = site.submit(run, f"request-n-{n}")["computeJobSerial"]
        assert acknowledged.get(n, again) == again
    for run in runs[: len(acknowledged) + 5]:
        assert site.wait(run)["state"] == "completed"


def test_a_killed_agent_is_replaced_and_its_jobs_are_adopted(site: SupervisorProcess) -> None:
    oracle = Witness(site, code=3)
    site.submit(oracle.run)
    site.running(oracle.run)
    old, pid = site.agent_pid(), oracle.pid
    ticks = processes.start_ticks(pid)
    site.kill(old)
    new = until(lambda: next((p for p in site.titled("agent") if p != old), None), "another agent")
    until(lambda: site.status(oracle.run)["known"] and processes.find(new), "it is known again")
    said = site.status(oracle.run)
    assert (said["state"], said["over"]) == ("running", False)
    assert ticks is not None and processes.alive(pid, ticks)
    oracle.let_go()
    oracle.check(site, source="keeper")


def test_a_killed_keeper_is_replaced_and_its_reaper_tells_the_exit(site: SupervisorProcess) -> None:
    oracle = Witness(site, code=3)
    site.submit(oracle.run)
    site.running(oracle.run)
    old = site.keeper()["pid"]
    pid = oracle.pid
    ticks = processes.start_ticks(pid)
    site.kill(old)
    until(lambda: site.keeper()["pid"] != old, "another keeper")
    until(lambda: site.status(oracle.run)["known"], "it is known again")
    assert site.status(oracle.run)["state"] == "running"
    assert ticks is not None and processes.alive(pid, ticks)
    oracle.let_go()
    oracle.check(site, source="keeper")


def test_a_job_that_ends_while_no_keeper_is_there_tells_its_own_exit(
    site: SupervisorProcess,
) -> None:
    """Supervisor, keeper and agent are killed. The job ends. Then the supervisor starts again."""
    oracle = Witness(site, code=7)
    site.submit(oracle.run)
    site.running(oracle.run)
    pid = oracle.pid
    ticks = processes.start_ticks(pid)
    agent, keeper = site.agent_pid(), site.keeper()["pid"]
    site.stop(signal.SIGKILL)
    site.kill(keeper)
    until(lambda: agent not in site.titled("agent"), "its agent ended with it")
    oracle.let_go()
    until(lambda: ticks is not None and not processes.alive(pid, ticks), "the job ended by itself")
    site.start()
    said = site.status(oracle.run)
    assert said["state"] == "running" or said["exit"]["code"] == 7, "no other end is reported"
    oracle.check(site, source="keeper")


def test_a_job_that_is_killed_while_no_keeper_is_there_is_called_lost(
    site: SupervisorProcess,
) -> None:
    oracle = Witness(site)
    site.submit(oracle.run)
    site.running(oracle.run)
    site.stop(signal.SIGKILL)
    keeper = site.keeper()["pid"]
    site.kill(keeper)
    _kill_the_rest(site)
    site.start()
    said = site.wait(oracle.run, 5 * 10)
    assert (said["state"], said["reason"], said["exit"]["source"]) == ("error", "lost", "lost")
    assert len(oracle.stamps()) == 1


def test_a_run_op_that_died_with_its_agent_is_sent_again_and_started_once(
    site: SupervisorProcess,
) -> None:
    """The agent is frozen, gets its op into a buffer that it does not read, and is then killed."""
    first = Witness(site)
    first.let_go()
    site.submit(first.run)
    first.check(site)
    agent = site.agent_pid()
    os.kill(agent, signal.SIGSTOP)
    second = Witness(site)
    site.submit(second.run)
    until(lambda: "TaskPlaced" in site.story(second.run), "it is placed")
    said = site.status(second.run)
    assert (said["state"], said["queueState"]) == ("pending", "starting")
    site.kill(agent)
    site.running(second.run)
    second.let_go()
    second.check(site)


def test_a_start_order_that_no_supervisor_heard_the_answer_of_is_carried_out_once(
    site: SupervisorProcess,
) -> None:
    """The keeper is frozen when it gets a start order. The supervisor is killed meanwhile."""
    first = Witness(site)
    first.let_go()
    site.submit(first.run)
    first.check(site)
    keeper = site.keeper()["pid"]
    os.kill(keeper, signal.SIGSTOP)
    second = Witness(site)
    site.submit(second.run)
    until(lambda: "TaskPlaced" in site.story(second.run), "it is placed")
    site.stop(signal.SIGKILL)
    os.kill(keeper, signal.SIGCONT)
    until(second.stamps, "it started without a supervisor")
    site.start()
    site.running(second.run)
    second.let_go()
    second.check(site, source="keeper")


def test_a_frozen_supervisor_misses_nothing(site: SupervisorProcess) -> None:
    oracle = Witness(site, code=5)
    site.submit(oracle.run)
    site.running(oracle.run)
    pid = oracle.pid
    ticks = processes.start_ticks(pid)
    os.kill(site.pid, signal.SIGSTOP)
    oracle.let_go()
    until(lambda: ticks is not None and not processes.alive(pid, ticks), "the job ended")
    os.kill(site.pid, signal.SIGCONT)
    oracle.check(site, source="keeper")


def test_a_cancel_that_was_acknowledged_is_carried_out_after_a_kill(
    site: SupervisorProcess,
) -> None:
    """The agent is frozen, so the cancel reaches no process. Supervisor and agent are killed. The
    job is ended nevertheless.
    """
    oracle = Witness(site)
    site.submit(oracle.run)
    site.running(oracle.run)
    pid = oracle.pid
    ticks = processes.start_ticks(pid)
    agent = site.agent_pid()
    os.kill(agent, signal.SIGSTOP)
    assert site.cancel(oracle.run)["state"] == "canceled"
    site.stop(signal.SIGKILL)
    site.kill(agent)
    assert ticks is not None and processes.alive(pid, ticks)
    site.start()
    assert site.status(oracle.run)["state"] == "canceled"
    said = site.wait(oracle.run)
    assert not processes.alive(pid, ticks)
    assert (said["state"], said["reason"], len(oracle.stamps())) == ("canceled", "cancel", 1)


def test_a_stranger_that_has_the_pid_of_a_lost_job_is_not_taken_for_it(
    site: SupervisorProcess,
) -> None:
    """The ledger names the pid of a living process, with another start time."""
    oracle = Witness(site)
    site.submit(oracle.run)
    site.running(oracle.run)
    site.stop(signal.SIGKILL)
    site.kill(site.keeper()["pid"])
    _kill_the_rest(site)
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        _change_starts(site, pid=stranger.pid)
        site.start()
        said = site.wait(oracle.run, 5 * 10)
        assert (said["state"], said["reason"]) == ("error", "lost")
        assert site.finished(shell("exit 0"))["state"] == "completed"
        assert stranger.poll() is None
    finally:
        stranger.kill()
        assert stranger.wait() == -signal.SIGKILL


def test_a_machine_that_was_restarted_has_lost_what_ran_on_it(site: SupervisorProcess) -> None:
    """The files of keepers and the log contain another boot id."""
    oracle = Witness(site)
    site.submit(oracle.run)
    site.running(oracle.run)
    site.stop(signal.SIGTERM)
    _kill_the_rest(site)
    _change_starts(site, bootId="00000000-0000-0000-0000-000000000000")
    site.start()
    said = site.wait(oracle.run, 5 * 10)
    assert (said["state"], said["reason"]) == ("error", "lost")
    assert "restarted" in said["error"]


def _kill_the_rest(site: SupervisorProcess) -> None:
    """Kill all remaining processes of the site by pid, until none is left."""

    def killed() -> bool:
        left = list(site.everybody())
        for pid in left:
            ticks = processes.start_ticks(pid)
            if ticks is not None:
                processes.send_signal(pid, ticks, signal.SIGKILL)
        return not left

    for title in ("reaper", "keeper"):  # they would record the end of the others
        for pid in site.titled(title):
            site.kill(pid)
    until(killed, "nothing runs any more")


def _change_starts(site: SupervisorProcess, **fields: Any) -> None:
    """Change what keepers recorded about themselves and about the processes they started."""
    for path in (site.root / "agent").glob("*/keeper.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    for path in (site.root / "agent").glob("*/ledger.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert any("start" in line for line in lines)
        changed = [line | fields if "start" in line else line for line in lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in changed))


def test_after_a_clean_stop_the_log_says_so_and_the_next_session_counts_on(
    site: SupervisorProcess,
) -> None:
    site.stop(signal.SIGTERM)
    site.start()
    system = [e["event"] for e in _system(site)]
    assert [(e["type"], e["session"]) for e in system] == [
        ("SupervisorStarted", 1),
        ("SupervisorStopped", 1),
        ("SupervisorStarted", 2),
    ]
    assert system[2]["pid"] == site.pid


def _system(site: SupervisorProcess) -> list[dict[str, Any]]:
    return [e for e in events(site.root) if e["stream"] == "system"]


def test_the_ready_line_comes_after_the_answers(site: SupervisorProcess) -> None:
    """A client can send requests as soon as the ready line is printed, also right after a kill."""
    run = shell("exit 0")
    site.finished(run)
    for _ in range(3):
        site.stop(signal.SIGKILL)
        site.start()
        assert site.status(run)["state"] == "completed"
