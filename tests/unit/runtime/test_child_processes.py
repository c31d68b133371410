"""Ending children of an asyncio loop when another process holds their pipes, or when they have
already exited.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from jobscribe.runtime import child_processes, processes

pytestmark = pytest.mark.process

#: A child that leaves the group and keeps the pipes open, so that `wait` for its parent blocks.
LEAVES = "import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    open(sys.argv[1], 'w').write(str(os.getpid()))\n    time.sleep(60)\n    os._exit(0)\n"


async def _child(*argv: str) -> Process:
    return await asyncio.create_subprocess_exec(*argv, stdout=PIPE, start_new_session=True)


async def test_its_whole_group_is_told() -> None:
    child = await _child("/bin/sh", "-c", "sleep 60 & echo $!; wait")
    assert child.stdout is not None
    other = int(await child.stdout.readline())
    child_processes.signal_group(child, signal.SIGKILL)
    assert await child_processes.wait_ended(child, 5.0)
    assert child.returncode == -signal.SIGKILL
    for _ in range(500):
        found = processes.find(other)
        if found is None or found.over:
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("another one of its group lives on")


async def test_who_is_gone_is_told_nothing() -> None:
    child = await _child("true")
    assert await child_processes.wait_ended(child, 5.0)
    child_processes.signal_group(child, signal.SIGKILL)
    child_processes.close_pipes(child)
    assert child.returncode == 0


async def test_who_keeps_its_pipes_is_not_waited_for(tmp_path: Path) -> None:
    left = tmp_path / "left"
    child = await _child(sys.executable, "-c", LEAVES, str(left))
    try:
        async with asyncio.timeout(10):
            await child_processes.wait_ended(child, 0.5)
            child_processes.close_pipes(child)
            # this process has closed its ends of the pipes
            assert child.stdout is not None and await child.stdout.read() == b""
            assert await child_processes.wait_ended(child, 5.0) and child.returncode == 0
    finally:
        while not left.exists():
            await asyncio.sleep(0.01)
        os.kill(int(left.read_text()), signal.SIGKILL)
