"""Outcomes of calls of warm workers that other clients than their executor read."""

import concurrent.futures
import io
import pickle
from typing import Any

import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.api.replies import RunState
from jobscribe.client.functions import warm_results
from jobscribe.client.functions.worker import call_files
from jobscribe.protocol.jobs.exit_info import ExitInfo

JID = "EPRSqtUW-abcdefgh-worker0001"
RUNNING = RunState(state="running", compute_jid=JID)
ENDED = RunState(state="error", over=True, reason="signal", exit=ExitInfo(signal=9))


class Supervisor:
    """The files of a worker, and its states: one for each question, then the last one."""

    def __init__(self, *states: RunState) -> None:
        self.states = list(states)
        self.files: dict[str, bytes] = {}
        #: what the worker writes before each question
        self.later: list[bytes] = []

    def status(self, jid: str, *, serial: int = 0) -> RunState:
        if self.later:
            self.add(self.later.pop(0))
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def add(self, data: bytes) -> None:
        self.files[call_files.OUTCOMES] = self.files.get(call_files.OUTCOMES, b"") + data

    def open_file(self, jid: str, name: str, *, serial: int = 0, offset: int = 0) -> io.BytesIO:
        if name not in self.files:
            raise ClientError("notFound", "no such file")
        return io.BytesIO(self.files[name][offset:])

    def put_data(
        self, jid: str, name: str, data: bytes, *, serial: int = 0, active: bool = False
    ) -> None:
        raise AssertionError("a reader stores nothing")

    def why(self, jid: str) -> dict[str, Any]:
        return {}


def group(*frames: tuple[dict[str, Any], bytes]) -> bytes:
    return call_files.group(list(frames)) + call_files.COMMIT


def value(call: int, found: object) -> tuple[dict[str, Any], bytes]:
    return {"kind": "value", "call": call}, pickle.dumps(found)


def result(supervisor: Supervisor, call: int, timeout: float | None = 20.0) -> Any:
    return warm_results.of_call(supervisor, "EPRSqtUW", JID, 1, call, timeout)


def test_an_outcome_is_read_while_its_worker_goes_on() -> None:
    supervisor = Supervisor(RUNNING)
    supervisor.add(group(value(1, "one")))
    raised = {"kind": "crashed", "text": "killed by SIGSEGV", "call": 3}
    supervisor.later = [
        group(({"kind": "late", "call": 2}, b"")),
        group(value(2, "two"), (raised, b""), ({"kind": "canceled", "call": 4}, b"")),
    ]
    assert (result(supervisor, 1), result(supervisor, 2)) == ("one", "two")
    with pytest.raises(ClientError, match="SIGSEGV"):
        result(supervisor, 3)
    with pytest.raises(concurrent.futures.CancelledError):
        result(supervisor, 4)
    with pytest.raises(TimeoutError, match="call 5"):
        result(supervisor, 5, 0.01)


def test_a_group_counts_when_it_is_committed_or_its_worker_is_over() -> None:
    frames = call_files.group([value(1, "one")])
    supervisor = Supervisor(RUNNING)
    supervisor.add(frames)
    with pytest.raises(TimeoutError):
        result(supervisor, 1, 0.0)
    supervisor.states = [ENDED]
    assert result(supervisor, 1) == "one"


def test_a_call_without_an_outcome_fails_with_what_is_known() -> None:
    supervisor = Supervisor(ENDED)
    accepted, granted = {"kind": "accepted", "batch": 1, "last": 4}, {"kind": "grant", "to": 3}
    supervisor.add(group((accepted, b""), (granted, b"")))
    supervisor.files[call_files.BEGUN] = call_files.begun(2, "boot")
    for call, text in ((5, "did not accept"), (4, "did not run"), (3, "not run"), (2, "may have")):
        with pytest.raises(ClientError, match=text) as e:
            result(supervisor, call)
        assert e.value.code == "callFailed" and JID in e.value.advice
    # the end of the run is not known, such as after a power cut
    for exit_ in (None, ExitInfo(detail="its host restarted")):
        supervisor.states = [RunState(state="error", over=True, reason="lost", exit=exit_)]
        for call, text in ((4, "did not run"), (3, "may have"), (1, "may have")):
            with pytest.raises(ClientError, match=text):
                result(supervisor, call)
    supervisor.states = [RunState(state="canceled", over=True, reason="cancel")]
    with pytest.raises(concurrent.futures.CancelledError):
        result(supervisor, 4)


def test_wrong_calls_damage_and_other_users_are_refused() -> None:
    supervisor = Supervisor(RUNNING)
    with pytest.raises(ClientError, match="numbers 1, 2"):
        result(supervisor, 0)
    with pytest.raises(ClientError, match="another user"):
        warm_results.of_call(supervisor, "another1", JID, 1, 1, 0.0)
    supervisor.add(b"no group\n")
    with pytest.raises(ClientError) as e:
        result(supervisor, 1)
    assert e.value.code == "badResult"
