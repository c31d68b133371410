"""Half-open links and frozen processes: both ends notice within three ping intervals, the status is
unknown, and nothing starts twice.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import SupervisorProcess, until
from timestamped_jobs import (
    NOTICED_SECS,
    PING_SECS,
    PINGS,
    ROOM,
    Stamps,
    agent_log,
    diverted,
    sites,
    timed,
    told,
)

MakeSite = Callable[..., SupervisorProcess]
#: The guarantee is 30 s at the default ping interval of 20 s; the tests use a multiple of their
#: interval.
FROZEN_SECS = 4 * PING_SECS


@pytest.fixture
def make_site() -> Iterator[MakeSite]:
    with sites() as make:
        yield make


@pytest.fixture
def site(make_site: MakeSite) -> SupervisorProcess:
    return make_site(*PINGS, "slots.local_sequential=4", "limits.op_reply_secs=1").start()


@pytest.fixture
def stamps(tmp_path: Path) -> Stamps:
    return Stamps(tmp_path / "stamps")


def test_a_half_open_link_is_noticed_by_both_ends_and_nothing_starts_twice(
    site: SupervisorProcess, stamps: Stamps, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with diverted(site) as proxy:
        long = stamps.job("long", f"while [ ! -e {go} ]; do sleep 0.05; done", code=3)
        site.submit(long)
        site.running(long)
        proxy.hold()
        # requests are lost until an end notices
        late = [stamps.job(f"late{n}", "sleep 0.1") for n in range(3)]
        for run in late:
            site.submit(run)
        supervisor = timed(
            lambda: told(site, long) == ("running", False),
            "the supervisor has noticed",
            NOTICED_SECS * ROOM,
        )
        agent = timed(
            lambda: "the supervisor does not answer" in agent_log(site),
            "the agent has noticed",
            NOTICED_SECS * ROOM,
        )
        assert site.status(late[0])["state"] == "pending"
        go.touch()
        until(
            lambda: stamps.words("long") == ["start", "end"],
            "the job went on to its end all the while",
        )
        assert told(site, long) == ("running", False)
        proxy.release()
        said = site.wait(long)
        assert (said["state"], said["exit"]["code"]) == ("error", 3)
        assert {site.wait(run)["state"] for run in late} == {"completed"}
    assert [stamps.words(name) for name in ("long", "late0", "late1", "late2")] == [
        ["start", "end"]
    ] * 4
    print(
        f"noticed by the supervisor after {supervisor:.2f} s, by the agent after {agent:.2f} s more (3 intervals: {NOTICED_SECS:g} s)"
    )


def test_half_open_again_and_again_while_runs_of_one_slot_follow_each_other(
    site: SupervisorProcess, stamps: Stamps, tmp_path: Path
) -> None:
    """A run ends while the connection is half open, or is sent over it."""
    go = tmp_path / "go"
    with diverted(site) as proxy:
        run = stamps.job("slot", f"while [ ! -e {go} ]; do sleep 0.05; done")
        for n in range(4):
            go.unlink(missing_ok=True)
            site.post("run-simulation", reqId=f"once-more-{n}", run=run, forceRun=True)
            if n % 2:
                until(lambda n=n: len(stamps.of("slot")) > 2 * n, "it started")
            proxy.hold()
            go.touch()
            until(
                lambda: (
                    proxy.open == 0
                    or not site.status(run)["known"]
                    or site.status(run)["queueState"] == "agent"
                ),
                "it was noticed",
            )
            proxy.release()
            assert site.wait(run)["state"] == "completed"
    stamps.check_no_overlap("slot")
    assert len(stamps.of("slot")) == 8


def test_a_frozen_agent_is_told_as_not_known_and_nothing_starts_twice(
    site: SupervisorProcess, stamps: Stamps, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    long = stamps.job("long", f"while [ ! -e {go} ]; do sleep 0.05; done")
    site.submit(long)
    site.running(long)
    agent = site.agent_pid()
    frozen = time.monotonic()
    os.kill(agent, signal.SIGSTOP)
    run = stamps.job("queued", "sleep 0.1")
    site.submit(run)
    unwanted = stamps.job("unwanted")
    site.submit(unwanted)
    timed(lambda: told(site, long) == ("running", False), "it was noticed", NOTICED_SECS * ROOM)
    assert site.cancel(unwanted)["state"] == "canceled"
    while time.monotonic() < frozen + FROZEN_SECS:
        assert told(site, long) == ("running", False)
        time.sleep(0.05)
    go.touch()
    _until_over(site, stamps)
    assert told(site, long) == ("running", False)
    os.kill(agent, signal.SIGCONT)
    # from here on, the status is unknown or true
    until(lambda: _true_or_unknown(told(site, long)), "it is over", pause=0.001)
    assert site.wait(run)["state"] == "completed"
    assert site.agent_pid() == agent
    assert site.wait(unwanted)["state"] == "canceled"
    assert [stamps.words(n) for n in ("long", "queued", "unwanted")] == [
        ["start", "end"],
        ["start", "end"],
        [],
    ]


def _until_over(site: SupervisorProcess, stamps: Stamps) -> None:
    """Wait until the job `long` has ended, unaffected, and its keeper has recorded the end."""
    until(
        lambda: (
            stamps.words("long") == ["start", "end"]
            and list(site.root.glob("agent/*/run/*/exit.json"))
        ),
        "the job went on to its end",
    )


def _true_or_unknown(said: tuple[str, bool]) -> bool:
    """Check the status of an ended job: unknown or true. Return whether it is completed."""
    assert said in (("running", False), ("completed", True)), said
    return said[0] == "completed"


@pytest.mark.parametrize(
    "agent_too", [False, True], ids=["the agent gave it up", "the agent was frozen, too"]
)
def test_a_supervisor_that_was_frozen_says_nothing_false_when_it_wakes(
    site: SupervisorProcess, stamps: Stamps, tmp_path: Path, agent_too: bool
) -> None:
    go = tmp_path / "go"
    long = stamps.job("long", f"while [ ! -e {go} ]; do sleep 0.05; done")
    site.submit(long)
    site.running(long)
    agent = site.agent_pid()
    site.kill(site.pid, signal.SIGSTOP)
    begun = time.monotonic()
    if agent_too:
        site.kill(agent, signal.SIGSTOP)
    else:
        took = timed(
            lambda: "the supervisor does not answer" in agent_log(site),
            "the agent has noticed",
            NOTICED_SECS * ROOM,
        )
        print(f"the agent noticed after {took:.2f} s")
    go.touch()
    _until_over(site, stamps)
    time.sleep(max(0.0, begun + FROZEN_SECS - time.monotonic()))
    first: list[tuple[str, bool]] = []
    asking = threading.Thread(target=lambda: first.append(told(site, long)))
    asking.start()  # the request waits in the socket when the supervisor wakes
    time.sleep(0.1)
    site.kill(site.pid, signal.SIGCONT)
    asking.join()
    assert first[0] in (("running", False), ("completed", True)), first
    site.kill(agent, signal.SIGCONT)
    until(lambda: _true_or_unknown(told(site, long)), "the truth is known", pause=0.001)
    more: dict[str, Any] = stamps.job("more")
    assert site.finished(more)["state"] == "completed"
    assert [stamps.words(n) for n in ("long", "more")] == [["start", "end"]] * 2
