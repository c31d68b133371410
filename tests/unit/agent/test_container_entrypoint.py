"""The entry point of a container: the forked agent inherits nothing from the keeper, and ends with
it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobscribe.agent.keeper.process import BAD_CONFIG
from jobscribe.runtime import processes

pytestmark = pytest.mark.process

DEADLINE_SECS = 60.0


def until(true: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_SECS
    while not (found := true()):
        assert time.monotonic() < deadline, what
        time.sleep(0.005)
    return found


@pytest.fixture
def first(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start an entry point that has not yet read its configuration."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "jobscribe.agent.container_entrypoint",
            "--root",
            str(tmp_path),
            "--folder",
            str(tmp_path / "a"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield process
    for pid in [process.pid, *children(process.pid)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(DEADLINE_SECS)
    assert process.stdin is not None
    process.stdin.close()


def children(pid: int) -> list[int]:
    return [p.pid for p in processes.table().values() if p.parent == pid]


def agent_of(first: subprocess.Popen[bytes]) -> int:
    """Wait for the agent's process title, and return its pid."""
    until(
        lambda: [
            c
            for c in children(first.pid)
            if b"jobscribe agent" in Path(f"/proc/{c}/cmdline").read_bytes()
        ],
        "there is an agent",
    )
    return children(first.pid)[0]


def test_the_agent_is_there_before_the_configuration_and_has_nothing_of_the_keepers(
    first: subprocess.Popen[bytes],
) -> None:
    agent = agent_of(first)
    assert os.getsid(agent) == agent
    if os.geteuid() == 0:  # both processes hide their descriptors from their own user
        assert os.readlink(f"/proc/{agent}/fd/0") == "/dev/null", (
            "the token comes by the keeper's stdin"
        )
        sockets = [
            f
            for f in os.listdir(f"/proc/{first.pid}/fd")
            if os.readlink(f"/proc/{first.pid}/fd/{f}").startswith("socket:")
        ]
        assert len(sockets) == 1, "of the pair, each has its own end"
    # the entry point handles SIGTERM; the agent must not inherit the handler
    os.kill(agent, signal.SIGTERM)
    assert until(lambda: _ended(agent), "it ends") == signal.SIGTERM


def _ended(pid: int) -> int | None:
    """Return the signal that ended a process which is not our child, or None."""
    text = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(text[-1]) & 0x7F if text[0] == "Z" else None


def test_a_keeper_that_is_told_nonsense_ends_and_its_agent_with_it(
    first: subprocess.Popen[bytes],
) -> None:
    agent = agent_of(first)
    assert first.stdin is not None
    first.stdin.write(b"{}\n")
    first.stdin.close()
    assert first.wait(DEADLINE_SECS) == BAD_CONFIG
    until(
        lambda: (
            not os.path.exists(f"/proc/{agent}/fd")
            or not processes.alive(agent, processes.start_ticks(agent) or 0)
        ),
        "it is gone",
    )


def test_a_first_process_without_configuration_ends_by_sigterm(
    first: subprocess.Popen[bytes],
) -> None:
    agent_of(first)
    first.terminate()
    assert first.wait(DEADLINE_SECS) == 0
