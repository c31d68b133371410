"""What the keeper knows of one execution, and how it says it to the agent. Data only."""

from __future__ import annotations

import os
import time

from ....runtime.execution.folder import MESSAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from typing import Any

    from ..linux.cgroups import Cgroup


class ProcessSamples:
    """numbers: of processes and threads, the newest last. weighed: the most memory, in bytes.
    again: when to look again (monotonic).

    limits: of one process, lower than the keeper's own, as "ulimit -t 1".
    """

    __slots__ = ("again", "limits", "numbers", "pause", "weighed")

    def __init__(self) -> None:
        self.numbers: dict[int, None] = {}
        self.limits: dict[str, None] = {}
        self.weighed = 0
        self.again = self.pause = 0.0


class Execution:
    """One execution of one task, from its start order (or from what was found of it) until the
    agent forgets it.

    own: is its main process a child of this keeper? (Otherwise an earlier keeper started it.)
    main_over: its main process has ended; only what is left of it keeps the execution from being
    over. Times called `mono` are seconds on the monotonic clock, which all processes of one boot
    share.
    """

    __slots__ = (
        "alone",
        "cgroup",
        "counted",
        "dropped",
        "elapsed",
        "ended_mono",
        "exit",
        "exited",
        "folder",
        "grace",
        "kill_at",
        "killing",
        "limit",
        "lock_fd",
        "main_over",
        "main_seen",
        "main_status",
        "name",
        "own",
        "pause",
        "pid",
        "pidfd",
        "rounds",
        "run_dir",
        "sight",
        "sizes",
        "started_at",
        "started_mono",
        "stop_reason",
        "survivors",
        "terminated",
        "ticks",
        "token",
    )

    def __init__(self, name: str, token: str, folder: str) -> None:
        self.name, self.token, self.folder = name, token, folder
        self.run_dir: str | None = None
        self.limit: float | None = None
        self.grace = 3.0
        self.pid: int | None = None
        self.ticks: int | None = None
        self.started_at: float | None = None
        self.started_mono: float | None = None
        self.elapsed: float | None = None
        #: when its main process ended (see `verdict.ended_mono`)
        self.ended_mono: float | None = None
        self.exit: dict[str, Any] | None = None
        #: the exit of its main process, as the agent was told it while something of it was left
        self.exited: dict[str, Any] | None = None
        self.own = True
        #: its cgroup, where it has one
        self.cgroup: Cgroup | None = None
        #: the counters of kills for want of memory around it when it started (see `shortage`)
        self.counted: dict[str, Any] | None = None
        #: did no other execution of this keeper run while it did?
        self.alone = True
        self.lock_fd = self.pidfd = -1
        self.main_over = False
        #: what wait4 said of the main process, where this keeper is its parent
        self.main_status: tuple[int, resource.struct_rusage] | None = None
        #: what waitid said of it before
        self.main_seen: os.waitid_result | None = None
        self.stop_reason: str | None = None
        #: monotonic time from which on everything of it is killed
        self.kill_at: float | None = None
        #: what was sent SIGTERM (pid, ticks, image), and what was killed after the main process had
        #: ended (pid, ticks)
        self.terminated: set[tuple[int, int, int]] = set()
        self.survivors: set[tuple[int, int]] = set()
        #: is it being killed; how often it was looked at since; and the pause until the next look
        self.killing, self.rounds, self.pause = False, 0, 0.0
        #: per stream: where the dropped middle ends, and the size when it was looked at last
        self.dropped: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        #: what was seen of it while it ran
        self.sight = ProcessSamples()

    @property
    def ended(self) -> bool:
        return self.exit is not None

    def mark(self) -> dict[bytes, bytes]:
        """Environment entries that every process of it inherits. The path is in there because a
        token is unique in one root only.
        """
        message = os.fsencode(f"{self.folder}/{MESSAGE}")
        return {b"JOBSCRIBE_TOKEN": self.token.encode(), b"JOBSCRIBE_TERMINATION_MESSAGE": message}

    def began(self, pid: int, ticks: int | None, wall: float, mono: float) -> None:
        self.pid, self.ticks, self.started_at, self.started_mono = pid, ticks, wall, mono

    def over(self, exit_: dict[str, Any]) -> None:
        """Nothing of it is left; this is its end."""
        began, ended = self.started_at, exit_.get("endedAt")
        self.elapsed = max(0.0, ended - began) if began is not None and ended is not None else None
        self.exit = exit_
        self.terminated, self.survivors, self.dropped, self.sizes, self.sight = (
            set(),
            set(),
            {},
            {},
            ProcessSamples(),
        )

    def said(self) -> dict[str, Any]:
        """The form that the agent gets. One that runs and has an exit is ending: its main process
        is over, and something of it is left.
        """
        elapsed = self.elapsed
        if elapsed is None and self.started_mono is not None:
            elapsed = time.monotonic() - self.started_mono
        return {
            "name": self.name,
            "token": self.token,
            "state": "ended" if self.ended else "running",
            "pid": self.pid,
            "startTicks": self.ticks,
            "startedAt": self.started_at,
            "elapsed": elapsed,
            "runDir": self.run_dir,
            "exit": self.exit or self.exited,
        }
