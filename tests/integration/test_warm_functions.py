"""Warm workers of a real supervisor: crashes, restarts, lost workers, cancels, pins, refusals."""

import asyncio
import concurrent.futures
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest
from supervisor_process import SupervisorProcess, until

from jobscribe.client import AsyncClient, Client, ClientError
from jobscribe.client.functions.warm_executor import WarmExecutor

_SEEN: list[int] = []


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    """Send the functions of this file, which jobs cannot import."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def end_process(how: int) -> None:
    if how >= 0:
        os._exit(how)
    os.kill(os.getpid(), -how)


def note(path: Path, number: int) -> int:
    """Append to a file, so that a second start of a call shows."""
    with path.open("a") as file:
        file.write(f"{number}\n")
    return number


def hold(path: Path) -> int:
    """Wait for a file. Return the process of the worker."""
    note(path.with_suffix(".begun"), os.getppid())
    while not path.exists():
        time.sleep(0.02)
    return os.getppid()


def count(number: int) -> tuple[int, int]:
    _SEEN.append(number)
    return os.getpid(), len(_SEEN)


def refused(future: "concurrent.futures.Future[object]") -> str:
    with pytest.raises(ClientError) as e:
        future.result(60)
    return f"{e.value.code}: {e.value.sentence}"


def test_calls_share_workers_and_fail_alone(site: SupervisorProcess, tmp_path: Path) -> None:
    log, gate, wall = tmp_path / "log", tmp_path / "gate", tmp_path / "wall"
    with Client.from_root(site.root, budget_secs=30.0) as client:
        executor = client.executor(workers=1)
        assert isinstance(executor, WarmExecutor)
        with executor:
            # a crash concerns one call; the neighbours run once each
            calls = [
                executor.submit(note, log, 1),
                executor.submit(end_process, 3),
                executor.submit(note, log, 2),
                executor.submit(end_process, -signal.SIGSEGV),
                executor.submit(divmod, 1, 0),
                executor.submit(note, log, 3),
            ]
            assert calls[5].result(60) == 3
            assert "exit code 3" in refused(calls[1]) and "SIGSEGV" in refused(calls[3])
            with pytest.raises(ZeroDivisionError):
                calls[4].result(60)
            assert log.read_text().split() == ["1", "2", "3"]

            # pinned calls find the memory of earlier ones
            first, second = (executor.submit_pinned("a", count, n).result(60) for n in (1, 2))
            assert first[0] == second[0] and (first[1], second[1]) == (1, 2)

            # a waiting call can be canceled, a running one cannot
            running = executor.submit(hold, wall)
            waiting = executor.submit(note, log, 4)
            until(wall.with_suffix(".begun").exists, "it runs")
            assert executor.store(60)
            assert waiting.cancel() and waiting.cancelled() and not running.cancel()

            # accepted calls go on through restarts of supervisor and agent
            after = executor.submit(note, log, 5)
            assert executor.store(60)
            os.kill(site.agent_pid(client.uid), signal.SIGKILL)
            site.stop(signal.SIGKILL)
            wall.touch()
            until(lambda: "5" in log.read_text(), "the accepted call runs")
            site.start()
            worker = running.result(60)
            assert after.result(60) == 5
            # another client reads outcomes while the worker goes on
            with Client.from_root(site.root) as other:
                job = other.job(after.jid)
                assert job.result(60, call=after.call) == 5
                with pytest.raises(TimeoutError):
                    job.result(0.01, call=1000)

            # the worker itself dies: the begun call is lost, its neighbour runs once
            lost, kept = executor.submit(hold, gate), executor.submit(note, log, 6)
            until(gate.with_suffix(".begun").exists, "it runs")
            assert executor.store(60)
            os.kill(worker, signal.SIGKILL)
            assert "callFailed" in refused(lost) and kept.result(60) == 6
            assert gate.with_suffix(".begun").read_text().count("\n") == 1
        assert log.read_text().split() == ["1", "2", "3", "5", "6"]
        assert client.wait_group(executor.sid, timeout=60).over
        with pytest.raises(ClientError, match="is a warm worker"):
            client.job(after.jid).result()
        with pytest.raises(ClientError, match="may have run"):
            client.job(lost.jid).result(60, call=lost.call)

        async def awaited() -> list[int]:
            async with (
                AsyncClient.from_root(site.root) as asynchronous,
                asynchronous.executor(workers=1) as executor,
            ):
                first = await executor.submit_pinned("a", pow, 2, 0)
                assert await executor.store(60)
                return [await first, *[n async for n in executor.map(pow, (2, 2), (1, 2))]]

        assert asyncio.run(awaited()) == [1, 2, 4]

        # another Python is refused before the call
        with client.executor(workers=1, resources={"python": "/bin/echo"}) as other:
            assert "callFailed" in refused(other.submit(note, log, 7))
        assert "7" not in log.read_text()
