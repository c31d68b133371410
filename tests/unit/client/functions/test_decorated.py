"""Decorated functions, the asynchronous executor, and tables for notebooks, with a supervisor in
memory.
"""

import asyncio
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from jobscribe.client import AsyncClient, Client, ClientError
from jobscribe.client.functions.async_executor import AsyncExecutor
from jobscribe.client.functions.decorator import (
    AsyncJobFunction,
    Executors,
    JobFunction,
    decorated,
)
from jobscribe.client.functions.executor import Executor
from jobscribe.client.functions.future import FunctionFuture
from jobscribe.client.functions.warm_executor import WarmExecutor

from .test_executor import Supervisor


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("JOBSCRIBE_RUN_DIR", "")
    monkeypatch.setenv("JOBSCRIBE_SERIAL", "")
    return Supervisor(tmp_path)


def area(width: int, height: int) -> int:
    """Return the area."""
    return width * height


def test_a_decorated_function_runs_here_if_called_and_in_jobs_if_submitted(supervisor: Any) -> None:
    executors = Executors(lambda **options: Executor(supervisor, **options))
    found = decorated(JobFunction, area, lambda: executors.of({}))
    assert found(3, 4) == 12 and not supervisor.runs
    assert (found.__name__, found.__doc__) == ("area", "Return the area.")
    assert found.submit(3, height=4).result(20) == 12
    assert list(found.map(range(4), range(4), chunksize=3)) == [0, 1, 4, 9]
    assert len(supervisor.runs) == 3
    # jobs get it without the decoration, which they could not import
    assert b"jobscribe" not in pickle.dumps(decorated(JobFunction, pow, lambda: executors.of({})))
    with pytest.raises(ClientError, match="workers=N"):
        found.submit_pinned("a", 3, 4)

    other = decorated(JobFunction, None, lambda: executors.of({"max_workers": 2}))(abs)
    assert other.submit(-1).result(20) == 1
    with pytest.raises(ClientError, match="no function"):
        decorated(JobFunction, 5, lambda: executors.of({}))
    executors.abandon()
    with pytest.raises(ClientError, match="badRequest"):
        Client("http://127.0.0.1:1", "token").function(workers=0)(area).submit(1, 2)


def test_functions_with_equal_options_share_an_executor(supervisor: Any) -> None:
    executors = Executors(lambda **options: Executor(supervisor, **options))
    first = executors.of({"resources": {"queue": "a"}})
    assert executors.of({"resources": {"queue": "a"}}) is first
    assert executors.of({"resources": {"queue": "b"}}) is not first
    executors.abandon()
    assert executors.of({"resources": {"queue": "a"}}) is not first
    executors.abandon()


async def test_the_asynchronous_executor_has_the_results_of_the_plain_one(supervisor: Any) -> None:
    async with AsyncExecutor(Executor(supervisor)) as executor:
        assert await (await executor.submit(area, 3, height=4)) == 12
        found = [n async for n in executor.map(area, range(5), range(5), chunksize=2)]
        assert found == [0, 1, 4, 9, 16] and await executor.store()
        with pytest.raises(ZeroDivisionError):
            [n async for n in executor.map(divmod, (1, 1), (1, 0))]
        with pytest.raises(ClientError, match="workers=N"):
            await executor.submit_pinned("a", area, 3, 4)
    function = decorated(AsyncJobFunction, area, lambda: Executor(supervisor))
    assert function(3, 4) == 12 == await (await function.submit(3, 4))
    assert [n async for n in function.map((1, 2), (3, 4))] == [3, 8]


async def test_a_map_that_takes_too_long_or_is_closed_cancels_the_rest(supervisor: Any) -> None:
    supervisor.release.clear()
    executor = AsyncExecutor(Executor(supervisor))
    with pytest.raises(TimeoutError):
        [n async for n in executor.map(abs, range(2), timeout=0.01)]
    assert len(supervisor.canceled) == 2
    await executor.shutdown()


async def test_a_canceled_task_cancels_its_call_beside_the_event_loop(supervisor: Any) -> None:
    supervisor.release.clear()
    loop, threads = threading.current_thread(), list[threading.Thread]()
    cancel = supervisor.cancel

    def noted(jid: str, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return cancel(jid, **options)

    supervisor.cancel = noted
    async with AsyncExecutor(Executor(supervisor)) as executor:
        future = await executor.submit(abs, -1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.01)
        with pytest.raises(asyncio.CancelledError):
            await future
    assert future.cancelled() and loop not in threads


def test_tables_of_notebooks_are_escaped_and_have_no_values(supervisor: Any) -> None:
    future = FunctionFuture[Any](lambda _: False)
    future.jid, future.serial, future.call = "<b>", 7, 3
    shown = future._repr_html_()
    assert "&lt;b&gt;" in shown and "<b>" not in shown and "not ended" in shown and ">3<" in shown
    future.settle("hunter2", None)
    assert "type str" in future._repr_html_() and "hunter2" not in future._repr_html_()
    raised = FunctionFuture[Any](lambda _: False)
    raised.settle(None, ValueError("<script>" + "x" * 1000))
    assert "ValueError: &lt;script&gt;" in raised._repr_html_() and len(raised._repr_html_()) < 600
    raised = FunctionFuture[Any](lambda _: True)
    raised.cancel()
    assert "canceled" in raised._repr_html_()

    client = Client("http://127.0.0.1:1", "token")
    assert "u-s-<i>" not in client.job("u-s-<i>")._repr_html_()
    asynchronous = AsyncClient.to("http://127.0.0.1:1", "token")
    assert "u-s-m" in asynchronous.job("u-s-m", 3)._repr_html_()
    with Executor(supervisor) as executor, WarmExecutor(supervisor, workers=1) as warm:
        assert executor.sid in executor._repr_html_() and warm.sid in warm._repr_html_()
        assert AsyncExecutor(warm)._repr_html_() == warm._repr_html_()
