"""Outcomes, pins and ends of calls that must not disturb the other calls of an executor."""

import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.functions import outcomes
from jobscribe.client.functions.future import FunctionFuture
from jobscribe.client.functions.warm_executor import WarmExecutor
from jobscribe.client.functions.warm_passing import WarmPassing
from jobscribe.client.functions.warm_queue import CallQueue
from jobscribe.client.functions.warm_worker import WarmCall, WarmWorker


class Frozen(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("it is frozen")


class _Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def _fail() -> None:
    raise _Unreadable


class Exits:
    def __reduce__(self) -> Any:
        return sys.exit, (3,)


class Fails:
    def __reduce__(self) -> Any:
        return _fail, ()


def test_exceptions_that_refuse_changes_get_their_remote_traceback() -> None:
    row = {"kind": "raised", "type": "Frozen", "text": "", "traceback": "lines of the job"}
    error = outcomes.outcome_of(row, pickle.dumps(Frozen(3))).error
    assert isinstance(error, Frozen) and "lines of the job" in str(error.__cause__)


@pytest.mark.parametrize("value", [Exits(), Fails()], ids=["exit", "no text"])
def test_a_result_that_cannot_be_read_is_an_error_of_its_call(value: object) -> None:
    error = outcomes.outcome_of({"kind": "value"}, pickle.dumps(value)).error
    assert isinstance(error, ClientError) and error.code == "badResult"


def test_the_first_outcome_of_a_call_counts() -> None:
    future = FunctionFuture[int](lambda future: False)
    future.settle(1, None)
    future.settle(None, ValueError("the client was closed"))
    assert future.result(0) == 1


def test_a_pin_that_is_no_text_is_refused_at_once() -> None:
    executor = WarmExecutor(SimpleNamespace(copy=lambda: SimpleNamespace()), workers=1)  # type: ignore[arg-type]
    with pytest.raises(ClientError, match="a pin is a text, not list"):
        executor.submit_pinned(["a"], print)  # type: ignore[arg-type]


def test_a_pin_of_a_worker_with_damaged_outcomes_gets_another_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue: Any = CallQueue()
    options: Any = {"most": 2, "options": {}, "pythons": ["python3"], "idle_secs": 1.0}
    passing = WarmPassing(SimpleNamespace(), queue, "sid00000", **options)  # type: ignore[arg-type]
    damaged, other = (WarmWorker(SimpleNamespace(), n, 1) for n in "ab")  # type: ignore[arg-type]
    passing._workers, passing._pins = [damaged, other], {"pin": damaged}

    def read() -> Any:
        raise ValueError("the checksum of the outcomes is wrong")

    monkeypatch.setattr(damaged, "read", read)
    passing._receive(damaged, 0.0)
    call = WarmCall(b"", "", b"", FunctionFuture[Any](lambda future: False), 0, "pin")
    queue.waiting.append(call)
    assert passing._batch(other, [other]) == [call]
