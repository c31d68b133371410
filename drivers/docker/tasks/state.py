"""What is known of tasks in containers of their own, by place: data only, and how it is said in the
words of the wire.
"""

import asyncio
import time

from ....protocol.ids import AgentKey, Token, op_id
from ....protocol.jobs.exit_info import ExitInfo
from ....protocol.wire.messages import SNAPSHOT_PAGE, ContainerSpec, Execution, Snapshot, TaskSpec
from .ledger import Asked, ContainerLedger, Stop


class TaskState:
    """One task, from its launch (or from what was found of it) until it is settled.

    asked: what is on disk of it; None: its token is not used yet, or was before. container: its id,
    once there is one. told: when it was reported last, monotonic. folder, token, dropped, sizes:
    what OutputCap needs.
    """

    def __init__(self, place: "ContainerPlace", token: Token, spec: TaskSpec | None = None) -> None:
        self.place, self.token, self.spec = place, token, spec
        self.folder = place.files.evidence(token)
        self.asked: Asked | None = None
        self.container: str | None = None
        self.pid: int | None = None
        self.began: float | None = None
        self.began_mono: float | None = None
        self.stop: Stop | None = None
        #: monotonic; from then on it is killed
        self.kill_at: float | None = None
        #: its container was told to start, once for all
        self.begun = False
        #: nobody wants to look at what failed (any more)
        self.released = False
        self.ooms = 0
        #: the most memory that it was seen to have
        self.memory_peak: int | None = None
        #: the command's own exit, while its container is still there; and since when it is seen
        #: (monotonic)
        self.exited: ExitInfo | None = None
        self.exit_seen: float | None = None
        self.exit: ExitInfo | None = None
        self.told = float("-inf")
        self.dropped: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        #: one at a time uses its token, one at a time looks; whoever stops it waits for its end
        self.using, self.looking = asyncio.Lock(), asyncio.Lock()
        self.changed, self.over = asyncio.Event(), asyncio.Event()

    @property
    def box(self) -> ContainerSpec:
        box = self.spec.box if self.spec is not None else None
        return box if isinstance(box, ContainerSpec) else ContainerSpec()

    @property
    def grace(self) -> float:
        return self.asked.grace if self.asked is not None else 0.0

    @property
    def state(self) -> str:
        return (
            "ended" if self.exit is not None else "running" if self.pid is not None else "starting"
        )

    def runs(self, pid: int, began: float | None) -> None:
        """began: by the clock of its host, from which it is told how long ago that was only once."""
        wall, mono = time.time(), time.monotonic()
        self.pid, self.began = pid, wall if began is None else began
        self.began_mono = mono - max(0.0, wall - self.began)

    def elapsed(self) -> float | None:
        return None if self.began_mono is None else max(0.0, time.monotonic() - self.began_mono)

    def execution(self) -> Execution:
        # a container's process has no start time that can be seen from here; when it was started
        # names it as well
        ticks = None if self.began is None else int(self.began * 100)
        op = op_id(self.token, "run")
        if self.exit is not None:
            return Execution(
                token=self.token,
                state="ended",
                op_id=op,
                pid=self.pid,
                start_ticks=ticks,
                started_at=self.began,
                exit=self.exit,
            )
        if self.pid is None:
            return Execution(token=self.token, state="starting", op_id=op)
        return Execution(
            token=self.token,
            state="running",
            op_id=op,
            pid=self.pid,
            start_ticks=ticks,
            started_at=self.began,
            elapsed_secs=self.elapsed(),
            exit=self.exited,
        )


class ContainerPlace:
    """A user's tasks on one host. up: its host is there, and what is there is known. kept:
    containers of settled tasks, until when.
    """

    def __init__(self, key: AgentKey, files: ContainerLedger) -> None:
        self.key, self.files = key, files
        self.up = False
        self.tasks: dict[Token, TaskState] = {}
        self.kept: dict[Token, tuple[float, str | None]] = {}
        self.opening = asyncio.Lock()
        self._snapshots = 0

    def snapshot(self) -> list[Snapshot]:
        self._snapshots += 1
        known, now = list(self.tasks.values()), time.monotonic()
        for task in known:
            task.told = now
        pages = [known[i : i + SNAPSHOT_PAGE] for i in range(0, len(known), SNAPSHOT_PAGE)] or [[]]
        return [
            Snapshot(
                number=self._snapshots,
                page=n,
                last=n == len(pages) - 1,
                executions=tuple(t.execution() for t in page),
            )
            for n, page in enumerate(pages)
        ]
