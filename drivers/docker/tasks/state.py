"""State of tasks in containers, by place, and its conversion to wire messages. Data only; no
I/O.
"""

import asyncio
import time

import msgspec

from ....protocol.execution.lifecycle import Lifecycle, Policy
from ....protocol.execution.table import ExecutionTable, never_started, pages
from ....protocol.ids import AgentKey, Token, agent_log_ids, execution_log_ids, op_id
from ....protocol.jobs.execution_state import ExecutionState
from ....protocol.jobs.exit_info import ExitInfo
from ....protocol.jobs.notices import Notice, Notices
from ....protocol.wire.messages import SNAPSHOT_PAGE, ContainerSpec, Execution, Snapshot, TaskSpec
from ....runtime.log.logger import Log
from .ledger import ContainerLedger, Stop, TaskRequest

#: A container normally ends within `ending` seconds after its command.
POLICY = Policy(
    leftover=5.0,
    ending=0.4,
    repeat={ExecutionState.STARTING: 10.0, ExecutionState.ENDED: 5.0},
)


class TaskState:
    """One task, from its launch or recovery until its end is acknowledged.

    request: its ledger record; None: the token is not used yet, or an earlier launch used it.
    container: its id, once created. life: its phase, stop and exit. folder, token, dropped, sizes:
    read by OutputCap.
    """

    def __init__(self, place: "ContainerPlace", token: Token, spec: TaskSpec | None = None) -> None:
        self.place, self.token, self.spec = place, token, spec
        self.log = place.log.bound(**execution_log_ids(token))
        self.folder = place.files.evidence(token)
        self.life = Lifecycle(POLICY)
        self.request: TaskRequest | None = None
        self.container: str | None = None
        self.pid: int | None = None
        #: its container was started, or may have been
        self.start_requested = False
        #: its container need not be held for debugging
        self.released = False
        self.oom_kills = 0
        #: notices of its own processes, and of the pull of its image
        self.notices: Notices = ()
        self.pull_notices: Notices = ()
        #: highest memory sample, in bytes
        self.memory_peak: int | None = None
        self.dropped: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        #: whether a loop performs its steps (see `stop`)
        self.attended = False
        #: locks for the steps of its start and for inspections; events for changes and for its end
        self.start_lock, self.observe_lock = asyncio.Lock(), asyncio.Lock()
        self.changed, self.ended = asyncio.Event(), asyncio.Event()

    @property
    def box(self) -> ContainerSpec:
        box = self.spec.box if self.spec is not None else None
        return box if isinstance(box, ContainerSpec) else ContainerSpec()

    @property
    def running(self) -> bool:
        return self.life.state is ExecutionState.RUNNING

    def note_pull(self, code: str, image: str) -> None:
        """Add a notice about the pull of its image. code: of protocol.jobs.notices."""
        self.pull_notices = (*self.pull_notices, Notice(code, image[:300]))

    def claim(self, request: TaskRequest) -> None:
        """Record that its token was used for it."""
        self.request, self.life.limit = request, request.limit
        if not self.life.stopping:
            self.life.grace = request.grace
        self.life.claimed()

    def stop_record(self, *, signaled: bool) -> Stop:
        reason = self.life.requested_reason
        assert reason is not None
        return Stop(reason=reason, grace=self.life.grace, signaled=signaled)

    def never_started(self, detail: str, fault: str | None = None) -> ExitInfo:
        """Return its exit if it never starts. fault: a key of exit_info.FAULTS."""
        reason = self.life.requested_reason
        return msgspec.convert(never_started(detail, time.time(), reason, fault), ExitInfo)

    def mark_running(self, pid: int, started_at: float | None) -> None:
        """Record that the task runs. started_at: unix seconds of its host's clock, converted here
        to this process's clock.
        """
        wall, mono = time.time(), time.monotonic()
        began = wall if started_at is None else started_at
        self.life.started(began, mono - max(0.0, wall - began))
        self.pid = pid
        self.changed.set()

    def finish(self, exit_: ExitInfo) -> None:
        """Record the end. Raises IllegalTransition if it has ended before."""
        self.life.finish(exit_)
        self.changed.set()
        self.ended.set()

    def execution(self) -> Execution:
        life = self.life
        return Execution(
            token=self.token,
            state=life.state,
            op_id=op_id(self.token, "run"),
            pid=self.pid,
            # The start time of the process is not visible here; the start of the container
            # identifies it as well.
            start_ticks=None if life.started_at is None else int(life.started_at * 100),
            started_at=life.started_at,
            elapsed_secs=None if life.ended else life.running_secs(time.monotonic()),
            exit=life.exit if life.ended else life.own_exit,
            notices=(*self.pull_notices, *self.notices) or msgspec.UNSET,
        )


class ContainerPlace:
    """The tasks of a user on one host. up: the host is up and its tasks are known. kept: containers
    of acknowledged tasks, each with the time of its removal.
    """

    def __init__(self, key: AgentKey, files: ContainerLedger, log: Log) -> None:
        self.key, self.files = key, files
        self.log = log.bound(**agent_log_ids(key))
        self.up = False
        self.table = ExecutionTable()
        self.tasks: dict[Token, TaskState] = self.table.known
        self.kept: dict[Token, tuple[float, str | None]] = {}
        self.opening = asyncio.Lock()
        self._snapshots = 0

    def snapshot(self) -> list[Snapshot]:
        self._snapshots += 1
        known, now = list(self.tasks.values()), time.monotonic()
        for task in known:
            task.life.reported(now)
        numbered = list(enumerate(pages(known, SNAPSHOT_PAGE)))
        return [
            Snapshot(
                number=self._snapshots,
                page=n,
                last=n == len(numbered) - 1,
                executions=tuple(t.execution() for t in page),
            )
            for n, page in numbered
        ]
