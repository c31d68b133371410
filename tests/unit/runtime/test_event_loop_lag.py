"""Blocks of an event loop are measured and attributed; delays caused by the machine do not count as
blocks.
"""

import asyncio
import os
import subprocess
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from jobscribe.runtime import event_loop_lag as lag_module
from jobscribe.runtime.event_loop_lag import LoopLag


def lived(
    main: Coroutine[Any, Any, None], start: Coroutine[Any, Any, None] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Run a loop; return its lag summary after the start, and its log messages."""
    lag, said = LoopLag(), list[str]()
    out: dict[str, Any] = {}

    async def measured() -> None:
        await asyncio.sleep(0.15)
        if start is not None:
            await start
        lag.begin(said.append)
        await main
        await asyncio.sleep(0.25)  # gives the watching thread time to log the block
        out.update(lag.summary(), longest=lag.longest(0.0))

    lag.run(measured())
    return out, said


@pytest.fixture(autouse=True)
def _nobody_steals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclude real hypervisor steal time from the figures."""
    monkeypatch.setattr(lag_module, "_PROCESSORS", os.devnull)


def hold_it() -> None:
    time.sleep(0.4)


async def held() -> None:
    hold_it()


def test_a_loop_that_is_held_is_late_and_it_is_known_by_what() -> None:
    loop, said = lived(held())
    assert loop["held"] == 1
    assert loop["worst"]["secs"] > 0.2 and "hold_it" in loop["worst"]["what"]
    assert loop["p999"] > 0.2
    assert len(said) == 1 and "hold_it" in said[0]


async def held_twice() -> None:
    hold_it()
    await asyncio.sleep(0.3)  # gives the watching thread time for a check
    hold_it()


def test_what_held_it_before_it_served_anybody_is_neither_counted_nor_said() -> None:
    loop, said = lived(asyncio.sleep(0), held_twice())
    assert loop["longest"] == 0.0
    assert (loop["held"], loop["worst"]["secs"], loop["p999"] <= 0.05, said) == (0, 0.0, True, [])


def test_a_loop_that_waits_is_not_held() -> None:
    loop, said = lived(asyncio.sleep(0.4))
    assert (loop["held"], loop["p999"] <= 0.05, said) == (0, True, [])


async def computing() -> None:
    deadline = time.thread_time() + 0.4
    while time.thread_time() < deadline:
        pass


def test_time_on_the_processor_is_its_own() -> None:
    loop, _ = lived(computing())
    assert loop["worst"]["secs"] > 0.35


def stop_us() -> "subprocess.Popen[bytes]":
    """Send SIGSTOP to this process for a second, as on a frozen machine; another process continues
    it.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", f"kill -STOP {os.getpid()}; sleep 1; kill -CONT {os.getpid()}"]
    )


async def stopped() -> None:
    stopper = stop_us()
    deadline = time.monotonic() + 20
    while stopper.poll() is None:
        assert time.monotonic() < deadline
        computed = (
            time.thread_time() + 0.02
        )  # so that the stop falls into a loop iteration, not between two
        while time.thread_time() < computed:
            pass
        await asyncio.sleep(0)
    assert stopper.returncode == 0


@pytest.mark.process
def test_a_process_that_was_stopped_did_not_hold_its_loop() -> None:
    loop, _ = lived(stopped())
    assert loop["secs"] > 1
    assert loop["worst"]["secs"] < 0.5, loop


class Processors:
    """Fake kernel counters of three processors with hypervisor steal time."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.steal(0, 0, 0)

    def steal(self, *secs: float) -> None:
        """Set the total steal seconds of each processor."""
        each = "".join(
            f"cpu{n} 5 5 5 5 5 5 5 {300 + 100 * s:.0f} 0 0\n" for n, s in enumerate(secs)
        )
        text = f"cpu  9 9 9 9 9 9 9 {900 + 100 * sum(secs):04.0f} 0 0\n{each}intr 4711 0 0 1\n"
        with open(
            self.file, "r+b" if self.file.exists() else "wb"
        ) as f:  # never empty: the loop reads it at the same time
            f.write(text.encode())


@pytest.fixture
def processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processors:
    monkeypatch.setattr(lag_module, "_PROCESSORS", str(tmp_path / "stat"))
    monkeypatch.setattr(lag_module, "_TICKS", 100)
    return Processors(tmp_path / "stat")


@pytest.mark.parametrize(
    ("stolen", "own"),
    [
        ((0.0, 0.0, 0.3), (0.05, 0.35)),
        ((0.1, 0.1, 0.1), (0.15, 0.28)),
        ((0.0, 0.0, 0.0), (0.35, 20.0)),
    ],
    ids=str,
)
def test_time_that_a_hypervisor_gave_to_another_machine_did_not_hold_the_loop(
    stolen: tuple[float, ...],
    own: tuple[float, float],
    processors: Processors,
) -> None:
    """Only the kernel's processor counters distinguish steal time from a wait for a disk."""

    async def robbed() -> None:
        processors.steal(*stolen)
        hold_it()

    low, high = own
    for _ in range(
        3
    ):  # waits for a processor do not count either, so that a busy machine lowers it
        processors.steal(0, 0, 0)
        loop, _ = lived(robbed())
        assert loop["worst"]["secs"] <= high, loop
        if loop["worst"]["secs"] > low:
            return
    raise AssertionError(loop)


def test_time_on_the_processor_is_its_own_whatever_was_stolen_beside_it(
    processors: Processors,
) -> None:
    async def busy() -> None:
        processors.steal(0.0, 0.0, 5.0)
        await computing()

    loop, _ = lived(busy())
    assert loop["worst"]["secs"] > 0.35, loop


def test_the_percentile_is_that_of_the_moments_and_not_of_the_rounds() -> None:
    """Ten iterations of 0.1 s in ten seconds: one moment in a thousand waits over 90 ms, however
    many short iterations there are.
    """
    lag = LoopLag()
    lag.begin()
    now = time.monotonic()
    for _ in range(10):
        lag.began = now - 0.1
        lag.long_iteration(now)
    lag._since = time.monotonic() - 10
    assert 0.08 < lag.percentile(0.001) <= 0.1
    assert 0.04 < lag.percentile(0.05) < 0.06
    assert lag.percentile(0.2) == 0.005, "shorter ones are not counted"
