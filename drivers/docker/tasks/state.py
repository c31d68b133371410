"""State of tasks in containers, by place, and its conversion to wire messages. Data only; no
I/O.
"""

import asyncio
import time

from ....protocol.ids import AgentKey, Token, agent_log_ids, execution_log_ids, op_id
from ....protocol.jobs.execution_state import ExecutionState, Trigger, next_state
from ....protocol.jobs.exit_info import ExitInfo
from ....protocol.wire.messages import SNAPSHOT_PAGE, ContainerSpec, Execution, Snapshot, TaskSpec
from ....runtime.log.logger import Log
from .ledger import ContainerLedger, Stop, TaskRequest


class TaskState:
    """One task, from its launch or recovery until its end is acknowledged.

    request: its ledger record; None: the token is not used yet, or an earlier launch used it.
    container: its id, once created. reported_mono: time of the last report (monotonic). folder,
    token, dropped, sizes: read by OutputCap.
    """

    def __init__(self, place: "ContainerPlace", token: Token, spec: TaskSpec | None = None) -> None:
        self.place, self.token, self.spec = place, token, spec
        self.log = place.log.bound(**execution_log_ids(token))
        self.folder = place.files.evidence(token)
        self.state = ExecutionState.STARTING
        self.request: TaskRequest | None = None
        self.container: str | None = None
        self.pid: int | None = None
        self.started_at: float | None = None
        self.started_mono: float | None = None
        self.stop: Stop | None = None
        #: SIGKILL from this time on (monotonic)
        self.kill_at: float | None = None
        #: its container was started, or may have been
        self.start_requested = False
        #: its container need not be held for debugging
        self.released = False
        self.oom_kills = 0
        #: highest memory sample, in bytes
        self.memory_peak: int | None = None
        #: exit of the command while its container still exists; and since when it is known
        #: (monotonic)
        self.command_exit: ExitInfo | None = None
        self.command_exit_mono: float | None = None
        self.exit: ExitInfo | None = None
        self.reported_mono = float("-inf")
        self.dropped: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        #: locks for the use of its token and for inspections; events for changes and for its end
        self.token_lock, self.observe_lock = asyncio.Lock(), asyncio.Lock()
        self.changed, self.ended = asyncio.Event(), asyncio.Event()

    @property
    def box(self) -> ContainerSpec:
        box = self.spec.box if self.spec is not None else None
        return box if isinstance(box, ContainerSpec) else ContainerSpec()

    @property
    def grace(self) -> float:
        return self.request.grace if self.request is not None else 0.0

    def mark_running(self, pid: int, started_at: float | None) -> None:
        """Record that the task runs. started_at: unix seconds of its host's clock, converted here
        to this process's clock.
        """
        self.state = next_state(self.state, Trigger.STARTED)
        wall, mono = time.time(), time.monotonic()
        self.pid, self.started_at = pid, wall if started_at is None else started_at
        self.started_mono = mono - max(0.0, wall - self.started_at)

    def finish(self, exit_: ExitInfo) -> None:
        """Record the end. Raises IllegalTransition if it has ended before."""
        self.state = next_state(self.state, Trigger.ENDED)
        self.exit = exit_
        self.ended.set()

    def elapsed_secs(self) -> float | None:
        return None if self.started_mono is None else max(0.0, time.monotonic() - self.started_mono)

    def execution(self) -> Execution:
        # The start time of the process is not visible here; the start of the container identifies
        # it as well.
        ticks = None if self.started_at is None else int(self.started_at * 100)
        op = op_id(self.token, "run")
        if self.exit is not None:
            return Execution(
                token=self.token,
                state=self.state,
                op_id=op,
                pid=self.pid,
                start_ticks=ticks,
                started_at=self.started_at,
                exit=self.exit,
            )
        if self.pid is None:
            return Execution(token=self.token, state=self.state, op_id=op)
        return Execution(
            token=self.token,
            state=self.state,
            op_id=op,
            pid=self.pid,
            start_ticks=ticks,
            started_at=self.started_at,
            elapsed_secs=self.elapsed_secs(),
            exit=self.command_exit,
        )


class ContainerPlace:
    """The tasks of a user on one host. up: the host is up and its tasks are known. kept: containers
    of acknowledged tasks, each with the time of its removal.
    """

    def __init__(self, key: AgentKey, files: ContainerLedger, log: Log) -> None:
        self.key, self.files = key, files
        self.log = log.bound(**agent_log_ids(key))
        self.up = False
        self.tasks: dict[Token, TaskState] = {}
        self.kept: dict[Token, tuple[float, str | None]] = {}
        self.opening = asyncio.Lock()
        self._snapshots = 0

    def snapshot(self) -> list[Snapshot]:
        self._snapshots += 1
        known, now = list(self.tasks.values()), time.monotonic()
        for task in known:
            task.reported_mono = now
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
