"""Statuses in the front end's memory: never older than an earlier answer, never of another user,
and only while the supervisor's stream of changed jobs works.
"""

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from front_end_fixture import ANN, BOB, FrontEnd, refused
from stub_supervisor import StubSupervisor

from jobscribe.client.api.errors import ClientError
from jobscribe.protocol.api.requests import RunStatusRequest
from jobscribe.protocol.errors import Refusal
from jobscribe.web.request import status_cache
from jobscribe.web.request.status_cache import StatusCache

SERIAL = 1_700_000_000
JID = f"{ANN}-abcdefgh-oddReport"
NAMED = {"simulationType": "odd", "simulationId": "abcdefgh", "report": "oddReport"}


def status(state: str, **fields: Any) -> dict[str, Any]:
    """Return a status as the supervisor sends it, with the fields that matter here."""
    return {
        "state": state,
        "computeJid": JID,
        "computeJobHash": "ab12",
        "computeJobSerial": SERIAL,
        "simulationType": "odd",
        "known": True,
        "over": state not in ("pending", "running"),
        "elapsedTime": 5.0,
        "position": 7,
        "batch": None,
        **fields,
    }


ASKED = RunStatusRequest(
    uid=ANN, compute_jid=JID, compute_job_hash="ab12", compute_job_serial=SERIAL
)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Side:
    """The supervisor's side: `change` sends a name, `cut` breaks the stream, `state` is the status."""

    def __init__(self) -> None:
        self.now = 0.0
        self.state = status("completed")
        self.asked = 0
        self.streams = 0
        self.may_open = True
        self._sent: queue.Queue[bytes | None] = queue.Queue()
        self._taken = 0
        self.cache = StatusCache(self._open, clock=lambda: self.now)

    @contextmanager
    def _open(self, idle_secs: float) -> Iterator["Side"]:
        if not self.may_open:
            raise ClientError("unreachable", "no answer")
        self.streams += 1
        yield self

    def chunks(self) -> Iterator[bytes]:
        yield b"\n"
        while True:
            self._taken += 1
            chunk = self._sent.get()
            if chunk is None:
                raise ClientError("unreachable", "the stream ended")
            yield chunk

    def send(self, chunk: bytes | None) -> None:
        """Send a part of the stream; return when it has been taken."""
        taken = self._taken
        self._sent.put(chunk)
        if chunk is not None:
            until(lambda: self._taken > taken)

    def ask(self) -> dict[str, Any]:
        self.asked += 1
        return self.state

    def poll(self, request: RunStatusRequest = ASKED) -> dict[str, Any]:
        return self.cache.status(request, self.ask)

    def remember(self) -> None:
        """Poll until an answer comes from memory."""

        def from_memory() -> bool:
            before = self.asked
            self.poll()
            return self.asked == before

        until(from_memory)


@pytest.fixture
def side() -> Iterator[Side]:
    made = Side()
    yield made
    made._sent.put(None)
    made.may_open = False
    made.cache.close()


def test_the_status_of_a_run_that_is_over_is_asked_for_once(side: Side) -> None:
    side.remember()
    before = side.asked
    assert [side.poll()["state"] for _ in range(20)] == ["completed"] * 20
    assert (side.asked, side.streams) == (before, 1)


def test_a_named_job_is_asked_for_again_and_others_are_kept(side: Side) -> None:
    side.remember()
    side.send(b"AnnAnn01-abcdefgh-other\n")
    before = side.asked
    assert side.poll()["position"] == 7 and side.asked == before
    side.state = status("completed", superseded=True, position=9)
    side.send(JID.encode()[:9])  # a name in two pieces
    side.send(JID.encode()[9:] + b"\n")
    assert side.poll()["position"] == 9 and side.asked == before + 1


def test_a_change_while_a_status_is_on_its_way_makes_it_not_worth_keeping(side: Side) -> None:
    side.remember()
    side.send(f"{JID}\n".encode())

    def overtaken() -> dict[str, Any]:
        old = side.ask()
        side.state = status("completed", position=9)
        side.send(f"{JID}\n".encode())
        return old

    assert side.cache.status(ASKED, overtaken)["position"] == 7
    assert side.poll()["position"] == 9


def test_what_this_front_end_changed_is_not_answered_from_memory(side: Side) -> None:
    side.remember()
    side.state = status("completed", position=9)
    side.cache.drop(JID)
    assert side.poll()["position"] == 9


def test_a_change_of_this_front_end_overtakes_a_status_on_its_way(side: Side) -> None:
    side.remember()
    side.cache.drop(JID)

    def overtaken() -> dict[str, Any]:
        old = side.ask()
        side.state = status("completed", position=9)
        side.cache.drop(JID)
        return old

    side.cache.status(ASKED, overtaken)
    assert side.poll()["position"] == 9


def test_without_a_stream_every_request_goes_to_the_supervisor(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_cache, "FIRST_PAUSE_SECS", 0.01)
    side.remember()
    side.may_open = False
    side.send(None)
    until(lambda: len(side.cache) == 0)
    side.state = status("completed", position=9)
    before = side.asked
    assert [side.poll()["position"] for _ in range(3)] == [9, 9, 9]
    assert side.asked == before + 3
    side.may_open = True
    side.remember()
    assert side.poll()["position"] == 9 and side.streams == 2


def test_a_status_asked_for_on_the_stream_before_is_not_kept_on_the_next(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_cache, "FIRST_PAUSE_SECS", 0.01)
    side.remember()
    side.cache.drop(JID)

    def across_a_restart() -> dict[str, Any]:
        old = side.ask()
        side.state = status("completed", position=9)  # on no stream
        side.send(None)
        until(lambda: side.streams == 2 and side.cache._connected)
        return old

    assert side.cache.status(ASKED, across_a_restart)["position"] == 7
    assert side.poll()["position"] == 9


def test_a_silent_stream_is_not_trusted(side: Side) -> None:
    side.remember()
    side.state = status("completed", position=9)
    side.now += status_cache.SILENT_SECS
    assert side.poll()["position"] == 9


@pytest.mark.parametrize(
    "reply",
    [
        status("running"),
        status("completed", over=False),
        status("completed", known=False),
        status("completed", batch={"state": "COMPLETED"}),
        {"state": "missing", "computeJid": JID, "reason": "noRun", "known": True, "over": True},
    ],
)
def test_what_may_change_without_an_event_is_not_kept(side: Side, reply: dict[str, Any]) -> None:
    side.remember()
    side.cache.drop(JID)
    side.state = reply
    before = side.asked
    for _ in range(3):
        assert side.poll() == reply
    assert side.asked == before + 3


def running(**fields: Any) -> dict[str, Any]:
    """Return the status of a running run that may be kept."""
    return status("running", cacheable=True, **fields)


def test_the_time_of_a_running_run_grows_while_its_status_is_kept(side: Side) -> None:
    side.state = running()
    side.remember()
    before = side.asked
    side.now += 1.0
    assert side.poll() == {**side.state, "elapsedTime": 6.0}
    side.now += 0.25
    assert side.poll() == {**side.state, "elapsedTime": 6.25}
    assert side.asked == before and side.state["elapsedTime"] == 5.0


def test_a_named_running_job_is_asked_for_again(side: Side) -> None:
    side.state = running()
    side.remember()
    side.state = running(parallelStatus={"percentComplete": 50.0})
    side.send(f"{JID}\n".encode())
    assert side.poll() == side.state
    side.state = status("completed", position=9)
    side.send(f"{JID}\n".encode())
    assert side.poll() == side.state


def test_a_late_stream_is_not_trusted_about_a_running_run(side: Side) -> None:
    side.state = running()
    side.remember()
    side.state = running(elapsedTime=6.5)
    side.now += status_cache.LATE_SECS
    assert status_cache.LATE_SECS < status_cache.SILENT_SECS
    before = side.asked
    assert side.poll() == side.poll() == side.state and side.asked == before + 2
    side.send(b"\n")
    side.remember()


def test_the_status_of_a_running_run_is_asked_for_again_after_a_while(side: Side) -> None:
    side.state = running()
    side.remember()
    for _ in range(int(status_cache.RUNNING_SECS)):
        side.now += 1.0
        side.send(b"\n")
    side.state = running(elapsedTime=14.9)
    before = side.asked
    assert side.poll() == side.state and side.asked == before + 1
    assert side.poll() == side.state and side.asked == before + 1


def test_no_time_is_smaller_than_that_of_an_answer_that_overtook(side: Side) -> None:
    side.state = running()
    side.remember()
    side.cache.drop(JID)

    def slow() -> dict[str, Any]:
        old = running(elapsedTime=6.0)
        side.now += 0.5
        overtaking = RunStatusRequest(uid=ANN, compute_jid=JID, compute_job_serial=SERIAL)
        side.state = running(elapsedTime=6.4)
        assert side.poll(overtaking)["elapsedTime"] == 6.4
        return old

    assert side.cache.status(ASKED, slow)["elapsedTime"] == 6.0
    before = side.asked
    assert side.poll()["elapsedTime"] == 6.4 and side.asked == before


def test_the_current_run_of_a_job_is_always_asked_for(side: Side) -> None:
    side.remember()
    current = RunStatusRequest(uid=ANN, compute_jid=JID)
    before = side.asked
    for _ in range(3):
        side.poll(current)
    assert side.asked == before + 3


def test_another_serial_or_hash_is_another_question(side: Side) -> None:
    side.remember()
    before = side.asked
    side.poll(RunStatusRequest(uid=ANN, compute_jid=JID, compute_job_serial=SERIAL))
    side.poll(
        RunStatusRequest(
            uid=ANN, compute_jid=JID, compute_job_hash="ab12", compute_job_serial=SERIAL + 1
        )
    )
    assert side.asked == before + 2


def test_memory_is_bounded(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_cache, "KEPT", 10)
    side.remember()
    for n in range(100):
        side.poll(
            RunStatusRequest(
                uid=ANN, compute_jid=f"{ANN}-abc{n:05d}-oddReport", compute_job_serial=SERIAL
            )
        )
    assert len(side.cache) == 10 and side.cache._questions == {}


def test_a_stream_that_nobody_needs_is_closed(side: Side) -> None:
    side.remember()
    thread = side.cache._thread
    assert thread is not None
    side.now += status_cache.UNUSED_SECS
    side._sent.put(b"\n")
    thread.join(10)
    assert not thread.is_alive() and len(side.cache) == 0
    side.remember()
    assert side.streams == 2


def test_many_threads_never_see_a_status_go_back(side: Side) -> None:
    side.remember()
    stop, wrong = threading.Event(), []

    def follow() -> None:
        last = 0
        while not stop.is_set():
            position = side.poll()["position"]
            if position < last:
                wrong.append((last, position))
            last = position

    threads = [threading.Thread(target=follow) for _ in range(4)]
    for thread in threads:
        thread.start()
    for position in range(8, 60):
        side.state = status("completed", position=position)
        side.send(f"{JID}\n".encode())
    stop.set()
    for thread in threads:
        thread.join(10)
    assert wrong == [] and side.poll()["position"] == 59


@pytest.mark.parametrize("overtaken", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_of_answers_that_overlap_none_is_kept_that_may_be_older(
    side: Side, overtaken: bool, kept: bool
) -> None:
    """The job has changed, and its name has not arrived yet. kept: the other answer would be kept."""
    side.remember()
    side.send(f"{JID}\n".encode())
    old, new = status("completed", position=8), status("completed", position=9, over=kept)
    other, own = (new, old) if overtaken else (old, new)

    def ask() -> dict[str, Any]:
        assert side.cache.status(ASKED, lambda: other) == other
        return own

    assert side.cache.status(ASKED, ask) == own
    side.state = new
    assert side.poll()["position"] == 9


# ---- in the front end


def test_nobody_gets_the_status_of_another_user(web: FrontEnd, stub: StubSupervisor) -> None:
    def changes(_: Any) -> Any:
        return 200, {"Connection": "close"}, iter(lambda: (time.sleep(0.02), b"\n")[1], None)

    def answer(request: dict[str, Any]) -> Any:
        if request["uid"] != ANN:
            return Refusal("notFound", "there is no job")
        return status("canceled")

    stub.answers |= {"/api/job-changes": changes, "/api/run-status": answer}
    body = {**NAMED, "computeJobHash": "ab12", "computeJobSerial": SERIAL}
    ann, bob = web.as_(ANN), web.as_(BOB)
    until(
        lambda: len(web.app.extensions["jobscribe"].statuses) or not ann.said("/run-status", body)
    )
    before = len(stub.sent("/api/run-status"))
    assert ann.said("/run-status", body)["state"] == "canceled"
    assert len(stub.sent("/api/run-status")) == before, "from memory"
    assert bob.said("/run-status", body)["state"] == "missing"
    assert stub.sent("/api/run-status")[-1]["computeJid"] == JID.replace(ANN, BOB)
    refused(web.as_(None).post("/run-status", body), 401, "unauthenticated")
    web.refusals[(ANN, "runStatus", "odd")] = Refusal("forbidden", "not any more")
    refused(ann.post("/run-status", body), 403, "forbidden")
    web.refusals.clear()
    stub.answers["/api/run-simulation"] = status("pending", computeJobSerial=SERIAL + 1)
    ann.said("/run-simulation", {**NAMED, "models": {}, "forceRun": True})
    stub.answers["/api/run-status"] = status("canceled", superseded=True)
    assert ann.said("/run-status", body)["superseded"] is True


@pytest.mark.process
def test_a_real_supervisor_names_changes_and_a_restart_loses_none(
    make_site: Any, make_web: Any
) -> None:
    site = make_site().start()
    web = make_web(str(site.root))
    ann, statuses = web.as_(ANN), web.app.extensions["jobscribe"].statuses
    run = {
        "simulationType": "odd",
        "simulationId": "kept0001",
        "report": "oddAnimation",
        "models": {"oddAnimation": {}},
    }

    def followed(reply: dict[str, Any]) -> dict[str, Any]:
        while reply.get("nextRequest"):
            time.sleep(0.05)
            reply = ann.said("/run-status", reply["nextRequest"])
        return reply

    first = followed(ann.said("/run-simulation", run))
    assert first["state"] == "completed"
    body = {k: run[k] for k in ("simulationType", "simulationId", "report")} | {
        k: first[k] for k in ("computeJobHash", "computeJobSerial")
    }
    until(lambda: len(statuses) or not ann.said("/run-status", body))
    site.stop(signal.SIGKILL)
    until(lambda: len(statuses) == 0)
    refused(ann.post("/run-status", body), 503, "supervisorUnavailable")
    site.start()
    until(lambda: len(statuses) or not ann.said("/run-status", body))
    assert ann.said("/run-status", body)["state"] == "completed"
    # another client of the supervisor starts the next run
    make_web(str(site.root)).as_(ANN).said("/run-simulation", {**run, "forceRun": True})
    until(lambda: ann.said("/run-status", body).get("superseded"))
    current = followed(ann.said("/run-status", {**body, "computeJobSerial": 0}))
    assert current["computeJobSerial"] > first["computeJobSerial"]


@pytest.mark.process
def test_a_purged_run_is_not_answered_from_memory(make_site: Any, make_web: Any) -> None:
    site = make_site("purge.after_secs=2", "purge.every_secs=0.2").start()
    web = make_web(str(site.root))
    ann, statuses = web.as_(ANN), web.app.extensions["jobscribe"].statuses
    run = {
        "simulationType": "odd",
        "simulationId": "gone0001",
        "report": "oddAnimation",
        "models": {"oddAnimation": {}},
    }
    reply = ann.said("/run-simulation", run)
    while reply.get("nextRequest"):
        time.sleep(0.05)
        reply = ann.said("/run-status", reply["nextRequest"])
    body = {k: run[k] for k in ("simulationType", "simulationId", "report")} | {
        k: reply[k] for k in ("computeJobHash", "computeJobSerial")
    }
    until(lambda: len(statuses) or not ann.said("/run-status", body))
    until(lambda: ann.said("/run-status", body)["state"] == "job_run_purged")


class Poller:
    """A page of one front end: no answer goes back."""

    def __init__(self, web: FrontEnd, body: dict[str, Any]) -> None:
        self._user, self._body = web.as_(ANN), body
        self._last = (0, 0.0)
        self.polls = self.asked = 0
        upstream = web.app.extensions["jobscribe"].upstream
        ask = upstream.object

        def counted(name: str, request: Any) -> Any:
            self.asked += 1
            return ask(name, request)

        upstream.object = counted

    def frames(self) -> int:
        """Return the number of frames that the status shows."""
        self.polls += 1
        reply = self._user.said("/run-status", self._body)
        now = (reply["frameCount"], reply["elapsedTime"])
        assert now[0] >= self._last[0] and now[1] >= self._last[1], (self._last, reply)
        self._last = now
        return int(now[0])

    def until(self, frames: int) -> int:
        until(lambda: self.frames() >= frames)
        return self._last[0]


@pytest.mark.process
def test_the_progress_of_a_running_run_reaches_all_front_ends_and_never_goes_back(
    make_site: Any, make_web: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_cache, "RUNNING_SECS", 3600.0)
    site = make_site().start()
    web = make_web(str(site.root))
    ann = web.as_(ANN)
    run = {
        "simulationType": "heat",
        "simulationId": "moving01",
        "report": "heatAnimation",
        "models": {"heatAnimation": {"frames": 1000, "paceSecs": 0.3}},
    }
    reply = ann.said("/run-simulation", run)
    until(lambda: ann.said("/run-status", reply["nextRequest"])["state"] == "running")
    one, other = (Poller(w, reply["nextRequest"]) for w in (web, make_web(str(site.root))))
    seen = 0
    for first, second in 3 * ((one, other), (other, one)):
        seen = second.until(first.until(seen + 1))
    assert one.asked < one.polls and other.asked < other.polls, "from memory"
    ann.said("/run-cancel", reply["nextRequest"])
    assert ann.said("/run-status", reply["nextRequest"])["state"] == "canceled"
