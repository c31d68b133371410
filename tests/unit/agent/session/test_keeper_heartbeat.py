"""The agent's keeper heartbeat: when it reports the keeper as silent, resumes it, and kills it.
Other programs play the keeper.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobscribe.agent.session.keeper_heartbeat import KeeperHeartbeat, heartbeat_timing
from jobscribe.agent.session.keeper_reports import decode_hello
from jobscribe.protocol.redaction import Redactor
from jobscribe.protocol.wire.heartbeat import HeartbeatTiming
from jobscribe.protocol.wire.messages import KeeperReport
from jobscribe.runtime import processes
from jobscribe.runtime.log.logger import Log

from ..conftest import until

pytestmark = pytest.mark.process

PACE = HeartbeatTiming(1.0, 3.0)
KILL_SECS = 10.0


class Watched:
    """A heartbeat for a process that answers only when the test tells it to, on a manual clock."""

    def __init__(self, pid: int, **more: Any) -> None:
        self.now = time.monotonic()
        self.asked: list[dict[str, Any]] = []
        self.reports: list[KeeperReport] = []
        self.lines: list[str] = []
        log = Log("agent", Redactor(), self)
        self.watch = KeeperHeartbeat(
            pid, PACE, KILL_SECS, log, send=self.asked.append, changed=self.reports.append, **more
        )

    def write(self, record: Any) -> None:
        self.lines.append(record.message)

    def go_on(self, secs: float, *, answers: bool = False) -> None:
        """Advance the clock by `secs` and run the checks. The keeper answers if `answers` is set."""
        until_, before = self.now + secs, len(self.asked)
        while self.now < until_:
            self.now += PACE.step
            self.watch.check(self.now)
            if answers and len(self.asked) > before:
                self.answer()
                before = len(self.asked)

    def answer(self) -> None:
        self.watch.received({"is": "pong", "n": self.asked[-1]["n"]})


@pytest.fixture
def child() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    made: list[subprocess.Popen[bytes]] = []

    def make() -> "subprocess.Popen[bytes]":
        made.append(subprocess.Popen(["sleep", "600"]))
        return made[-1]

    yield make
    for process in made:
        process.kill()
        process.wait()


def state(process: "subprocess.Popen[bytes]") -> str:
    found = processes.find(process.pid)
    return "" if found is None else found.state


def test_a_keeper_that_answers_is_left_alone(child: Callable[..., Any]) -> None:
    seen = Watched(child().pid)
    seen.go_on(60, answers=True)
    assert seen.reports == [] and seen.lines == [] and 50 < len(seen.asked) < 70


def test_a_keeper_that_does_not_answer_is_reported_within_three_questions_and_killed_in_its_time(
    child: Callable[..., Any],
) -> None:
    keeper = child()
    seen = Watched(keeper.pid)
    seen.go_on(PACE.interval + PACE.timeout + 2 * PACE.step)
    (report,) = seen.reports
    assert (report.answers, report.stopped) == (False, False)
    assert report.since is not None and abs(time.time() - PACE.timeout - report.since) < 2, (
        "since its first question without an answer"
    )
    seen.go_on(KILL_SECS - 2)
    assert keeper.poll() is None
    seen.go_on(3)
    assert keeper.wait(10) == -signal.SIGKILL
    seen.go_on(60)
    assert sum("killed" in line for line in seen.lines) == 1


def test_a_stopped_keeper_is_woken_once_and_killed_when_that_does_not_help(
    child: Callable[..., Any],
) -> None:
    keeper = child()
    os.kill(keeper.pid, signal.SIGSTOP)
    until(lambda: state(keeper) == "T")
    seen = Watched(keeper.pid)
    seen.go_on(5)
    assert seen.reports[0].stopped
    until(lambda: state(keeper) == "S")
    os.kill(keeper.pid, signal.SIGSTOP)  # another process stops the keeper again
    until(lambda: state(keeper) == "T")
    seen.go_on(KILL_SECS - 3)
    assert state(keeper) == "T" and sum("SIGCONT sent" in line for line in seen.lines) == 1
    seen.go_on(4)
    assert keeper.wait(10) == -signal.SIGKILL


def test_a_process_that_has_the_keepers_pid_by_now_is_never_signalled(
    child: Callable[..., Any],
) -> None:
    stranger = child()
    os.kill(stranger.pid, signal.SIGSTOP)
    until(lambda: state(stranger) == "T")
    ticks = processes.start_ticks(stranger.pid)
    assert ticks is not None
    seen = Watched(stranger.pid, ticks=ticks - 1)
    seen.go_on(60)
    assert seen.reports and state(stranger) == "T"


def test_an_agent_that_stood_still_itself_concludes_nothing(child: Callable[..., Any]) -> None:
    keeper = child()
    seen = Watched(keeper.pid)
    seen.go_on(1.5)
    for _ in range(5):
        seen.now += 3600
        seen.watch.check(seen.now)
        seen.go_on(PACE.timeout / 2)
        seen.answer()
    assert seen.reports == [] and keeper.poll() is None


def test_only_time_in_which_the_agent_ran_counts_for_the_kill(child: Callable[..., Any]) -> None:
    keeper = child()
    seen = Watched(keeper.pid)
    seen.go_on(5)
    assert len(seen.reports) == 1
    seen.now += 3600
    seen.go_on(KILL_SECS - 3)
    assert keeper.poll() is None
    seen.go_on(KILL_SECS)
    assert keeper.wait(10) == -signal.SIGKILL


def test_it_answers_again_with_its_second_answer_because_what_ended_is_told_before_that(
    child: Callable[..., Any],
) -> None:
    seen = Watched(child().pid)
    seen.go_on(5)
    asked = len(seen.asked)
    seen.answer()
    assert (
        [r.answers for r in seen.reports] == [False]
        and seen.watch.last_report is not None
        and len(seen.asked) == asked + 1
    )
    seen.watch.received({"is": "ended"})
    assert [r.answers for r in seen.reports] == [False]
    seen.answer()
    assert [r.answers for r in seen.reports] == [False, True] and seen.watch.last_report is None
    seen.go_on(30, answers=True)
    assert len(seen.reports) == 2


def test_a_keeper_of_an_older_version_is_not_asked() -> None:
    log = Log("agent", Redactor(), Watched(os.getpid()))
    hello = {
        "agent": {"addressFile": "/nowhere"},
        "keeperPid": os.getpid(),
        "folder": "/nowhere",
        "executions": [],
    }
    assert (
        KeeperHeartbeat.from_hello(
            decode_hello(hello), log, lambda order: None, lambda report: None, lambda: None
        )
        is None
    )
    assert (
        KeeperHeartbeat.from_hello(
            decode_hello({**hello, "pings": True}),
            log,
            lambda order: None,
            lambda report: None,
            lambda: None,
        )
        is not None
    )


def test_it_is_noticed_within_three_intervals_of_the_link() -> None:
    for interval, timeout in ((20.0, 10.0), (3.0, 3.0), (1.0, 1.0)):
        pace = heartbeat_timing(timeout)
        assert pace.interval + pace.timeout + 2 * pace.step <= 3 * interval, (interval, timeout)
