"""The messages between supervisor and agent: one frozen struct each, one union per direction, a
literal tag (`op`).

Shapes only; `supervisor/core` and `agent/session` decide how to react. The codec ignores unknown
fields. A new field has the default `msgspec.UNSET` and a line in `versions.LATER_FIELDS`, because
older versions refuse or ignore it: see docs/compatibility.md.
"""

from typing import Annotated, Any, Literal

import msgspec

from ..clusters.batch import BatchRequest, BatchState, ClusterStatus
from ..ids import (
    AgentId,
    AgentKey,
    ComputeModel,
    OpId,
    SimulationType,
    Token,
    execution_log_ids,
    short_op,
)
from ..jobs import progress_report
from ..jobs.debugging import Stop
from ..jobs.execution_state import ExecutionState
from ..jobs.exit_info import ExitInfo, Instant, Span
from ..jobs.inspection import Program
from ..jobs.notices import Notices
from ..jobs.profiling import ProfileOption
from ..jobs.registry_login import LoginRef
from ..jobs.roles import PortNumber

Text = Annotated[str, msgspec.Meta(max_length=8192)]
Secs = Annotated[float, msgspec.Meta(gt=0, le=366 * 86400)]
#: Largest number of bytes of one digest of a part of a file.
DIGEST_BYTES = 32 * 1024 * 1024
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Stream = Literal["stdout", "stderr"]
#: The part of a plain run in its agent's slots. held: it starts at once. ahead: its slot is still
#: in use; it starts when an execution with a slot has ended, or when its order is repeated as
#: "held". The end of either lets the next waiting run start.
SlotUse = Literal["held", "ahead"]
#: Commands of an app: read the result or a frame of a run, analyse it, list or export its files, or
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
#: The largest answer of a call, in bytes. Answers that exceed a frame are sent in chunks.
REPLY_LIMIT = 8 * 1024 * 1024
#: Maximum nesting of the data of a simulation or call, so that a frame with it stays within the
#: codec's limit.
DATA_DEPTH = 10
#: The largest piece of input or output of a debugger or a shell in one message, in bytes.
RELAY_BYTES = 64 * 1024
#: Random id of a session of a user with a debugger or a shell.
RelayId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]{32}\Z")]
#: Rows or columns of a terminal.
Cells = Annotated[int, msgspec.Meta(ge=1, le=4096)]
#: The largest progress report of an execution, in bytes of JSON.
REPORT_LIMIT = progress_report.LIMIT


class _Message(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="op",
    forbid_unknown_fields=True,
    rename="camel",
):
    """Encoding that all messages share; no fields."""


class AppInput(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """The input of an app: its name, the compute model, and the simulation's data as the user
    entered them.
    """

    simulation_type: SimulationType
    compute_model: ComputeModel
    data: dict[str, Any]


class ContainerSpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """The container of one task that a driver launches. image `None`: the default image of the
    pool. Sizes are MiB.

    address, subnet: the task's place in the bridge network of its gang (`10.208.0.2`,
    `10.208.0.0/22`). volumes: names of the pool's volumes, or paths in the user's own directory,
    which is always mounted. keep: keep the container if the task fails. login: names the user's
    credentials for registries. ssh_port: its sshd accepts the other tasks of the gang there.
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
    login: LoginRef | msgspec.UnsetType = msgspec.UNSET
    ssh_port: PortNumber | msgspec.UnsetType = msgspec.UNSET


class TaskSpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """The command of one task: `command`, an argument vector, never a shell line; or the job
    command of `app` if `command` is empty.

    `wrap` is put before the command (a profiler, `mpirun`).
    """

    command: tuple[str, ...]
    app: AppInput | None = None
    run_dir: str
    env: dict[str, str] = {}
    wrap: tuple[str, ...] = ()
    time_limit_secs: Secs | None = None
    grace_secs: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 3.0
    core_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    #: memory limit, enforced where the kernel supports it
    memory_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    #: ports of this task; no other process may listen on them when it starts
    ports: tuple[PortNumber, ...] = ()
    #: only for tasks that a driver launches; never sent to agents
    box: ContainerSpec | msgspec.UnsetType = msgspec.UNSET
    #: only where a batch scheduler starts it
    batch: BatchRequest | msgspec.UnsetType = msgspec.UNSET
    #: the profile to record, see `RunSpec.profile`
    profile: ProfileOption | msgspec.UnsetType = msgspec.UNSET
    #: only where a batch scheduler starts it, and only for agents that announce `debug_holds`: its
    #: allocation is held this long if it fails by itself
    debug_secs: Secs | msgspec.UnsetType = msgspec.UNSET


class Execution(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """The state of one execution, as its agent knows it.

    state: `starting` (accepted, no process yet), `running` (a process started), `ended` (nothing of
    it is left). `running` with an exit means *ending*: the exit of the command is final, and a part
    of the execution still exists (Slurm's COMPLETING, a container to be removed, other processes).
    Ending has no state of its own, because older supervisors refuse unknown states. pid and
    start_ticks (field 22 of /proc/pid/stat) identify the main process uniquely. elapsed_secs is
    counted on the monotonic clock of its machine. A refused start is `ended` with `exit.source ==
    "start"`.
    """

    token: Token
    state: ExecutionState
    op_id: OpId
    pid: int | None = None
    start_ticks: int | None = None
    started_at: Instant | None = None
    elapsed_secs: Span | None = None
    exit: ExitInfo | None = None
    #: only where a batch scheduler starts it
    batch: BatchState | msgspec.UnsetType = msgspec.UNSET
    #: only of an ended execution: the one that waited with `Run.slot` and was started instead
    successor: Token | msgspec.UnsetType = msgspec.UNSET
    #: known before its end; those in `exit` are complete
    notices: Notices | msgspec.UnsetType = msgspec.UNSET
    #: only of an ending execution: its allocation is held for debugging until then, unless the
    #: supervisor sends `release_hold`
    held_until: Instant | msgspec.UnsetType = msgspec.UNSET

    @property
    def ending(self) -> bool:
        """Return whether the exit of the command is known while a part of the execution still
        exists.
        """
        return self.state == ExecutionState.RUNNING and self.exit is not None


# ---- supervisor -> agent


class Run(_Message, frozen=True, kw_only=True, tag="run"):
    """Start this execution, unless its token was started before. Answered by
    `run_status_update` when it starts or ends.
    """

    op_id: OpId
    token: Token
    spec: TaskSpec
    #: only for agents that announce `runs_ahead`; unset: it takes no part in the agent's slots
    slot: SlotUse | msgspec.UnsetType = msgspec.UNSET


class TaskRun(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """One task of a gang, without the data that all tasks share."""

    op_id: OpId
    token: Token
    spec: TaskSpec


class Shared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Data that all tasks of an attempt share: variables (such as the addresses of all tasks) and
    the text of `job.json`.
    """

    env: dict[str, str]
    job: str


class RunTasks(_Message, frozen=True, kw_only=True, tag="run_tasks"):
    """Start these executions of one attempt, each as with `run`."""

    op_id: OpId
    shared: Shared
    tasks: tuple[TaskRun, ...]


class ProbePorts(_Message, frozen=True, kw_only=True, tag="probe_ports"):
    """Find the ports in this list that are in use. Answered by `ports_probed`."""

    op_id: OpId
    ports: tuple[PortNumber, ...]


class Cancel(_Message, frozen=True, kw_only=True, tag="cancel"):
    """Stop this execution: SIGTERM, `grace_secs`, then SIGKILL of all its processes. An unknown
    token is recorded, so that it is never started.
    """

    op_id: OpId
    token: Token
    reason: Text
    grace_secs: Annotated[float, msgspec.Meta(ge=0, le=3600)]


class ReleaseHold(_Message, frozen=True, kw_only=True, tag="release_hold"):
    """End the debug hold of this execution (`Execution.held_until`): its allocation is not needed any
    more. Repeating it has no effect. Only for agents that announce `debug_holds`.
    """

    token: Token


class RunAck(_Message, frozen=True, kw_only=True, tag="run_ack"):
    """The ends of these executions are durable; the agent may forget them."""

    tokens: tuple[Token, ...]


class RunStatus(_Message, frozen=True, kw_only=True, tag="run_status"):
    """Send a snapshot. The supervisor asks after a gap or an inconsistency."""

    op_id: OpId


class ReadLog(_Message, frozen=True, kw_only=True, tag="io"):
    """Read `limit` bytes of a stream from `offset`. If there are none yet, wait up to `wait_secs`.
    Answered by `log_chunk`.
    """

    op_id: OpId
    token: Token
    stream: Stream
    offset: Offset
    limit: Annotated[int, msgspec.Meta(ge=1, le=512 * 1024)]
    wait_secs: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0


class Call(_Message, frozen=True, kw_only=True, tag="analysis"):
    """Let an app compute something now, in a worker. Answered by `ok` or `error`, at the latest
    after `deadline_secs`.

    run_dir: directory of the run that the call reads, or None. lib_dir: the user's library of this
    app. args: the input of the method (for a frame its index and report, for a download its
    suffix).
    reply_limit: maximum size of the answer, in bytes of JSON.
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
    """Stop this call, because no client waits for it any more."""

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
    """List at most `limit` regular files below `run_dir`, ordered by path components, after the
    file `after`.

    Answered by `file_list` or `error`. An agent of an older version does not answer.
    """

    op_id: OpId
    run_dir: str
    after: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)]


class KeepFile(_Message, frozen=True, kw_only=True, tag="keep_file"):
    """Store this chunk of a file of the user's library on an agent that cannot see the original.

    Answered by `file_chunk` without data, or `error`. The file appears with its last chunk: `size`
    bytes, modified at `mtime_ns`.
    """

    op_id: OpId
    lib_dir: str
    name: Annotated[str, msgspec.Meta(max_length=128)]
    offset: Offset
    data: Annotated[bytes, msgspec.Meta(max_length=512 * 1024)]
    size: Offset
    mtime_ns: int


class DigestFile(_Message, frozen=True, kw_only=True, tag="digest_file"):
    """Compute the SHA-256 of `length` bytes of a regular file below `run_dir`; fewer at its end.

    Answered by `file_digest` or `error`. Agents with protocol 1 do not know it.
    """

    op_id: OpId
    run_dir: str
    name: Annotated[str, msgspec.Meta(max_length=1024)]
    offset: Offset
    length: Annotated[int, msgspec.Meta(ge=0, le=DIGEST_BYTES)]


class StoreFile(_Message, frozen=True, kw_only=True, tag="store_file"):
    """Append `data` at `offset` to the part of a new file below `run_dir`.

    sha256, size: of the whole file. `data` None: append nothing. finish: the part is complete;
    check its digest and give it its name, over an existing file only with `replace`. Answered by
    `file_chunk` without data, whose size is that of the part, or `error`. Agents with protocol 1 do
    not know it.
    """

    op_id: OpId
    run_dir: str
    name: Annotated[str, msgspec.Meta(max_length=1024)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: Offset
    offset: Offset = 0
    data: Annotated[bytes, msgspec.Meta(max_length=512 * 1024)] | None = None
    finish: bool = False
    replace: bool = False


class ListStops(_Message, frozen=True, kw_only=True, tag="list_stops"):
    """List the processes of these executions that wait for a debugger. Answered by `stops`. Agents
    with protocol 1 do not know it.
    """

    op_id: OpId
    tokens: Annotated[tuple[Token, ...], msgspec.Meta(max_length=10_000)]


class AttachDebugger(_Message, frozen=True, kw_only=True, tag="attach_debugger"):
    """Connect a session to the stop with this name. Answered by `debugger_output` or `error`."""

    op_id: OpId
    token: Token
    name: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,10}-[0-9]{1,10}\Z")]
    session: RelayId


class DebuggerIo(_Message, frozen=True, kw_only=True, tag="debugger_io"):
    """Send `data` to a debugger; then, if `limit` is not 0, read its output, for which to wait up to
    `wait_secs`. Answered by `debugger_output` or `error`. close: end the session.
    """

    op_id: OpId
    session: RelayId
    data: Annotated[bytes, msgspec.Meta(max_length=RELAY_BYTES)] = b""
    limit: Annotated[int, msgspec.Meta(ge=0, le=RELAY_BYTES)] = 0
    wait_secs: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0
    close: bool = False


class OpenShell(_Message, frozen=True, kw_only=True, tag="open_shell"):
    """Open a shell in the directory and environment of an execution, in a terminal of this size.
    Opening the same shell again has no effect. Answered by `shell_output` without data, or `error`.

    term: type of the user's terminal (TERM). program: runs instead of the shell, and reads no input.
    Agents with protocol 1 do not know it.
    """

    op_id: OpId
    token: Token
    shell_id: RelayId
    term: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._+-]{1,64}\Z")] = "dumb"
    rows: Cells = 24
    cols: Cells = 80
    program: Program | msgspec.UnsetType = msgspec.UNSET


class ShellIo(_Message, frozen=True, kw_only=True, tag="shell_io"):
    """Type into a shell, and read its output. Repeating it has no effect. Answered by
    `shell_output` or `error`.

    input: bytes typed, of which the first is number `input_at` since the start. offset: output
    before it has arrived and may be dropped. limit: maximum bytes of output; 0: do not wait for
    any. If there is no output yet, wait up to `wait_secs`. rows, cols: new size of the terminal.
    close: hang up, which ends the shell.
    """

    op_id: OpId
    shell_id: RelayId
    input_at: Offset = 0
    input: Annotated[bytes, msgspec.Meta(max_length=RELAY_BYTES)] = b""
    offset: Offset = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=RELAY_BYTES)] = 0
    wait_secs: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0
    rows: Cells | None = None
    cols: Cells | None = None
    close: bool = False


class Kill(_Message, frozen=True, kw_only=True, tag="kill"):
    """End the agent. Its jobs continue under the keeper, unless `stop_jobs`."""

    reason: Text
    stop_jobs: bool = False


ToAgent = (
    Run
    | RunTasks
    | ProbePorts
    | Cancel
    | ReleaseHold
    | RunAck
    | RunStatus
    | ReadLog
    | Call
    | CancelCall
    | ReadFile
    | ListFiles
    | KeepFile
    | DigestFile
    | StoreFile
    | ListStops
    | AttachDebugger
    | DebuggerIo
    | OpenShell
    | ShellIo
    | Kill
)


# ---- agent -> supervisor


class Alive(_Message, frozen=True, kw_only=True, tag="alive"):
    """The first message on every connection: the identity of the agent."""

    agent_id: AgentId
    agent_key: AgentKey
    version: Text
    host: Text
    boot_id: Text
    pid: int
    keeper_pid: int
    #: it keeps runs until a slot is free (`Run.slot`); not sent by earlier versions
    runs_ahead: bool | msgspec.UnsetType = msgspec.UNSET
    #: it holds the allocations of failed tasks (`TaskSpec.debug_secs`)
    debug_holds: bool | msgspec.UnsetType = msgspec.UNSET


class Snapshot(_Message, frozen=True, kw_only=True, tag="snapshot"):
    """All executions that the agent knows and may not forget yet, in pages numbered from 0; `last`
    marks the last page.
    """

    number: int
    page: int
    last: bool
    executions: tuple[Execution, ...]


class RunStatusUpdate(_Message, frozen=True, kw_only=True, tag="run_status_update"):
    """One execution changed. The update of an ended one is repeated until `run_ack`."""

    execution: Execution


class LogChunk(_Message, frozen=True, kw_only=True, tag="log_chunk"):
    """Answer to `io`. `data` begins at `offset`; the next read starts at `next_offset`. Missing
    bytes in between were dropped.

    end: the execution has ended and no bytes follow.
    """

    op_id: OpId
    offset: Offset
    next_offset: Offset
    data: bytes
    dropped: Offset = 0
    end: bool = False


class CallReply(_Message, frozen=True, kw_only=True, tag="ok"):
    """Answer to `analysis`: the app's return value as JSON."""

    op_id: OpId
    reply: bytes


class FileChunk(_Message, frozen=True, kw_only=True, tag="file_chunk"):
    """Answer to `read_file`. `size` and `mtime_ns` belong to the whole file, so that a reader of
    several chunks detects a change.
    """

    op_id: OpId
    data: bytes
    size: Offset
    mtime_ns: int


class FileDigest(_Message, frozen=True, kw_only=True, tag="file_digest"):
    """Answer to `digest_file`: the SHA-256 of `length` bytes. `size` and `mtime_ns` belong to the
    whole file.
    """

    op_id: OpId
    sha256: str
    length: Offset
    size: Offset
    mtime_ns: int


class Stops(_Message, frozen=True, kw_only=True, tag="stops"):
    """Answer to `list_stops`: the stops of each execution. more: there are more than fit."""

    op_id: OpId
    found: tuple[tuple[Token, Stop], ...]
    more: bool = False


class DebuggerOutput(_Message, frozen=True, kw_only=True, tag="debugger_output"):
    """Answer to `attach_debugger` and `debugger_io`. end: the session is over, for this reason."""

    op_id: OpId
    data: Annotated[bytes, msgspec.Meta(max_length=RELAY_BYTES)] = b""
    end: bool = False
    reason: Text = ""


class ShellOutput(_Message, frozen=True, kw_only=True, tag="shell_output"):
    """Answer to `open_shell` and `shell_io`. data: output from `offset` on. input_at: number of
    typed bytes that were accepted.

    end: the shell has ended and no output follows. code, signal: its exit; both None if unknown,
    for the reason in `detail`.
    """

    op_id: OpId
    offset: Offset = 0
    data: Annotated[bytes, msgspec.Meta(max_length=RELAY_BYTES)] = b""
    input_at: Offset = 0
    end: bool = False
    code: int | None = None
    signal: int | None = None
    detail: Text = ""


class ListedFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """name: path relative to the run directory. size: bytes. mtime: unix seconds."""

    name: Annotated[str, msgspec.Meta(max_length=1024)]
    size: Offset
    mtime: float


class FileList(_Message, frozen=True, kw_only=True, tag="file_list"):
    """Answer to `list_files`. more: further files follow. skipped: number of links, pipes, devices,
    and names that are too long or not UTF-8.
    """

    op_id: OpId
    files: tuple[ListedFile, ...]
    more: bool
    skipped: int = 0


class RunReport(_Message, frozen=True, kw_only=True, tag="run_report"):
    """The progress of an execution, as the job reports it (frameCount, percentComplete, ...).
    Volatile: only the newest report counts, and a lost one is not repeated.
    """

    token: Token
    report: dict[str, Any]
    at: Instant


class PortsProbed(_Message, frozen=True, kw_only=True, tag="ports_probed"):
    """Answer to `probe_ports`: the ports that are in use."""

    op_id: OpId
    busy: tuple[PortNumber, ...]


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """Resource usage of an execution, all its processes together. None: not known, which differs
    from 0.

    cpu_percent: since the previous sample; 100 is one core. memory_bytes: now, shared pages counted
    once. cpu_secs, read_bytes, written_bytes: since its start. gpu_percent: the current mean of its
    GPUs.
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


class ContainerSample(Sample, frozen=True, array_like=True):
    """A sample of a driver, which is never sent. received_bytes, sent_bytes: over networks of its
    own, since its start. A process shares the network of its machine, where nobody counts by job.
    """

    received_bytes: Offset | None = None
    sent_bytes: Offset | None = None


class Samples(_Message, frozen=True, kw_only=True, tag="samples"):
    """Resource usage of several executions. Volatile: only the newest counts, and a lost one is not
    repeated.
    """

    samples: tuple[Sample, ...]


class KeeperReport(_Message, frozen=True, kw_only=True, tag="keeper_report"):
    """Whether the agent's keeper answers. Sent when that changes, and before the snapshot of a new
    connection if the keeper does not answer.

    since: unix seconds of the first question without an answer. stopped: a signal has stopped the
    keeper (state T in /proc).
    """

    answers: bool
    since: Instant | None = None
    stopped: bool = False


class ClusterReport(_Message, frozen=True, kw_only=True, tag="cluster_report"):
    """The state of the agent's cluster. Volatile: only the newest report counts, and a lost one is
    not repeated.
    """

    news: ClusterStatus


class OpError(_Message, frozen=True, kw_only=True, tag="error"):
    """An op failed. `code` is one of protocol.errors.CODES."""

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
    | FileDigest
    | RunReport
    | PortsProbed
    | Stops
    | DebuggerOutput
    | ShellOutput
    | Samples
    | ClusterReport
    | KeeperReport
    | OpError
)

Direction = Literal["to_agent", "to_supervisor"]
UNIONS: dict[str, Any] = {"to_agent": ToAgent, "to_supervisor": ToSupervisor}

#: Maximum number of executions in one page of a snapshot.
SNAPSHOT_PAGE = 100


def op_name(message: Any) -> str:
    """Return the tag of a message: the opName in logs."""
    return str(message.__struct_config__.tag)


def message_log_ids(message: Any) -> dict[str, str]:
    """Return the ids that log lines about a message carry: its op, and its execution if any."""
    execution = getattr(message, "execution", None)
    token = getattr(message if execution is None else execution, "token", None)
    op = getattr(message, "op_id", None)
    ids = {} if token is None else execution_log_ids(token)
    return ids if op is None else ids | {"op": short_op(op)}
