"""Observation of the files that batch jobs write into the evidence of their tasks: the fence at the
start, the exit code at the end.

The jobs run on other machines, so there are no change notifications. The files are polled: often
while something happens, rarely otherwise. Blocks.
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
from ..slurm.script_markers import HELD, OVER, STARTED, Started, parse_held, parse_started
from .state import Task

#: Pauses between two polls (seconds): the shortest, after a change, and the longest.
SHORTEST_SECS, LONGEST_SECS = 0.1, 1.0
_GROWTH = 1.3
#: Output is capped at most this often (seconds).
_CAP_SECS = 0.5
_FENCE_BYTES = 8192
#: No Slurm job has this id.
_AGENT_JOB_ID = "0"


class Observation(NamedTuple):
    """Files of one task. own: the exit info written by its script. over: its step has ended.
    held_until: until when its script holds the allocation (unix seconds).
    """

    started: Started | None
    own: ExitInfo | None
    over: bool
    held_until: float | None = None


class PollPace:
    """Pause until the next poll."""

    def __init__(self) -> None:
        self.secs = SHORTEST_SECS

    def next_pause(self, *, changed: bool) -> float:
        self.secs = SHORTEST_SECS if changed else min(LONGEST_SECS, self.secs * _GROWTH)
        return self.secs


def observe(
    tasks: Iterable[Task], cap: OutputCap | None, completing: Container[Task] = ()
) -> dict[Task, Observation]:
    """Return the tasks whose files changed since the previous poll. cap: limits their output.
    completing: tasks whose exit code is expected now.
    """
    out = {}
    for task in tasks:
        if cap is not None:
            cap.apply(task)
        now = observe_task(task, refresh=task in completing)
        known = (
            task.started is not None or task.life.barred,
            task.life.own_exit is not None,
            task.step_over_mono is not None,
            task.held_until is not None,
        )
        found = (
            now.started is not None,
            now.own is not None,
            now.over,
            now.held_until is not None,
        )
        if found != known:
            out[task] = now
    return out


def observe_task(task: Task, *, refresh: bool = False) -> Observation:
    started = task.started or read_fence(task.folder)
    if refresh and task.life.own_exit is None:
        refresh_folder(task.folder)
    return Observation(
        started,
        task.life.own_exit or (None if task.life.barred else own_exit(task.folder, started)),
        os.path.exists(f"{task.folder}/{OVER}"),
        task.held_until or _held_until(task),
    )


def _held_until(task: Task) -> float | None:
    """Return until when the allocation of this failed task is held (unix seconds), or None."""
    if task.job is None or not task.job.holds:
        return None
    data = read(f"{task.folder}/{HELD}", _FENCE_BYTES)
    return None if data is None else parse_held(data.decode("utf-8", "replace"))


def own_exit(folder: str, started: Started | None) -> ExitInfo | None:
    """Return the exit info from the script's exit code file, or None if there is no file yet."""
    code = written_code(folder)
    if code is None:
        return None
    began = started.at if started is not None and started.pid else None
    fields = {
        "source": "script",
        "startedAt": began,
        "endedAt": ended_at(folder, began),
        **from_code(folder, code),
    }
    return msgspec.convert(fields, ExitInfo)


def ended_at(folder: str, began: float | None) -> float:
    """Return the unix time at which the script wrote its exit code, at least `began`: file times
    come from a coarser clock.
    """
    try:
        return max(os.stat(f"{folder}/{EXIT_CODE}").st_mtime, began or 0.0)
    except OSError:
        return time.time()


def read_fence(folder: str) -> Started | None:
    """Return the content of the fence, or None if it is not taken."""
    data = read(f"{folder}/{STARTED}", _FENCE_BYTES)
    return None if data is None else parse_started(data.decode("utf-8", "replace"))


def taken_by_agent(started: Started) -> bool:
    """Return whether the agent took the fence, so that nothing starts."""
    return started.job_id == _AGENT_JOB_ID


def take_fence(folder: str) -> bool:
    """Take the fence for the agent, so that the task never starts. False if the batch job was
    faster. Raises OSError.
    """
    temporary = f"{folder}/.{STARTED}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    write(temporary, f"job {_AGENT_JOB_ID}\nat {int(time.time())}\nend\n".encode())
    try:
        os.link(temporary, f"{folder}/{STARTED}")
    except FileExistsError:
        existing = read_fence(folder)
        return existing is not None and taken_by_agent(existing)
    finally:
        os.unlink(temporary)
    return True


def refresh_folder(folder: str) -> None:
    """Make a network file system refresh this folder's entries."""
    with contextlib.suppress(OSError):
        os.listdir(folder)


class CapInterval:
    """Rate limit for capping output."""

    def __init__(self, cap: OutputCap) -> None:
        self._cap, self._last = cap, float("-inf")

    def due(self) -> OutputCap | None:
        now = time.monotonic()
        if now - self._last < _CAP_SECS:
            return None
        self._last = now
        return self._cap
