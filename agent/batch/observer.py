"""What batch jobs write into the evidence of their tasks: the fence when one starts, its exit code
when it is over.

They run on other machines, so nothing tells when a file changes there: one looks, often while
something happens, seldom else. Blocks; `Pace` and `Seen` are data.
"""

import contextlib
import os
import time
from collections.abc import Container, Iterable
from typing import NamedTuple

import msgspec

from ...protocol.jobs.exit_info import ExitInfo
from ...runtime.execution.folder import EXIT_CODE, from_code, read, write, written_code
from ...runtime.execution.output_limit import OutputCap
from ..slurm.script_markers import OVER, STARTED, Started, parse_started
from .state import Task

#: Pauses between two looks (seconds): while something happened lately, growing to the second while
#: nothing does.
SHORTEST_SECS, LONGEST_SECS = 0.1, 1.0
_GROWTH = 1.3
#: Output is cut no more often than this (seconds).
_CAP_SECS = 0.5
_FENCE_BYTES = 8192
#: No job of Slurm's has this number.
_NOBODY = "0"


class Observation(NamedTuple):
    """What lies there now. own: the exit that its script wrote down. over: its step has ended."""

    started: Started | None
    own: ExitInfo | None
    over: bool


class PollPace:
    """How long to pause until the next look."""

    def __init__(self) -> None:
        self.secs = SHORTEST_SECS

    def looked(self, *, changed: bool) -> float:
        self.secs = SHORTEST_SECS if changed else min(LONGEST_SECS, self.secs * _GROWTH)
        return self.secs


def look(
    tasks: Iterable[Task], cap: OutputCap | None, completing: Container[Task] = ()
) -> dict[Task, Observation]:
    """Of each of these that changed since the look before. cap: cuts their output. completing:
    whose exit is expected now.
    """
    out = {}
    for task in tasks:
        if cap is not None:
            cap.apply(task)
        now = seen(task, anew=task in completing)
        known = (
            task.started is not None or task.fenced,
            task.code_mono is not None,
            task.step_over_mono is not None,
        )
        if (now.started is not None, now.own is not None, now.over) != known:
            out[task] = now
    return out


def seen(task: Task, *, anew: bool = False) -> Observation:
    started = task.started or fence(task.folder)
    if anew and task.own is None:
        fresh(task.folder)
    return Observation(
        started, task.own or own_exit(task.folder, started), os.path.exists(f"{task.folder}/{OVER}")
    )


def own_exit(folder: str, started: Started | None) -> ExitInfo | None:
    """The exit in the script's own hand, without what else is known of its end. None where the
    script has not written it.
    """
    code = written_code(folder)
    if code is None:
        return None
    began = started.at if started is not None and started.pid else None
    words = {
        "source": "script",
        "startedAt": began,
        "endedAt": ended_at(folder, began),
        **from_code(folder, code),
    }
    return msgspec.convert(words, ExitInfo)


def ended_at(folder: str, began: float | None) -> float:
    """When the script wrote its exit code. Files are stamped by a coarser clock: a short job would
    end before it started.
    """
    try:
        return max(os.stat(f"{folder}/{EXIT_CODE}").st_mtime, began or 0.0)
    except OSError:
        return time.time()


def fence(folder: str) -> Started | None:
    """Who made it; None where nobody did."""
    data = read(f"{folder}/{STARTED}", _FENCE_BYTES)
    return None if data is None else parse_started(data.decode("utf-8", "replace"))


def taken(started: Started) -> bool:
    """Was it the agent itself, so that nothing starts?"""
    return started.job_id == _NOBODY


def take_fence(folder: str) -> bool:
    """Make it oneself, whole, so that nothing ever starts by it. False where somebody was faster.
    Raises OSError.
    """
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
