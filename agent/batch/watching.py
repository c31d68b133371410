"""What batch jobs write into the evidence of their tasks: the fence when one starts, its exit code when it is over.

They run on other machines, so nothing tells when a file changes there: one looks, often while something happens, seldom else.
Blocks; `Pace` and `Seen` are data.
"""

import contextlib
import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from ...runtime.evidence import read, write, written_code
from ...runtime.output_cap import OutputCap
from ..slurm.marks import OVER, STARTED, Started, parse_started
from .batch_job import Task

#: Pauses between two looks (seconds): while something happened lately, growing to the second while nothing does.
SHORTEST_SECS, LONGEST_SECS = 0.1, 1.0
_GROWTH = 1.3
#: Output is cut no more often than this (seconds).
_CAP_SECS = 0.5
_FENCE_BYTES = 8192
#: No job of Slurm's has this number.
_NOBODY = "0"


class Seen(NamedTuple):
    """What lies there now. over: its step has ended."""

    started: Started | None
    code: int | None
    over: bool


class Pace:
    """How long to pause until the next look."""

    def __init__(self) -> None:
        self.secs = SHORTEST_SECS

    def looked(self, *, changed: bool) -> float:
        self.secs = SHORTEST_SECS if changed else min(LONGEST_SECS, self.secs * _GROWTH)
        return self.secs


def look(tasks: Iterable[Task], cap: OutputCap | None) -> dict[Task, Seen]:
    """Of each of these that changed since the look before. cap: cuts their output."""
    out = {}
    for task in tasks:
        if cap is not None:
            cap.apply(task)
        now = seen(task)
        known = (task.started is not None or task.fenced, task.code_mono is not None, task.step_over_mono is not None)
        if (now.started is not None, now.code is not None, now.over) != known:
            out[task] = now
    return out


def seen(task: Task) -> Seen:
    started = task.started or fence(task.folder)
    return Seen(started, written_code(task.folder), os.path.exists(f"{task.folder}/{OVER}"))


def fence(folder: str) -> Started | None:
    """Who made it; None where nobody did."""
    data = read(f"{folder}/{STARTED}", _FENCE_BYTES)
    return None if data is None else parse_started(data.decode("utf-8", "replace"))


def taken(started: Started) -> bool:
    """Was it the agent itself, so that nothing starts?"""
    return started.job_id == _NOBODY


def take_fence(folder: str) -> bool:
    """Make it oneself, whole, so that nothing ever starts by it. False where somebody was faster. Raises OSError."""
    temporary = f"{folder}/.{STARTED}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    write(temporary, f"job {_NOBODY}\nat {int(time.time())}\nend\n".encode())
    try:
        os.link(temporary, f"{folder}/{STARTED}")
    except FileExistsError:
        there = fence(folder)
        return there is not None and taken(there)
    finally:
        os.unlink(temporary)
    return True


def fresh(folder: str) -> None:
    """Have a network file system ask its server what is in this folder."""
    with contextlib.suppress(OSError):
        os.listdir(folder)


class Capping:
    """When output is to be cut."""

    def __init__(self, cap: OutputCap) -> None:
        self._cap, self._last = cap, float("-inf")

    def due(self) -> OutputCap | None:
        now = time.monotonic()
        if now - self._last < _CAP_SECS:
            return None
        self._last = now
        return self._cap
