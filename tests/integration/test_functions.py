"""Python functions as jobs of a real supervisor: results, exceptions, cancels, restarts, bad input."""

import asyncio
import concurrent.futures
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from supervisor_process import SupervisorProcess, until

import jobscribe
from jobscribe.client import AsyncClient, Client, ClientError
from jobscribe.client.functions import RemoteTraceback

PAGE = Path(jobscribe.__file__).parent / "docs/functions.md"


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    """Send the functions of this file, which jobs cannot import."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Odd(Exception):
    """An exception that can be pickled, and not read again."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__("odd")


def divide(a: float, b: float) -> float:
    return a / b


def visible(_: bytes) -> tuple[int, int, list[str]]:
    """Return what others, and child processes, see of arguments of 20 kB."""
    words = [Path(f"/proc/self/{n}").read_bytes().split(b"\0") for n in ("cmdline", "environ")]
    inherited = [name for name in os.environ if name.startswith("FUNCTION_CALL")]
    files = Path(os.environ["JOBSCRIBE_RUN_DIR"]).glob(".jobscribe/latest/function-call*")
    long = [sum(len(word) > 15_000 for word in each) for each in words]
    return long[0], long[1], [*inherited, *map(str, files)]


def odd() -> None:
    raise Odd(1, 2)


def process(_: object) -> int:
    return os.getpid()


def wait_for(path: Path) -> str:
    path.with_suffix(".begun").touch()
    while not path.exists():
        time.sleep(0.02)
    return "released"


def finish_when_stopped(path: Path) -> str:
    """Return a result after the cancel, in the time before SIGKILL."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    path.touch()
    while not stopped:
        time.sleep(0.02)
    return "late"


def give_up() -> None:
    print("gave up", flush=True)
    os._exit(3)


def fork_and_die() -> None:
    if os.fork() == 0:
        return  # the child comes back from the function
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)


def test_functions_return_raise_are_canceled_and_survive_restarts(
    site: SupervisorProcess, tmp_path: Path
) -> None:
    gate, late = tmp_path / "gate", tmp_path / "late"
    with Client.from_root(site.root, budget_secs=30.0) as client:
        # values and maps
        assert client.submit(divide, 6, b=3).result(20) == 2.0
        with client.executor(max_workers=2) as executor:
            assert list(executor.map(divide, (8, 6, 4), (2, 2, 2), chunksize=2)) == [4, 3, 2]
            assert len(set(executor.map(process, range(3), chunksize=3))) == 1
            futures = [executor.submit(pow, 2, n) for n in range(2)]
            seen = executor.submit(visible, os.urandom(20_000))
            done = {f.result() for f in concurrent.futures.as_completed(futures, timeout=20)}
            assert done == {1, 2}
            assert seen.result(20) == (0, 0, []), "command line, environment, what is left"
            with pytest.raises(ZeroDivisionError):
                list(executor.map(divide, (1, 1), (1, 0), chunksize=2))

        # exceptions with their traceback
        with pytest.raises(ZeroDivisionError) as raised:
            client.submit(divide, 1, 0).result(20)
        assert isinstance(raised.value.__cause__, RemoteTraceback)
        assert f'File "{__file__}", line' in str(raised.value.__cause__)
        assert "in divide" in str(raised.value.__cause__)
        with pytest.raises(ClientError, match="raised Odd: odd") as unread:
            client.submit(odd).result(20)
        assert "in odd" in str(unread.value.__cause__)

        # large arguments and results, as files that are removed
        large = os.urandom(200_000)
        future = client.submit(bytes.__add__, large, b"!")
        assert future.result(20) == large + b"!"
        until(lambda: client.lib_files("command") == [], "the arguments are removed")

        # a cancel is final, even if the function returns afterwards
        stopped = client.submit(finish_when_stopped, late)
        until(late.exists, "it runs")
        with pytest.raises(concurrent.futures.TimeoutError):
            stopped.result(0.01)
        assert stopped.cancel() and stopped.cancelled()
        with pytest.raises(concurrent.futures.CancelledError):
            stopped.result()
        client.wait(stopped.jid)
        assert any(f["name"] == "function-result.bin" for f in client.files(stopped.jid))
        with pytest.raises(concurrent.futures.CancelledError):
            client.job(stopped.jid).result(20)

        # restarts of supervisor and agent; another client reads the result, too
        kept = client.submit(wait_for, gate)
        until(gate.with_suffix(".begun").exists, "it runs")
        os.kill(site.agent_pid(client.uid), signal.SIGKILL)
        site.stop(signal.SIGKILL)
        gate.touch()
        site.start()
        assert kept.result(30) == "released"
        with Client.from_root(site.root) as other:
            assert other.job(kept.jid).result(20) == "released"


@pytest.mark.soak("the test above, with a small result")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["agent", "supervisor"])
def test_a_result_of_100_mb_is_read_whole_while_something_is_killed(
    site: SupervisorProcess, what: str
) -> None:
    """The kills hit the call and the copy of its result."""
    with Client.from_root(site.root, budget_secs=60.0) as client:
        future = client.submit(bytes.__mul__, bytes(range(256)), 400_000)
        until(lambda: client.status(future.jid).state in ("running", "completed"), "it runs")
        seen = list[Any]()

        def read() -> None:
            try:
                seen.append(future.result(120))
            except BaseException as e:
                seen.append(e)

        reader = threading.Thread(target=read)
        reader.start()
        kills = 0
        while reader.is_alive() and kills < 5:
            if what == "agent":
                site.kill(site.agent_pid(client.uid))
            else:
                site.stop(signal.SIGKILL)
                site.start()
            kills += 1
            reader.join(0.5)
        reader.join()
        print(f"{kills} kills of the {what}: {type(seen[0]).__name__} {str(seen[0])[:200]!r}")
        assert kills > 1
        # a call may give up with a sentence; its result is still there
        if isinstance(seen[0], ClientError):
            assert seen[0].advice
            seen = [client.job(future.jid).result(120)]
        assert seen == [bytes(range(256)) * 400_000]


def test_bad_functions_end_with_a_sentence(site: SupervisorProcess) -> None:
    def refused(function: Any, *args: Any, **options: Any) -> str:
        with pytest.raises(ClientError) as e:
            client.submit(function, *args, **options).result(20)
        return f"{e.value.code}: {e.value.sentence} {e.value.advice}"

    with Client.from_root(site.root) as client:
        text = refused(lambda: (n for n in []))
        assert "generator cannot be pickled" in text and "return list(...)" in text
        assert "called sys.exit(0)" in refused(sys.exit, 0)
        assert "gave up" in refused(give_up)
        assert "SIGKILL" in refused(fork_and_die)
        assert "time limit" in refused(time.sleep, 60, resources={"time_limit_secs": 0.2})
        assert "no Python" in refused(abs, 1, resources={"python": "/nowhere/python"})

        # the examples of the page; its large map is made smaller
        blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        text = "\n".join(blocks).replace('"/tmp/js"', repr(str(site.root))).replace("1000", "20")
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(text, str(PAGE), "exec"), names)
        names["client"].close()
        assert names["future"].result() == 12
        assert names["areas"] == [n * n for n in range(20)]
        assert names["doubles"] == [2 * n for n in range(100)]

    async def awaited() -> Any:
        async with AsyncClient.from_root(site.root) as client:
            future = await client.submit(divide, 9, 3)
            return await future, await client.job(future.jid).result(20)

    assert asyncio.run(awaited()) == (3, 3)
