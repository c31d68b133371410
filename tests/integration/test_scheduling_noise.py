"""The idle process that measures scheduling noise is late if the machine stands still, and only
then.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scheduling_noise import NoiseMeter
from supervisor_process import until


@pytest.fixture
def idle() -> Iterator[NoiseMeter]:
    made = NoiseMeter()
    try:
        yield made
    finally:
        made.end()


def test_a_standstill_is_in_it_and_what_was_before_is_not(idle: NoiseMeter) -> None:
    began = time.monotonic()
    pid = idle.pid
    until(idle.measures, "it measures", 20)
    os.kill(pid, signal.SIGSTOP)
    until(
        lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T",
        "it stands still",
        20,
    )
    time.sleep(0.5)
    os.kill(pid, signal.SIGCONT)
    # the process may have been a little late before
    until(lambda: max(idle.late(began), default=0.0) > 0.45, "it has noticed", 20)
    longest = max(idle.late(began))
    assert longest - 0.1 < idle.percentile(0.001, began) <= longest, (
        "over so short a time it is about the longest"
    )
    assert longest not in idle.late(time.monotonic())
