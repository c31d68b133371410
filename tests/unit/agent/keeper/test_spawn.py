"""Processes that posix_spawn creates: what they get after their start."""

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobscribe.agent.keeper.linux import spawn
from jobscribe.agent.keeper.linux.spawn import Program, Setting
from jobscribe.runtime import processes

pytestmark = pytest.mark.process

#: A shell with a child and a grandchild.
FAMILY = b"(sleep 300 & wait) & wait"


def _until_grandchild(pid: int) -> list[int]:
    """Return the pids of the family of this shell, as soon as all three exist."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        children = processes.children(pid)
        grandchildren = [p for child in children for p in processes.children(child)]
        if grandchildren:
            return [pid, *children, *grandchildren]
        time.sleep(0.002)
    pytest.fail("the shell creates no children")


def test_children_that_were_created_before_get_the_score_and_core_limit_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The spawning process may run late: a shell has started its commands by then."""
    original: Callable[..., int] = os.posix_spawn
    family: list[int] = []

    def late(*args: Any, **options: Any) -> int:
        pid = original(*args, **options)
        family.extend(_until_grandchild(pid))
        return pid

    monkeypatch.setattr(os, "posix_spawn", late)
    score = min(1000, spawn.own_oom_score() + 100)
    shell = Program(b"/bin/sh", [b"sh", b"-c", FAMILY], {b"PATH": b"/usr/bin:/bin"})
    pid = spawn.spawn(shell, Setting("/", [], 0o077, 0, score, []))
    try:
        assert len(family) == 3
        for each in family:
            assert int(Path(f"/proc/{each}/oom_score_adj").read_text()) == score
            assert resource.prlimit(each, resource.RLIMIT_CORE) == (0, 0)
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
