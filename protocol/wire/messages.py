"""The messages between supervisor and agent: one frozen struct each, one union per direction, a
literal tag (`op`).

Shapes only; what a message means is decided in `supervisor/core` and `agent/session`. A field that
is not in its struct is refused, so a typing mistake on either end is found at once; a new optional
field needs a new protocol version.
"""

from typing import Annotated, Any, Literal

import msgspec

from ..clusters.batch import BatchRequest, BatchState, ClusterStatus
from ..ids import AgentId, AgentKey, ComputeModel, OpId, SimulationType, Token
from ..jobs import progress_report
from ..jobs.exit_info import ExitInfo, Instant, Span
from ..jobs.roles import PortNumber

PROTOCOL_VERSION = 1

Text = Annotated[str, msgspec.Meta(max_length=8192)]
Secs = Annotated[float, msgspec.Meta(gt=0, le=366 * 86400)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Stream = Literal["stdout", "stderr"]
#: What an app can be asked to do: read a run's result or a frame, analyse it, make a file of it, or
#: compute without a run.
JobCmd = Literal[
    "sequential_result",
    "get_simulation_frame",
    "analysis_job",
    "list_run_files",
    "download_run_file",
    "stateful_compute",
    "stateless_compute",
]
#: The largest answer of a call, bytes; what does not fit into a frame goes in pieces.
REPLY_LIMIT = 8 * 1024 * 1024
#: Data of a simulation, of a call: how deep they may be nested, so that a frame with them is within
#: the codec's limit.
DATA_DEPTH = 10
#: The largest report of an execution, bytes of JSON.
REPORT_LIMIT = progress_report.LIMIT


class _Message(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="op",
    forbid_unknown_fields=True,
    rename="camel",
):
    """What all messages share: nothing but their form."""


class AppInput(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """What an app computes: its name, the compute model, and the simulation's data as the user gave
    them.
    """

    simulation_type: SimulationType
    compute_model: ComputeModel
    data: dict[str, Any]


class ContainerSpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """The container of one task that its driver launches. image `None`: the pool's own. Sizes are
    MiB.

    address, subnet: where it is in the bridge of its gang (`10.208.0.2`, `10.208.0.0/22`). volumes:
    names of the pool's, or paths of the user's own directory, which is there anyway. keep: it stays
    when it failed.
    """

    image: str | None = None
    cpu: int = 1
    memory_mb: int = 100
    shm_mb: int = 64
    gpus: tuple[str, ...] = ()
    address: str | None = None
    subnet: str | None = None
    volumes: tuple[str, ...] = ()
    keep: bool = False


class TaskSpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """What to execute: `command`, an argument vector, never a shell line; or, where it is empty,
    the job command of `app`.

    `wrap` goes in front of it (a profiler, `mpirun`).
    """

    command: tuple[str, ...]
    app: AppInput | None = None
    run_dir: str
    env: dict[str, str] = {}
    wrap: tuple[str, ...] = ()
    time_limit_secs: Secs | None = None
    grace_secs: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 3.0
    core_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    #: no more than this, where the kernel can be told so
    memory_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    #: of this task alone: nobody else may listen on them when it starts
    ports: tuple[PortNumber, ...] = ()
    #: only where a driver launches it: no agent is ever told of one
    box: ContainerSpec | msgspec.UnsetType = msgspec.UNSET
    #: only where a batch scheduler starts it
    batch: BatchRequest | msgspec.UnsetType = msgspec.UNSET


class Execution(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """What an agent knows of one execution.

    state: `starting` (accepted, no process yet), `running` (a process started), `ended` (nothing of
    it is left). `running` with an exit is `ending`: the command's own exit is known for good, and
    something of the execution is still there (Slurm's COMPLETING, a container that is not removed
    yet, other processes). It is no state of its own, because older supervisors refuse states that
    they do not know. pid and start_ticks (field 22 of /proc/pid/stat) name the main process for
    good. elapsed_secs is counted on the monotonic clock of the machine it runs on. A refused start
    is `ended` with `exit.source == "start"`.
    """

    token: Token
    state: Literal["starting", "running", "ended"]
    op_id: OpId
    pid: int | None = None
    start_ticks: int | None = None
    started_at: Instant | None = None
    elapsed_secs: Span | None = None
    exit: ExitInfo | None = None
    #: only where a batch scheduler starts it
    batch: BatchState | msgspec.UnsetType = msgspec.UNSET

    @property
    def ending(self) -> bool:
        """Is the command's own exit known, while something of the execution is still there?"""
        return self.state == "running" and self.exit is not None


# ---- supervisor -> agent


class Run(_Message, frozen=True, kw_only=True, tag="run"):
    """Start this execution, unless its token was started before. Answered by `run_status_update`."""

    op_id: OpId
    token: Token
    spec: TaskSpec


class TaskRun(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """One task of a gang. What it shares with the others comes beside it."""

    op_id: OpId
    token: Token
    spec: TaskSpec


class Shared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What all tasks of an attempt have: variables (where each of them is, for instance), and the
    text of `job.json`.
    """

    env: dict[str, str]
    job: str


class RunTasks(_Message, frozen=True, kw_only=True, tag="run_tasks"):
    """Start these executions of one attempt, each as `run` does."""

    op_id: OpId
    shared: Shared
    tasks: tuple[TaskRun, ...]


class ProbePorts(_Message, frozen=True, kw_only=True, tag="probe_ports"):
    """Which of these ports can nobody listen on now? Answered by `ports_probed`."""

    op_id: OpId
    ports: tuple[PortNumber, ...]


class Cancel(_Message, frozen=True, kw_only=True, tag="cancel"):
    """Stop this execution: SIGTERM, `grace_secs`, SIGKILL of everything. An unknown token is
    remembered as never to be started.
    """

    op_id: OpId
    token: Token
    reason: Text
    grace_secs: Annotated[float, msgspec.Meta(ge=0, le=3600)]


class RunAck(_Message, frozen=True, kw_only=True, tag="run_ack"):
    """The end of these executions is durable; the agent may forget them."""

    tokens: tuple[Token, ...]


class RunStatus(_Message, frozen=True, kw_only=True, tag="run_status"):
    """Send a snapshot (the supervisor saw a gap, or has doubts)."""

    op_id: OpId


class ReadLog(_Message, frozen=True, kw_only=True, tag="io"):
    """Read `limit` bytes of a stream from `offset`; where nothing is there yet, wait up to
    `wait_secs`. Answered by `log_chunk`.
    """

    op_id: OpId
    token: Token
    stream: Stream
    offset: Offset
    limit: Annotated[int, msgspec.Meta(ge=1, le=512 * 1024)]
    wait_secs: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0


class Call(_Message, frozen=True, kw_only=True, tag="analysis"):
    """Have an app compute something now, in a worker. Answered by `ok` or `error`, at the latest
    after `deadline_secs`.

    run_dir: of the run that is read; None for calls that need none. lib_dir: the user's library of
    this app. `args` is the method's input (for a frame its index and report, for a download its
    suffix). reply_limit: bytes of the answer, as JSON.
    """

    op_id: OpId
    job_cmd: JobCmd
    simulation_type: SimulationType
    compute_model: ComputeModel
    method: Annotated[str, msgspec.Meta(max_length=64)] = ""
    run_dir: str | None = None
    lib_dir: str
    data: dict[str, Any] = {}
    args: dict[str, Any] = {}
    deadline_secs: Secs
    reply_limit: Annotated[int, msgspec.Meta(ge=1, le=REPLY_LIMIT)]


class CancelCall(_Message, frozen=True, kw_only=True, tag="cancel_call"):
    """Nobody waits for this call any more: stop it."""

    op_id: OpId


class ReadFile(_Message, frozen=True, kw_only=True, tag="read_file"):
    """Read `limit` bytes of a regular file below `run_dir`, never through a symbolic link. Answered
    by `file_chunk` or `error`.
    """

    op_id: OpId
    run_dir: str
    name: Annotated[str, msgspec.Meta(max_length=1024)]
    offset: Offset
    limit: Annotated[int, msgspec.Meta(ge=0, le=512 * 1024)]


class ListFiles(_Message, frozen=True, kw_only=True, tag="list_files"):
    """List at most `limit` regular files below `run_dir`, ordered by their path components,
    beginning after the file `after`.

    Answered by `file_list` or `error`. An agent of an older version does not answer.
    """

    op_id: OpId
    run_dir: str
    after: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)]


class KeepFile(_Message, frozen=True, kw_only=True, tag="keep_file"):
    """Keep this piece of a file of the user's library, whose original the agent cannot see.

    Answered by `file_chunk` without data, or `error`.
    With its last piece it is there, `size` bytes and changed at `mtime_ns`.
    """

    op_id: OpId
    lib_dir: str
    name: Annotated[str, msgspec.Meta(max_length=128)]
    offset: Offset
    data: Annotated[bytes, msgspec.Meta(max_length=512 * 1024)]
    size: Offset
    mtime_ns: int


class Kill(_Message, frozen=True, kw_only=True, tag="kill"):
    """End the agent. Its jobs run on (they are the keeper's), unless `stop_jobs`."""

    reason: Text
    stop_jobs: bool = False


ToAgent = (
    Run
    | RunTasks
    | ProbePorts
    | Cancel
    | RunAck
    | RunStatus
    | ReadLog
    | Call
    | CancelCall
    | ReadFile
    | ListFiles
    | KeepFile
    | Kill
)


# ---- agent -> supervisor


class Alive(_Message, frozen=True, kw_only=True, tag="alive"):
    """First message on every connection."""

    agent_id: AgentId
    agent_key: AgentKey
    version: Text
    host: Text
    boot_id: Text
    pid: int
    keeper_pid: int


class Snapshot(_Message, frozen=True, kw_only=True, tag="snapshot"):
    """Every execution the agent knows and may not forget yet, in pages numbered from 0; `last`
    closes it.
    """

    number: int
    page: int
    last: bool
    executions: tuple[Execution, ...]


class RunStatusUpdate(_Message, frozen=True, kw_only=True, tag="run_status_update"):
    """One execution changed. An ended one is repeated until `run_ack`."""

    execution: Execution


class LogChunk(_Message, frozen=True, kw_only=True, tag="log_chunk"):
    """Answer to `io`. `data` begins at `offset`; `next_offset` is where to go on; bytes in between
    that are not there were dropped.

    end: the execution is over and nothing follows.
    """

    op_id: OpId
    offset: Offset
    next_offset: Offset
    data: bytes
    dropped: Offset = 0
    end: bool = False


class CallReply(_Message, frozen=True, kw_only=True, tag="ok"):
    """Answer to `analysis`: what the app returned, as JSON."""

    op_id: OpId
    reply: bytes


class FileChunk(_Message, frozen=True, kw_only=True, tag="file_chunk"):
    """Answer to `read_file`. `size` and `mtime_ns` are the whole file's: who reads on sees by them
    whether it has changed.
    """

    op_id: OpId
    data: bytes
    size: Offset
    mtime_ns: int


class ListedFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """name: relative to the run directory. size: bytes. mtime: unix seconds."""

    name: Annotated[str, msgspec.Meta(max_length=1024)]
    size: Offset
    mtime: float


class FileList(_Message, frozen=True, kw_only=True, tag="file_list"):
    """Answer to `list_files`. more: files follow the last one. skipped: links, pipes, devices,
    names that are not UTF-8 or too long.
    """

    op_id: OpId
    files: tuple[ListedFile, ...]
    more: bool
    skipped: int = 0


class RunReport(_Message, frozen=True, kw_only=True, tag="run_report"):
    """How far an execution has come, in its own words (frameCount, percentComplete, ...). Volatile:
    the newest counts, none is owed.
    """

    token: Token
    report: dict[str, Any]
    at: Instant


class PortsProbed(_Message, frozen=True, kw_only=True, tag="ports_probed"):
    """Answer to `probe_ports`."""

    op_id: OpId
    busy: tuple[PortNumber, ...]


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """What an execution took, all its processes together. None: not known, which is not 0.

    cpu_percent: since the sample before, 100 is one core. memory_bytes: now, shared pages counted
    once. cpu_secs, read_bytes, written_bytes: since its start. gpu_percent: the mean of its cards
    now.
    """

    token: Token
    at: Instant
    cpu_percent: Span | None
    cpu_secs: Span | None
    memory_bytes: Offset | None
    read_bytes: Offset | None
    written_bytes: Offset | None
    processes: Offset | None
    gpu_percent: Span | None
    gpu_memory_bytes: Offset | None


class Samples(_Message, frozen=True, kw_only=True, tag="samples"):
    """Volatile: the newest counts, none is owed."""

    samples: tuple[Sample, ...]


class KeeperReport(_Message, frozen=True, kw_only=True, tag="keeper_report"):
    """Whether the agent's keeper answers. Sent when that changes, and before the snapshot of a
    connection while it does not.

    since: unix seconds of the first question without an answer. stopped: a signal has stopped the
    keeper (state T in /proc).
    """

    answers: bool
    since: Instant | None = None
    stopped: bool = False


class ClusterReport(_Message, frozen=True, kw_only=True, tag="cluster_report"):
    """What there is on the agent's cluster. Volatile: the newest counts, none is owed."""

    news: ClusterStatus


class OpError(_Message, frozen=True, kw_only=True, tag="error"):
    """An op failed; `code` is one of protocol.errors.CODES."""

    op_id: OpId
    code: Text
    error: Text


ToSupervisor = (
    Alive
    | Snapshot
    | RunStatusUpdate
    | LogChunk
    | CallReply
    | FileChunk
    | FileList
    | RunReport
    | PortsProbed
    | Samples
    | ClusterReport
    | KeeperReport
    | OpError
)

Direction = Literal["to_agent", "to_supervisor"]
UNIONS: dict[str, Any] = {"to_agent": ToAgent, "to_supervisor": ToSupervisor}

#: What is bigger goes in more than one page.
SNAPSHOT_PAGE = 100


def op_name(message: Any) -> str:
    """The tag of a message: the opName that logs show."""
    return str(message.__struct_config__.tag)
