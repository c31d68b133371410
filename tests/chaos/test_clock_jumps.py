"""The wall clock jumps by an hour or a day while work is under way. No run ends because of it, the
order of events stays right, and durations are correct (G10).

The tests set the wall clock of all processes of a site. The jobs' own stamps use the true clock.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from consistency_check import check_books, events
from set_clock import DAY, HOUR, SetClock
from supervisor_process import UID, SupervisorProcess, until
from timestamped_jobs import (
    NOTICED_SECS,
    PING_SECS,
    PINGS,
    ROOM,
    SOAK,
    Stamps,
    agent_log,
    diverted,
    jid_of,
    sites,
    told,
)

from jobscribe.service import tickets

MakeSite = Callable[..., SupervisorProcess]
#: Durations are right within one second, times `ROOM`. A busy machine excuses neither a duration
#: that is too short nor one that is impossibly long.
RIGHT_SECS, SOON_SECS = 1.0 * ROOM, 1.0
#: Offsets in the order in which the clock takes them, while the same work is under way.
JUMPS = [[HOUR, -DAY], [-HOUR, DAY]] + (
    [[HOUR], [-HOUR], [DAY], [-DAY], [DAY, 0.0], [-DAY, DAY, -HOUR]] if SOAK else []
)
STEP_SECS = 0.8
#: Longer than all of them take on a busy machine.
LATE_SECS = 6.0


@pytest.fixture
def make_site() -> Iterator[MakeSite]:
    with sites() as make:
        yield make


@pytest.fixture
def clock(tmp_path: Path) -> SetClock:
    return SetClock(tmp_path / "clock")


@pytest.fixture
def stamps(tmp_path: Path) -> Stamps:
    return Stamps(tmp_path / "stamps")


class Stream:
    """A page's event stream, read in a thread."""

    def __init__(self, site: SupervisorProcess, ticket: str) -> None:
        self._connection = http.client.HTTPConnection(site.url.removeprefix("http://"), timeout=60)
        self._connection.request("GET", "/live", headers={tickets.HEADER: ticket})
        self._socket = self._connection.sock
        self._reply = self._connection.getresponse()
        self.status, self.ended, self.news = self._reply.status, False, b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while piece := self._reply.read1(65536):
                self.news += piece
        except (OSError, ValueError, http.client.HTTPException, AttributeError):
            pass
        self.ended = True

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._reply.close()
        self._connection.close()


def lasted(stamps: Stamps, name: str) -> float:
    """Return the duration by the job's own stamps."""
    (_, _, _, began), (_, _, _, ended) = stamps.of(name)
    return (int(ended) - int(began)) / 1e9


class InThread:
    """A request that runs in a thread."""

    def __init__(self, what: Callable[[], Any]) -> None:
        self._out: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=(what,))
        self._thread.start()

    def _run(self, what: Callable[[], Any]) -> None:
        begun = time.monotonic()
        self._out = [what(), time.monotonic() - begun]

    def result(self) -> tuple[Any, float]:
        """Return the result of the request and its duration."""
        self._thread.join()
        answer, took = self._out
        return answer, took


@pytest.mark.parametrize(
    "jumps", JUMPS, ids=lambda jumps: " then ".join(f"{j / HOUR:+g} h" for j in jumps)
)
def test_the_clock_is_set_while_everything_is_under_way(
    make_site: MakeSite, clock: SetClock, stamps: Stamps, jumps: list[float]
) -> None:
    site = make_site(
        "slots.local_sequential=3",
        "slots.local_parallel=1",
        "apps.also=slow=slow_app:app",
        "purge.after_secs=1800",
        "purge.every_secs=0.2",
        env=clock.env,
    ).start()
    past = site.finished(stamps.job("past"))
    # three slots: a job with enough time, a job that exceeds its limit, and the queued jobs in turn
    fine, late = (
        stamps.job("fine", stamps.until("fine"), timeLimitSecs=600),
        stamps.job("late", "sleep 600", timeLimitSecs=LATE_SECS, graceSecs=0.0),
    )
    queue = [stamps.job(f"queue{n}", "sleep 0.7", queueLimitSecs=60) for n in range(5)]
    begun = time.monotonic()
    for run in (fine, late, queue[0]):
        site.submit(run)
    for run in (fine, late):
        site.running(run)
    # and one slot of the other kind, which another job waits for until its limit
    hog, limited = (
        stamps.job("hog", "sleep 600", jobRunMode="parallel", graceSecs=0.0),
        stamps.job("limited", jobRunMode="parallel", queueLimitSecs=2.0),
    )
    for run in (hog, limited):
        site.submit(run)
    stream = Stream(site, tickets.sign(site.token, UID, clock.wall))
    asked = {
        "call": InThread(lambda: _call(site, secs=1.5 * STEP_SECS, deadline=10.0)),
        "hung": InThread(lambda: _call(site, secs=30.0, deadline=2.0)),
        "log": InThread(lambda: _log(site, fine, wait=2.0)),
    }
    for n, offset in enumerate(jumps, 1):
        site.submit(queue[n], f"across-the-jump-{n}")
        time.sleep(STEP_SECS)
        clock.set(offset)
    for n in range(1, len(jumps) + 1):
        again = site.submit(queue[n], f"across-the-jump-{n}")["computeJobSerial"]
        assert again == site.status(queue[n])["computeJobSerial"], (
            "a receipt is kept, whatever the clock says"
        )
    for run in queue[len(jumps) + 1 :]:
        site.submit(run)
    said = site.status(fine)
    assert (
        said["state"] == "running"
        and -RIGHT_SECS < said["elapsedTime"] - (time.monotonic() - begun) < SOON_SECS
    )

    _check_limits(site, begun, late, limited)
    _check_answers(asked)
    stamps.open("fine")
    site.cancel(hog)
    for name, run in [("fine", fine), *((f"queue{n}", run) for n, run in enumerate(queue))]:
        said = site.wait(run)
        assert said["state"] == "completed", (name, said)
        assert abs(said["elapsedTime"] - lasted(stamps, name)) < RIGHT_SECS, (
            name,
            said["elapsedTime"],
            lasted(stamps, name),
        )
        assert (
            abs(said["computeJobEnd"] - said["computeJobStart"] - lasted(stamps, name)) < RIGHT_SECS
        )
    jids = [jid_of(run) for run in queue]
    placed = [e["event"]["token"][0] for e in events(site.root) if e["type"] == "TaskPlaced"]
    assert [jid for jid in placed if jid in jids] == jids, "in the order of submission"
    assert not stream.ended and jid_of(queue[4]).encode() in stream.news, (
        "a stream that is open goes on"
    )
    stream.close()
    fresh = Stream(site, tickets.sign(site.token, UID, clock.wall))
    assert (stream.status, fresh.status) == (200, 200)
    fresh.close()
    assert os.path.isdir(past["runDir"]), "a clock that is set ahead makes no run old"
    check_books(site)
    assert "Traceback" not in site.log()


def test_a_half_open_link_is_noticed_though_the_clock_was_set(
    make_site: MakeSite, clock: SetClock, stamps: Stamps
) -> None:
    site, offset = make_site(*PINGS, env=clock.env).start(), DAY
    with diverted(site) as proxy:
        long = stamps.job("long", "sleep 600", graceSecs=0.0)
        site.submit(long)
        site.running(long)
        made, begun = proxy.made, time.monotonic()
        while time.monotonic() < begun + 3 * PING_SECS:  # at every moment between two pings
            offset -= DAY
            clock.set(offset)
            assert told(site, long) == ("running", True)
            time.sleep(PING_SECS / 10)
        assert proxy.made == made, "no connection ended for it"
        proxy.hold()
        until(
            lambda: told(site, long) == ("running", False),
            "the supervisor has noticed",
            NOTICED_SECS * ROOM,
        )
        until(
            lambda: "the supervisor does not answer" in agent_log(site),
            "the agent has noticed",
            NOTICED_SECS * ROOM,
        )
        proxy.release()
        until(lambda: told(site, long) == ("running", True), "it is known again")
        site.cancel(long)
        site.wait(long)


def _check_limits(
    site: SupervisorProcess, begun: float, late: dict[str, Any], limited: dict[str, Any]
) -> None:
    said = site.wait(limited)
    took = time.monotonic() - begun
    assert (said["state"], said["reason"]) == ("canceled", "queueLimit")
    assert 2.0 - SOON_SECS < took < 2.5 + RIGHT_SECS
    said = site.wait(late)
    took = time.monotonic() - begun
    assert (said["state"], said["reason"], said["canceledAfterSecs"]) == (
        "canceled",
        "timeLimit",
        LATE_SECS,
    )
    assert (
        LATE_SECS - SOON_SECS < took < LATE_SECS + RIGHT_SECS
        and abs(said["elapsedTime"] - LATE_SECS) < RIGHT_SECS
    )


def _check_answers(asked: dict[str, "InThread"]) -> None:
    (code, said), took = asked["call"].result()
    assert (code, said) == (200, {"secs": 1.5 * STEP_SECS}) and took < 10
    (code, said), took = asked["hung"].result()
    assert (code, said["code"]) == (
        504,
        "deadline",
    ) and 2.0 - SOON_SECS < took < 4.0 + RIGHT_SECS, (said, took)
    (code, _), took = asked["log"].result()
    assert code == 200 and took < 2.0 + RIGHT_SECS


def test_the_machine_sleeps_for_ten_minutes(
    make_site: MakeSite, clock: SetClock, stamps: Stamps
) -> None:
    """The monotonic clock stands still meanwhile, and the wall clock is ahead afterwards. Limits
    and durations count only the time awake.
    """
    site = make_site("slots.local_sequential=2", "slots.local_parallel=1", env=clock.env).start()
    fine, late = (
        stamps.job("fine", stamps.until("fine"), timeLimitSecs=600),
        stamps.job("late", "sleep 600", timeLimitSecs=LATE_SECS, graceSecs=0.0),
    )
    waits = stamps.job("waits", queueLimitSecs=120)
    begun = time.monotonic()
    for run in (fine, late, waits):
        site.submit(run)
    for run in (fine, late):
        site.running(run)
    connections = site.log().count("opName=alive")
    everybody = list(site.everybody())
    for pid in everybody:
        with contextlib.suppress(ProcessLookupError):  # a command of a job may have ended
            os.kill(pid, signal.SIGSTOP)
    clock.set(600.0)
    for pid in everybody:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    said = site.status(fine)
    assert (said["state"], said["known"]) == ("running", True) and said[
        "elapsedTime"
    ] < time.monotonic() - begun + SOON_SECS
    said = site.wait(late)
    assert (
        said["reason"] == "timeLimit"
        and LATE_SECS - SOON_SECS < time.monotonic() - begun < LATE_SECS + RIGHT_SECS
    )
    stamps.open("fine")
    for name, run in (("fine", fine), ("waits", waits)):
        said = site.wait(run)
        assert (
            said["state"] == "completed"
            and abs(said["elapsedTime"] - lasted(stamps, name)) < RIGHT_SECS
        )
    assert site.log().count("opName=alive") == connections, (
        "nobody lost a connection for having slept"
    )
    check_books(site)


@pytest.mark.skipif(
    os.geteuid() != 0
    or subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode
    != 0,
    reason="only root can show these processes another boot id, and only where mount namespaces may be made: run the tests as root for it",
)
def test_the_machine_boots_while_deadlines_run_and_its_clock_is_a_day_behind(
    make_site: MakeSite, clock: SetClock, stamps: Stamps
) -> None:
    """Running jobs are lost and queued jobs stay queued. After a boot, deadlines count by the wall
    clock, which is wrong here.
    """
    site = make_site("slots.local_sequential=1", env=clock.env, python=clock.python).start()
    ran, hog = (
        stamps.job("ran", "sleep 600", timeLimitSecs=3000),
        stamps.job("hog", "sleep 600", timeLimitSecs=3000, graceSecs=0.0),
    )
    limited, patient = (
        stamps.job("limited", queueLimitSecs=3.0),
        stamps.job("patient", queueLimitSecs=600),
    )
    for run in (ran, hog, limited, patient):
        site.submit(run)
    site.running(ran)
    until(lambda: stamps.words("ran") == ["start"], "it has said so itself")
    site.stop(signal.SIGKILL)
    for pid in site.everybody():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not site.everybody(), "the machine is off")
    clock.boot(2)
    clock.set(-DAY)
    site.start()
    waited = InThread(lambda: _over(site, limited))
    said = site.wait(ran, 10 * ROOM)
    assert (said["state"], said["reason"]) == ("error", "lost") and 0 <= said["elapsedTime"] < DAY
    assert site.running(hog)["elapsedTime"] < RIGHT_SECS
    said, took = waited.result()
    assert (said["state"], said["reason"]) == ("canceled", "queueLimit") and took < 3.0 + RIGHT_SECS
    serial = site.status(hog)["computeJobSerial"]
    site.cancel(hog)
    assert site.wait(patient)["state"] == "completed"
    assert site.submit(hog)["computeJobSerial"] > serial, (
        "a serial is never less than the one before, whatever the clock says"
    )
    site.cancel(hog)
    site.wait(hog)
    assert [stamps.words(name) for name in ("ran", "limited", "patient")] == [
        ["start"],
        [],
        ["start", "end"],
    ]
    check_books(site)


def _call(site: SupervisorProcess, secs: float, deadline: float) -> tuple[int, Any]:
    body = {
        "uid": UID,
        "jobCmd": "stateless_compute",
        "simulationType": "slow",
        "method": "nap",
        "args": {"secs": secs},
        "deadlineSecs": deadline,
    }
    return _post(site, "call", body)


def _log(site: SupervisorProcess, run: dict[str, Any], wait: float) -> tuple[int, Any]:
    return _post(site, "job-log", {"uid": UID, "computeJid": jid_of(run), "waitSecs": wait})


def _over(site: SupervisorProcess, run: dict[str, Any]) -> Any:
    """Return the status once the run is over; use separate connections."""
    while not (
        said := _post(site, "run-status", {"uid": UID, "computeJid": jid_of(run), "waitSecs": 5})[1]
    )["over"]:
        pass
    return said


def _post(site: SupervisorProcess, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    with contextlib.closing(site.connection(60)) as connection:
        connection.request(
            "POST", "/api/" + path, json.dumps(body), {"Authorization": "Bearer " + site.token}
        )
        reply = connection.getresponse()
        text = reply.read()
        return reply.status, json.loads(
            text
        ) if reply.headers.get_content_type() == "application/json" else text
