"""The executor with a supervisor in memory: refusals, failures of requests, cancels, closing."""

import base64
import concurrent.futures
import contextlib
import os
import threading
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.client.api.errors import ClientError, own
from jobscribe.client.api.replies import GroupRun, GroupState, RunState
from jobscribe.client.functions import runner
from jobscribe.client.functions.executor import Executor, results
from jobscribe.client.functions.future import FunctionFuture
from jobscribe.client.functions.outcomes import Outcome


class Supervisor:
    """Runs a call when `release` is set. failures: raised by the next requests for the group."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.release = threading.Event()
        self.release.set()
        self.runs: dict[str, str] = {}
        self.files: dict[str, bytes] = {}
        self.failures: list[Exception] = []
        self.refuse_after = 1000
        self.canceled: list[str] = []
        self.away: dict[str, Exception] = {}

    def copy(self) -> "Supervisor":
        return self

    def close(self) -> None: ...

    def spec(self, command: list[str], **options: Any) -> Any:
        return SimpleNamespace(command=command, **options)

    def run_many(self, specs: list[Any]) -> list[Any]:
        answers: list[Any] = []
        for spec in specs:
            if len(self.runs) >= self.refuse_after:
                answers.append(own("unreachable", "refused"))
                continue
            jid = f"uuuuuuuu-{spec.simulation_id}-{spec.compute_model}"
            self.runs[jid] = "pending"
            self.files[jid] = zlib.decompress(base64.b64decode(spec.env[runner.CALL]))
            answers.append(SimpleNamespace(jid=jid, serial=1))
        return answers

    def group(self, sid: str, *, limit: int = 100) -> GroupState:
        if self.failures:
            raise self.failures.pop(0)
        if self.release.is_set():
            for jid, state in self.runs.items():
                self.runs[jid] = "completed" if state == "pending" else state
        busy = list(self.runs.values()).count("pending")
        return GroupState("g", sid, len(self.runs), {}, not busy, busy)

    def group_runs(self, sid: str) -> Iterator[GroupRun]:
        for jid, state in list(self.runs.items()):
            yield GroupRun(
                compute_jid=jid,
                compute_job_serial=1,
                index=None,
                state=state,
                over=state != "pending",
                reason="cancel" if state == "canceled" else "exit",
            )

    def cancel(self, jid: str, *, serial: int = 0, reason: str = "") -> RunState:
        self.canceled.append(jid)
        if self.runs[jid] == "pending":
            self.runs[jid] = "canceled"
        return RunState(state=self.runs[jid])

    def open_file(self, jid: str, name: str, *, serial: int = 0) -> Any:
        os.environ.update(JOBSCRIBE_RUN_DIR=str(self._place), JOBSCRIBE_SERIAL="1")
        os.environ[runner.CALL] = base64.b64encode(zlib.compress(self.files[jid])).decode()
        runner.main(["inline"])
        if jid in self.away:
            raise self.away.pop(jid)
        data = (self._place / runner.RESULT).read_bytes()
        return contextlib.nullcontext(SimpleNamespace(length=len(data), read=lambda: data))


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("JOBSCRIBE_RUN_DIR", "")
    monkeypatch.setenv("JOBSCRIBE_SERIAL", "")
    return Supervisor(tmp_path)


def test_a_supervisor_that_is_away_delays_results_only(supervisor: Any) -> None:
    supervisor.failures = [own("unreachable", "away"), own("unreachable", "away")]
    with Executor(supervisor) as executor:
        assert executor.submit(abs, -1).result(20) == 1


def test_a_result_that_cannot_be_read_yet_delays_no_other(supervisor: Any) -> None:
    supervisor.release.clear()
    with Executor(supervisor) as executor:
        first, second = executor.submit(abs, -1), executor.submit(abs, -2)
        supervisor.away = {first.jid: ClientError("agentUnavailable", "away", retry=True)}
        supervisor.release.set()
        done = [f.result() for f in concurrent.futures.as_completed([first, second], 20)]
        assert done == [2, 1]


def test_an_error_that_no_retry_helps_ends_all_futures(supervisor: Any) -> None:
    for error in (ClientError("tokenRevoked", "no"), ZeroDivisionError("a bug")):
        supervisor.failures = [error]
        with Executor(supervisor) as executor, pytest.raises(type(error)):
            executor.submit(abs, -1).result(20)


def test_a_refused_run_of_a_map_cancels_the_others(supervisor: Any) -> None:
    supervisor.refuse_after = 2
    supervisor.release.clear()
    with Executor(supervisor) as executor, pytest.raises(ClientError, match="refused"):
        executor.map(abs, range(3))
    assert len(supervisor.canceled) == 2


def test_a_cancel_is_final_and_wakes_those_who_wait(supervisor: Any) -> None:
    supervisor.release.clear()
    with Executor(supervisor) as executor:
        future = executor.submit(abs, -1)
        assert future.cancel() and future.cancel() and future.cancelled()
        future.settle(1, None)  # a result that was read meanwhile
        assert concurrent.futures.wait([future], 20).done == {future}
        with pytest.raises(concurrent.futures.CancelledError):
            future.result()


def test_a_cancel_after_the_end_has_no_effect(supervisor: Any) -> None:
    with Executor(supervisor) as executor:
        future = executor.submit(abs, -1)
        supervisor.runs[future.jid] = "completed"
        assert not future.cancel() and future.result(20) == 1 and not future.cancel()


def test_a_failed_call_of_a_map_cancels_the_rest(supervisor: Any) -> None:
    with Executor(supervisor) as executor:
        results = executor.map(divmod, (1, 1), (1, 0), chunksize=2)
        assert next(results) == (1, 0)
        with pytest.raises(ZeroDivisionError):
            next(results)


def test_a_run_that_was_purged_ends_its_future(supervisor: Any) -> None:
    supervisor.release.clear()
    with Executor(supervisor) as executor:
        future = executor.submit(abs, -1)
        supervisor.runs.clear()
        with pytest.raises(ClientError, match="there is no run"):
            future.result(20)


def test_a_closed_client_names_the_runs_that_continue(supervisor: Any) -> None:
    supervisor.release.clear()
    executor = Executor(supervisor)
    future = executor.submit(abs, -1)
    executor.abandon()
    with pytest.raises(ClientError, match=f"the run {future.jid} continues"):
        future.result(1)
    with pytest.raises(RuntimeError):
        executor.submit(abs, -1)


def test_an_iterator_keeps_no_result() -> None:
    futures = [FunctionFuture[Any](lambda _: False) for _ in range(3)]
    for future in futures:
        future.settle([Outcome(set()), Outcome(set())], None)
    found = results(futures, Executor.outcomes, None)
    del futures, future
    count = 0
    for value in found:
        known = weakref.ref(value)
        del value
        assert known() is None
        count += 1
    assert count == 6
