"""The keeper's record of one execution, and its report to the agent. Data only."""

from __future__ import annotations

import os
import time

from ....protocol.jobs.execution_state import ExecutionState, Trigger, next_state
from ....runtime.execution.folder import MESSAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..linux.cgroups import Cgroup


class ProcessSamples:
    """Samples of an execution's processes.

    ids: of processes and threads, the newest last. peak_memory: bytes. next_at: time of
    the next sample (monotonic); pause: seconds between samples. limits: process limits lower than
    the keeper's own, as "ulimit -t 1".
    """

    __slots__ = ("ids", "limits", "next_at", "pause", "peak_memory")

    def __init__(self) -> None:
        self.ids: dict[int, None] = {}
        self.limits: dict[str, None] = {}
        self.peak_memory = 0
        self.next_at = self.pause = 0.0


class Execution:
    """One execution of one task, from its start order or its recovery until the agent forgets it.

    own: the main process is a child of this keeper; otherwise an earlier keeper started it.
    main_over: the main process has ended, but other processes of the execution may still run.
    Times named `mono` are seconds on the monotonic clock, which all processes of one boot share.
    """

    __slots__ = (
        "alone",
        "cgroup",
        "direct",
        "dropped",
        "elapsed",
        "ended_mono",
        "exit",
        "exited",
        "folder",
        "grace",
        "kill_at",
        "kill_rounds",
        "killing",
        "limit",
        "lock_fd",
        "main_over",
        "main_seen",
        "name",
        "oom_counters",
        "own",
        "pause",
        "pid",
        "pidfd",
        "run_dir",
        "samples",
        "sizes",
        "slot",
        "started_at",
        "started_mono",
        "state",
        "stop_reason",
        "successor",
        "survivors",
        "terminated",
        "ticks",
        "token",
    )

    def __init__(self, name: str, token: str, folder: str) -> None:
        self.name, self.token, self.folder = name, token, folder
        self.state = ExecutionState.STARTING
        self.run_dir: str | None = None
        self.limit: float | None = None
        self.grace = 3.0
        self.pid: int | None = None
        self.ticks: int | None = None
        self.started_at: float | None = None
        self.started_mono: float | None = None
        self.elapsed: float | None = None
        #: when its main process ended (see `exit_info.ended_mono`)
        self.ended_mono: float | None = None
        self.exit: dict[str, Any] | None = None
        #: exit of the main process, as reported to the agent while other processes still ran
        self.exited: dict[str, Any] | None = None
        self.own = True
        #: its main process is its command itself; earlier versions started a shell that wrote the
        #: exit code
        self.direct = True
        #: its cgroup, if it has one
        self.cgroup: Cgroup | None = None
        #: out-of-memory counters at its start (see `oom_detection`)
        self.oom_counters: dict[str, Any] | None = None
        #: its end lets the next waiting execution start; the token of that execution
        self.slot = False
        self.successor: str | None = None
        #: no other execution of this keeper ran at the same time
        self.alone = True
        self.lock_fd = self.pidfd = -1
        self.main_over = False
        #: result of waitid for the ended main process, if this keeper is its parent
        self.main_seen: os.waitid_result | None = None
        self.stop_reason: str | None = None
        #: monotonic time from which all its processes are killed
        self.kill_at: float | None = None
        #: processes that got SIGTERM (pid, ticks, image), and processes killed after the main
        #: process had ended (pid, ticks)
        self.terminated: set[tuple[int, int, int]] = set()
        self.survivors: set[tuple[int, int]] = set()
        #: it is being killed; rounds of killing so far; pause until the next round (seconds)
        self.killing, self.kill_rounds, self.pause = False, 0, 0.0
        #: per stream: where the dropped middle ends, and the size at the last check
        self.dropped: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        #: samples of its processes while it ran
        self.samples = ProcessSamples()

    @property
    def ended(self) -> bool:
        return self.state is ExecutionState.ENDED

    def environment_mark(self) -> dict[bytes, bytes]:
        """Return environment entries that every process of the execution inherits.

        The path is included because a token is unique in one root only.
        """
        message = os.fsencode(f"{self.folder}/{MESSAGE}")
        return {b"JOBSCRIBE_TOKEN": self.token.encode(), b"JOBSCRIBE_TERMINATION_MESSAGE": message}

    def record_main(self, pid: int, ticks: int | None, wall: float, mono: float) -> None:
        self.pid, self.ticks, self.started_at, self.started_mono = pid, ticks, wall, mono

    def mark_running(self) -> None:
        """Record that this keeper started the execution or took it over."""
        self.state = next_state(self.state, Trigger.STARTED)

    def finish(self, exit_: dict[str, Any]) -> None:
        """Record the end of the execution; no process of it is left. Raises IllegalTransition if
        it has ended before.
        """
        self.state = next_state(self.state, Trigger.ENDED)
        began, ended = self.started_at, exit_.get("endedAt")
        self.elapsed = max(0.0, ended - began) if began is not None and ended is not None else None
        self.exit = exit_
        self.terminated, self.survivors, self.dropped, self.sizes, self.samples = (
            set(),
            set(),
            {},
            {},
            ProcessSamples(),
        )

    def report(self) -> dict[str, Any]:
        """Return the report to the agent.

        A running execution with an exit is ending: its main process has ended, other processes of
        it still run.
        """
        elapsed = self.elapsed
        if elapsed is None and self.started_mono is not None:
            elapsed = time.monotonic() - self.started_mono
        return {
            "name": self.name,
            "token": self.token,
            "state": self.state.value,
            "pid": self.pid,
            "startTicks": self.ticks,
            "startedAt": self.started_at,
            "elapsed": elapsed,
            "runDir": self.run_dir,
            "exit": self.exit or self.exited,
            "successor": self.successor,
        }
