"""The keeper's record of one execution, and its report to the agent. Data only."""

from __future__ import annotations

import os
import time

from ....protocol.execution.lifecycle import Lifecycle, Policy
from ....protocol.launch.keeper_reports import ExecutionReport
from ....runtime.execution.folder import MESSAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..linux.cgroups import Cgroup

#: Processes that outlive the main process are killed at once. They usually end within `ending`.
_POLICY = Policy(leftover=0.0, ending=0.05)


class ProcessSamples:
    """Samples of an execution's processes.

    ids: of processes and threads, the newest last. peak_memory: bytes. next_at: time of
    the next sample (monotonic); pause: seconds between samples. limits: process limits lower than
    the keeper's own, as "ulimit -t 1". lowered: process groups whose priority is lowered.
    """

    __slots__ = ("ids", "limits", "lowered", "next_at", "pause", "peak_memory")

    def __init__(self) -> None:
        self.ids: dict[int, None] = {}
        self.limits: dict[str, None] = {}
        self.lowered: set[int] = set()
        self.peak_memory = 0
        self.next_at = self.pause = 0.0


class Execution:
    """One execution of one task, from its start order or its recovery until the agent forgets it.

    own: the main process is a child of this keeper; otherwise an earlier keeper started it. life: its
    phase, times, stop and exit.
    """

    __slots__ = (
        "alone",
        "cgroup",
        "core_limit",
        "direct",
        "dropped",
        "folder",
        "life",
        "lock_fd",
        "main_seen",
        "name",
        "oom_counters",
        "own",
        "pause",
        "pid",
        "pidfd",
        "recorded",
        "run_dir",
        "samples",
        "script",
        "sizes",
        "slot",
        "successor",
        "survivors",
        "terminated",
        "ticks",
        "token",
    )

    def __init__(self, name: str, token: str, folder: str) -> None:
        self.name, self.token, self.folder = name, token, folder
        self.life = Lifecycle(_POLICY)
        self.run_dir: str | None = None
        self.pid: int | None = None
        self.ticks: int | None = None
        self.own = True
        #: its main process is its command itself; earlier versions started a shell that wrote the
        #: exit code
        self.direct = True
        #: its cgroup, if it has one
        self.cgroup: Cgroup | None = None
        #: out-of-memory counters at its start (see `oom_detection`)
        self.oom_counters: dict[str, Any] | None = None
        #: maximum size (bytes) of core files; 0: it has none
        self.core_limit = 0
        #: its end lets the next waiting execution start; the token of that execution
        self.slot = False
        self.successor: str | None = None
        #: the text of `script.sh`, until it is written
        self.script: bytes | None = None
        #: its exit is in `exit.json`, whatever it is
        self.recorded = False
        #: no other execution of this keeper ran at the same time
        self.alone = True
        self.lock_fd = self.pidfd = -1
        #: result of waitid for the ended main process, if this keeper is its parent
        self.main_seen: os.waitid_result | None = None
        #: processes that got SIGTERM (pid, ticks, image), and processes killed after the main
        #: process had ended (pid, ticks)
        self.terminated: set[tuple[int, int, int]] = set()
        self.survivors: set[tuple[int, int]] = set()
        #: pause until the next round of signals (seconds)
        self.pause = 0.0
        #: per stream: where the dropped middle ends, and the size at the last check
        self.dropped: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        #: samples of its processes while it ran
        self.samples = ProcessSamples()

    def environment_mark(self) -> dict[bytes, bytes]:
        """Return environment entries that every process of the execution inherits.

        The path is included because a token is unique in one root only.
        """
        message = os.fsencode(f"{self.folder}/{MESSAGE}")
        return {b"JOBSCRIBE_TOKEN": self.token.encode(), b"JOBSCRIBE_TERMINATION_MESSAGE": message}

    def close_lock(self) -> None:
        """Close the keeper's descriptor of the lock."""
        if self.lock_fd >= 0:
            os.close(self.lock_fd)
            self.lock_fd = -1

    def record_main(self, pid: int, ticks: int | None, wall: float, mono: float) -> None:
        self.pid, self.ticks = pid, ticks
        self.life.started(wall, mono)

    def finish(self, exit_: dict[str, Any]) -> None:
        """Record the end of the execution; no process of it is left. Raises IllegalTransition if
        it has ended before.
        """
        began, ended = self.life.started_at, exit_.get("endedAt")
        elapsed = max(0.0, ended - began) if began is not None and ended is not None else None
        self.life.finish(exit_, elapsed)
        self.terminated, self.survivors, self.dropped, self.sizes, self.samples = (
            set(),
            set(),
            {},
            {},
            ProcessSamples(),
        )

    def report(self) -> ExecutionReport:
        return ExecutionReport(
            name=self.name,
            token=self.token,
            state=self.life.state,
            pid=self.pid,
            start_ticks=self.ticks,
            started_at=self.life.started_at,
            elapsed=self.life.running_secs(time.monotonic()),
            run_dir=self.run_dir,
            exit=self.life.exit or self.life.own_exit,
            successor=self.successor,
        )
