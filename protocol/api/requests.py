"""The requests that front ends and the command line send to the supervisor (HTTP, JSON), and what a
run is made of.

A request names its user (`uid`); the supervisor checks it against the job's. Every request that
changes something carries a `reqId`, which makes it safe to send again for 24 hours.
"""

from typing import Annotated, Any, Literal

import msgspec

from ..clusters.batch import BatchRequest, ClusterName
from ..ids import (
    Arg,
    ComputeJid,
    ComputeModel,
    EnvName,
    Index,
    LibName,
    ReqId,
    Role,
    Sid,
    SimulationType,
    Uid,
)
from ..jobs.roles import MAX_ROLES, After, Retry, TaskRole
from ..jobs.status import Kind, Status
from ..wire.messages import JobCmd, Offset, Stream

Limit = Annotated[float, msgspec.Meta(gt=0, le=366 * 86400)]
Sentence = Annotated[str, msgspec.Meta(max_length=1000)]
Hash = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]{1,64}\Z")]
Plan = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}\Z")]
#: Empty: the one that this house uses first; what is stored names it.
AnyDriver = Annotated[str, msgspec.Meta(pattern=r"^([a-z][a-z0-9]{0,15})?\Z")]
KnownSerial = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

MAX_BULK = 10_000


class _Request(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """What all requests share: nothing but their form."""


class RunSpec(_Request, frozen=True, kw_only=True):
    """One run, as it is asked for and as it is stored in the log.

    Either `command`, or `roles` for a run of many tasks, or, for an app's run, `data`: the
    simulation as its user has it (`models`, `report`, ...). hash: computeJobHash; where the caller
    has none, the supervisor digests type, model, command, wrap, env and data. Times are seconds.
    `time_limit_secs` counts from the start of the process, `queue_limit_secs` from the submission.
    """

    uid: Uid
    simulation_type: SimulationType = "command"
    simulation_id: Sid
    compute_model: ComputeModel = "command"
    job_run_mode: Kind = "sequential"
    driver: AnyDriver = ""
    command: Annotated[tuple[Arg, ...], msgspec.Meta(max_length=10_000)] = ()
    data: dict[str, Any] | None = None
    env: dict[EnvName, Arg] = {}
    wrap: tuple[Arg, ...] = ()
    compute_job_hash: Hash | None = None
    time_limit_secs: Limit | None = None
    queue_limit_secs: Limit | None = None
    grace_secs: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 3.0
    core_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 0
    sim_name: Sentence | None = None
    roles: Annotated[tuple[TaskRole, ...], msgspec.Meta(max_length=MAX_ROLES)] = ()
    #: None: nothing is tried again
    retry: Retry | None = None
    #: a task that fails by itself is kept so long, with all that it holds, for somebody to look at
    debug_secs: Annotated[float, msgspec.Meta(gt=0, le=30 * 86400)] | None = None
    after: Annotated[tuple[After, ...], msgspec.Meta(max_length=1_000)] = ()
    #: of the runs of this user and simulation, so many at once
    at_once: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    #: what the user's account was at the submission, in the words of the front end; some plans keep
    #: their runs for ever
    active_plan: Plan | None = None
    #: with the driver sbatch: what is asked of the cluster
    batch: BatchRequest | msgspec.UnsetType = msgspec.UNSET


class RunSimulation(_Request, frozen=True, kw_only=True):
    """Start a run, join the one that is live, or get the finished one with the same hash (see the
    core's `submission`).
    """

    req_id: ReqId
    run: RunSpec
    force_run: bool = False
    compute_job_serial: KnownSerial = 0


class RunMany(_Request, frozen=True, kw_only=True):
    """Many runs in one request, answered when all are durable; the n-th has the reqId
    `<reqId>.<n>`.
    """

    req_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_:-]{8,56}\Z")]
    runs: Annotated[tuple[RunSpec, ...], msgspec.Meta(min_length=1, max_length=MAX_BULK)]


class RunStatusRequest(_Request, frozen=True, kw_only=True):
    """Status of the run with this hash and serial (where given); a mismatch is answered as
    `missing` with the reason.

    wait_secs: answer as soon as the run is over and nothing of it is left, at the latest after so
    many seconds.
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_hash: Hash | None = None
    compute_job_serial: KnownSerial = 0
    wait_secs: Annotated[float, msgspec.Meta(ge=0, le=30)] = 0.0


class RunCancel(_Request, frozen=True, kw_only=True):
    """Cancel exactly the run with this serial (0: whichever is live now). Repeating it is harmless."""

    req_id: ReqId
    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    reason: Sentence = ""


class RunRelease(_Request, frozen=True, kw_only=True):
    """Give back tasks that were kept for debugging: of this role and index, or of the whole run.
    Repeating it is harmless.
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    role: Role | None = None
    index: Index | None = None


class JobList(_Request, frozen=True, kw_only=True):
    """Jobs of one user, or of all when `uid` is absent; newest change first. `before` is a position
    to page on from.

    commands: rows also say what the run does (`command`, shortened) and its name for people.
    """

    uid: Uid | None = None
    status: Status | None = None
    active: bool | None = None
    before: KnownSerial | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    # unset where it is not asked for, so that a supervisor of the version before understands the
    # request
    commands: bool | msgspec.UnsetType = msgspec.UNSET


class JobLog(_Request, frozen=True, kw_only=True):
    """Bytes of a stream of one attempt (0: the latest) of the current run; refused where that has
    another serial (0: any).

    role, index: of this task; without them, of the task whose exit stands for the attempt, or else
    its first.
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    attempt: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    role: Role | None = None
    index: Index = 0
    stream: Stream = "stdout"
    offset: Offset = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=512 * 1024)] = 64 * 1024
    #: negative offset from the end, as `tail -c` has it; wins over `offset`
    tail: Annotated[int, msgspec.Meta(ge=0, le=512 * 1024)] = 0
    wait_secs: Annotated[float, msgspec.Meta(ge=0, le=30)] = 0.0


class JobTasks(_Request, frozen=True, kw_only=True):
    """The attempts of the current run, and the tasks of one of them (0: the latest)."""

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    attempt: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0


class JobStory(_Request, frozen=True, kw_only=True):
    """The events of one job, oldest first."""

    uid: Uid
    compute_jid: ComputeJid


class CallRequest(_Request, frozen=True, kw_only=True):
    """Have an app compute something now (see messages.Call). Nothing of it is kept; the same
    request may be sent again.

    compute_jid: the job whose run is read, and its serial where it matters (a frame of an older run
    is refused). Answered with what the app returned, as it is; a failure of the app is `appFailed`
    and never touches the run.
    """

    uid: Uid
    job_cmd: JobCmd
    simulation_type: SimulationType
    compute_model: ComputeModel = "none"
    compute_jid: ComputeJid | None = None
    compute_job_serial: KnownSerial = 0
    method: Annotated[str, msgspec.Meta(max_length=64)] = ""
    driver: AnyDriver = ""
    data: dict[str, Any] = {}
    args: dict[str, Any] = {}
    deadline_secs: Annotated[float, msgspec.Meta(gt=0, le=600)] | None = None


class BeginSession(_Request, frozen=True, kw_only=True):
    """This user is about to work: have an agent ready. Answered at once."""

    uid: Uid
    driver: AnyDriver = ""


class RunFile(_Request, frozen=True, kw_only=True):
    """A file below the run directory of the current run, `offset` and `length` as a range; answered
    with its bytes, streamed.
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    name: Annotated[str, msgspec.Meta(max_length=1024)]
    offset: Offset = 0
    length: Offset | None = None


class RunFiles(_Request, frozen=True, kw_only=True):
    """The regular files below the run directory of the current run: a page of `limit`, after the
    file `after` ("": the first).
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    after: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000


class LibFile(_Request, frozen=True, kw_only=True):
    """A file of the user's library of an app, `offset` and `length` as a range; answered with its
    bytes, streamed.
    """

    uid: Uid
    simulation_type: SimulationType
    name: LibName
    offset: Offset = 0
    length: Offset | None = None


class GlobalResources(_Request, frozen=True, kw_only=True):
    """Ports leased to a simulation: the same ones each time it asks, until `release` or until the
    lease is over.
    """

    uid: Uid
    simulation_type: SimulationType
    simulation_id: Sid
    ports: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1
    release: bool = False


class Trace(_Request, frozen=True, kw_only=True):
    """Everything known about an id or a prefix of one (computeJid, opId, reqId, Slurm's number,
    container, agent key or agentId).

    logs: also what the log files say.
    """

    id: Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9_.:@+-]{4,128}|[0-9]{1,3})\Z")]
    uid: Uid | None = None
    logs: bool = False


class RunPlan(_Request, frozen=True, kw_only=True):
    """What would this run be? Nothing is stored; answered with its tasks, where they would be,
    their commands and environments.
    """

    run: RunSpec


#: What may be asked for of a group's runs. failed: over, and not completed.
GroupStatus = Literal[
    "pending", "running", "completed", "canceled", "error", "job_run_purged", "failed"
]
#: The text of an array's indices, as `arrays.parse_indices` reads it.
IndexText = Annotated[str, msgspec.Meta(min_length=1, max_length=80_000)]


class RunArray(_Request, frozen=True, kw_only=True):
    """One run for each index (see `arrays`), answered when all are durable; that of index n has the
    reqId `<reqId>.<n>`.
    """

    req_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_:-]{8,56}\Z")]
    run: RunSpec
    indices: IndexText


class JobGroup(_Request, frozen=True, kw_only=True):
    """How the runs of one simulation stand: counted, and one row each of a page of them (see
    `arrays` for their order).

    after: the computeJid of the last row of the page before. limit: rows of a page; 0 for the
    counts alone, which wait for nothing to be read. wait_secs: answer as soon as nothing is left of
    any of them, at the latest after so many seconds.
    """

    uid: Uid
    simulation_id: Sid
    status: GroupStatus | None = None
    after: ComputeJid | None = None
    limit: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 100
    wait_secs: Annotated[float, msgspec.Meta(ge=0, le=30)] = 0.0


class GroupCancel(_Request, frozen=True, kw_only=True):
    """Cancel the runs of one simulation, or some of them. Repeating it is harmless: it never hits a
    run that came later.

    indices, models: only these; neither: all. status: only those that are as yet so.
    """

    req_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:-]{8,40}\Z")]
    uid: Uid
    simulation_id: Sid
    indices: IndexText | None = None
    models: Annotated[tuple[ComputeModel, ...], msgspec.Meta(max_length=MAX_BULK)] | None = None
    status: Literal["pending", "running"] | None = None
    reason: Sentence = ""


class RunDescription(_Request, frozen=True, kw_only=True):
    """All runs of a job description (see protocol.description), submitted in dependency order, or
    none where anything is wrong with it.

    The same request may be sent again: its runs are those of the first time.
    """

    req_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_:-]{8,56}\Z")]
    uid: Uid
    description: Any


class JobMetrics(_Request, frozen=True, kw_only=True):
    """What the tasks of the current run take (refused where it has another serial; 0: any).

    series: with what they took over time, at least those of this role and index; the fewer, the
    finer.
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    series: bool = False
    role: Role | None = None
    index: Index | None = None


#: What a person types to prove who he is, and a private key with its certificate: never logged,
#: never kept.
_Secret = Annotated[str, msgspec.Meta(max_length=65_536)]


class SbatchLogin(_Request, frozen=True, kw_only=True):
    """Sign this user in to a cluster (None: the first one) as the unix user `username`, with what
    the site asks for.

    otp: the one-time code; where a site asks for both in one prompt, they are put together.
    Answered when the user is signed in, or why not (`signInRefused`, `signInUnreachable`). What is
    here lives in memory only until then.
    """

    uid: Uid
    cluster: ClusterName | None = None
    username: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.@-]{0,127}\Z")]
    password: _Secret | None = None
    otp: _Secret | None = None
    private_key: _Secret | None = None
    passphrase: _Secret | None = None
    certificate: _Secret | None = None

    def __repr__(self) -> str:
        return f"SbatchLogin({self.uid})"

    #: what logs show of it
    pkdebug_str = __repr__


class SbatchLoginStatus(_Request, frozen=True, kw_only=True):
    """Is this user's agent on a cluster (None: the first one) there or on its way, or does the user
    have to sign in?
    """

    uid: Uid
    cluster: ClusterName | None = None


class SbatchLogout(_Request, frozen=True, kw_only=True):
    """Sign this user out of a cluster (None: the first one): the agent there ends, and the
    connection with it. Slurm's jobs go on.
    """

    uid: Uid
    cluster: ClusterName | None = None


class ClusterList(_Request, frozen=True, kw_only=True):
    """The clusters of this house, with their defaults and limits, and what is known of their
    partitions.
    """

    uid: Uid


class AgentList(_Request, frozen=True, kw_only=True):
    """The agents of this user; without one, everybody's."""

    uid: Uid | None = None


class AgentStop(_Request, frozen=True, kw_only=True):
    """End an agent and its keeper. agent: as in AgentLogs; uid: only an agent of this user is
    meant.
    """

    agent: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    uid: Uid | None = None


class AgentLogs(_Request, frozen=True, kw_only=True):
    """What an agent, or its keeper, wrote about itself. agent: its key, at least four characters of
    its id, or a job of it.

    uid: only an agent of this user is meant. previous: of the life before its last start, all at
    once.
    """

    agent: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    uid: Uid | None = None
    part: Literal["agent", "keeper"] = "agent"
    previous: bool = False
    offset: Offset = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=512 * 1024)] = 256 * 1024
    #: as with JobLog
    tail: Annotated[int, msgspec.Meta(ge=0, le=512 * 1024)] = 0
