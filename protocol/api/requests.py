"""The requests that front ends and the command line send to the supervisor (HTTP, JSON), and the
specification of a run.

A request names its user (`uid`); the supervisor checks it against the sender's API token and against
the owner of the job. The holder of an API token may leave it out, except in `runs`. Every request
that changes a run carries a `reqId`, which makes it safe to repeat for 24 hours.
"""

from typing import Annotated, Any, Literal

import msgspec

from ..clusters.batch import BatchRequest, ClusterName
from ..fields import Form
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
    Tag,
    Uid,
)
from ..jobs.inspection import Program
from ..jobs.profiling import ProfileOption
from ..jobs.registry_login import LoginRef, RegistryLogin
from ..jobs.roles import MAX_ROLES, After, Retry, TaskRole
from ..jobs.status import Kind, Status
from ..wire.messages import (
    DIGEST_BYTES,
    RELAY_BYTES,
    Cells,
    JobCmd,
    Offset,
    RelayId,
    Stream,
)
from .tokens import MAX_SECS, Scope, TokenId, TokenName

Limit = Annotated[float, msgspec.Meta(gt=0, le=366 * 86400)]
GraceSecs = Annotated[float, msgspec.Meta(ge=0, le=3600)]
DebugSecs = Annotated[float, msgspec.Meta(gt=0, le=30 * 86400)]
Sentence = Annotated[str, msgspec.Meta(max_length=1000)]
Hash = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9]{1,64}\Z"), Form("1 to 64 letters or digits")
]
Plan = Annotated[
    str,
    msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}\Z"),
    Form("the name of a plan: a small letter, then small letters, digits, _ or -, at most 32"),
]
#: Name of a queue. Empty: the queue of the user (docs/queues.md); the stored run names the queue.
AnyQueue = Annotated[
    str,
    msgspec.Meta(pattern=r"^([a-z][a-z0-9_-]{0,31})?\Z"),
    Form("the name of a queue: a small letter, then small letters, digits, _ or -, at most 32"),
]
#: Name of a driver. Empty: the default driver of this site; the stored run names the chosen one.
AnyDriver = Annotated[
    str,
    msgspec.Meta(pattern=r"^([a-z][a-z0-9]{0,15})?\Z"),
    Form("the name of a driver: a small letter, then small letters or digits, at most 16"),
]
#: Lower-case hexadecimal digits.
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z"), Form("64 hexadecimal digits")]
#: A place in a list, as the answer before had it.
Cursor = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
KnownSerial = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

#: A reqId to which the number of a run is appended.
BulkReqId = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9_:-]{8,56}\Z"), Form("8 to 56 letters, digits or _ : -")
]
MAX_BULK = 10_000
#: Tags of one job.
MAX_TAGS = 32
Tags = Annotated[tuple[Tag, ...], msgspec.Meta(max_length=MAX_TAGS)]
#: Characters of a configuration that is kept with its run.
MAX_CONFIG = 64 * 1024
#: Credentials for registries of one request.
MAX_LOGINS = 100


class _Request(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """Encoding that all requests share; no fields."""


class RunSpec(_Request, frozen=True, kw_only=True):
    """The specification of one run, as submitted and as stored in the log.

    The run has a `command`, or `roles` if it has many tasks, or `data` if it is an app's run: the
    simulation as its user entered it (`models`, `report`, ...). compute_job_hash: if the caller
    gives none, the supervisor computes a digest of type, model, command, wrap, env and data. Times
    are seconds. `time_limit_secs` counts from the start of the process, `queue_limit_secs` from the
    submission.
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
    grace_secs: GraceSecs = 3.0
    core_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 0
    sim_name: Sentence | None = None
    roles: Annotated[tuple[TaskRole, ...], msgspec.Meta(max_length=MAX_ROLES)] = ()
    #: None: no retries
    retry: Retry | None = None
    #: how long the container and resources of a failed task are held for debugging
    debug_secs: DebugSecs | None = None
    after: Annotated[tuple[After, ...], msgspec.Meta(max_length=1_000)] = ()
    #: maximum number of concurrent runs with this user and simulation
    at_once: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    queue: AnyQueue | msgspec.UnsetType = msgspec.UNSET
    #: runs of one user and queue with a higher priority go first
    priority: Annotated[int, msgspec.Meta(ge=-1000, le=1000)] | msgspec.UnsetType = msgspec.UNSET
    #: the plan of the user's account at submission (a name of the front end); runs of some plans
    #: are never purged
    active_plan: Plan | None = None
    #: resources requested from the cluster; only with the driver sbatch
    batch: BatchRequest | msgspec.UnsetType = msgspec.UNSET
    #: the text of the configuration from which the run was made, without the values of secrets
    config: Annotated[str, msgspec.Meta(max_length=MAX_CONFIG)] | msgspec.UnsetType = msgspec.UNSET
    #: the user's own credentials for image registries, which the supervisor has in memory
    registry_login: LoginRef | msgspec.UnsetType = msgspec.UNSET
    #: each task in a container accepts ssh from the other tasks of its gang
    ssh: bool | msgspec.UnsetType = msgspec.UNSET
    #: the job of the same user from whose definition this run was made
    cloned_from: ComputeJid | msgspec.UnsetType = msgspec.UNSET
    #: the profile to record: a kind, or a kind and its tool
    profile: ProfileOption | msgspec.UnsetType = msgspec.UNSET


class RunSimulation(_Request, frozen=True, kw_only=True):
    """Start a run, join the active one, or return the finished one with the same hash.

    only_new: refuse the request (`nameTaken`) if this job has a run, active or finished.
    """

    req_id: ReqId
    run: RunSpec
    force_run: bool = False
    # unset by default, so that a supervisor of the previous version accepts the request
    only_new: bool | msgspec.UnsetType = msgspec.UNSET
    compute_job_serial: KnownSerial = 0


class RunMany(_Request, frozen=True, kw_only=True):
    """Start many runs with one request. It is answered when all are durable; the n-th run has the
    reqId `<reqId>.<n>`.
    """

    req_id: BulkReqId
    runs: Annotated[tuple[RunSpec, ...], msgspec.Meta(min_length=1, max_length=MAX_BULK)]


class RunStatusRequest(_Request, frozen=True, kw_only=True):
    """Return the status of the run with this hash and serial, if given. A mismatch is answered as
    `missing` with the reason.

    wait_secs: answer when the run has ended and is cleaned up, at the latest after this time.
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_hash: Hash | None = None
    compute_job_serial: KnownSerial = 0
    wait_secs: Annotated[float, msgspec.Meta(ge=0, le=30)] = 0.0


class RunCancel(_Request, frozen=True, kw_only=True):
    """Cancel exactly the run with this serial (0: the active run). Repeating it is harmless."""

    req_id: ReqId
    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    reason: Sentence = ""


class RunRelease(_Request, frozen=True, kw_only=True):
    """Release tasks that are held for debugging: the task of this role and index, or all of the
    run. Repeating it is harmless.
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    role: Role | None = None
    index: Index | None = None


class RunPurge(_Request, frozen=True, kw_only=True):
    """Remove the run directory and the output of a run that is over, to free disk space. Its status,
    exits and history stay. Repeating it is harmless.
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0


class JobTag(_Request, frozen=True, kw_only=True):
    """Add tags to a job and remove tags from it. The answer names all tags of the job. Repeating it
    is harmless; without tags nothing changes.
    """

    uid: Uid
    compute_jid: ComputeJid
    add: Tags = ()
    remove: Tags = ()


class DebugList(_Request, frozen=True, kw_only=True):
    """List the processes that wait for a debugger, of all jobs of the user or of one."""

    uid: Uid
    compute_jid: ComputeJid | None = None


class DebugAttach(_Request, frozen=True, kw_only=True):
    """Begin a debugging session with the stop of this id."""

    uid: Uid
    compute_jid: ComputeJid
    id: Annotated[str, msgspec.Meta(max_length=64)]


class DebugIo(_Request, frozen=True, kw_only=True):
    """Send text to a debugger; then read at most `limit` characters, for which to wait up to
    `wait_secs`. close: end the session.
    """

    uid: Uid
    session: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]{32}\Z")]
    data: Annotated[str, msgspec.Meta(max_length=32 * 1024)] = ""
    limit: Annotated[int, msgspec.Meta(ge=0, le=64 * 1024)] = 0
    wait_secs: Annotated[float, msgspec.Meta(ge=0, le=30)] = 0.0
    close: bool = False


class JobList(_Request, frozen=True, kw_only=True):
    """List the jobs of one user, or of all users if `uid` is absent, latest change first. `before`
    is the position where the next page starts. cursor: in its place, `cursor` of the previous page.

    commands: rows also contain the shortened command of the run (`command`) and its display name.
    tags: only jobs with one of these tags; rows then contain the `tags` of the job.
    """

    uid: Uid | None = None
    status: Status | None = None
    active: bool | None = None
    before: KnownSerial | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    # unset by default, so that a supervisor of the previous version accepts the request
    commands: bool | msgspec.UnsetType = msgspec.UNSET
    tags: Tags | msgspec.UnsetType = msgspec.UNSET
    cursor: Cursor | msgspec.UnsetType = msgspec.UNSET


#: Most values of one field of a search.
MAX_CHOICES = 32
Choices = Annotated[
    tuple[Annotated[str, msgspec.Meta(max_length=64)], ...], msgspec.Meta(max_length=MAX_CHOICES)
]
SearchTime = Annotated[float, msgspec.Meta(ge=0, le=2**40)]
JobOrder = Literal["changed", "submitted", "started", "ended", "duration"]


class JobSearch(_Request, frozen=True, kw_only=True):
    """Search the jobs of one user. If `uid` is absent: of all users whose data the sender may see.
    Each field that is given restricts the answer to jobs whose current run has one of its values.

    text: words, separated by spaces or quotes, that all occur in the name, the command or the
    computeJid; ASCII letters match in either case. causes: the reason why the run ended. since, until: time of the submission, unix
    seconds. sort: descending unless `ascending`; jobs without the value come last or first. cursor:
    `next` of the previous page.
    """

    uid: Uid | None = None
    states: Annotated[tuple[Status, ...], msgspec.Meta(max_length=8)] = ()
    drivers: Choices = ()
    queues: Choices = ()
    apps: Choices = ()
    causes: Choices = ()
    text: Annotated[str, msgspec.Meta(max_length=200)] = ""
    since: SearchTime | None = None
    until: SearchTime | None = None
    sort: JobOrder = "changed"
    ascending: bool = False
    cursor: Annotated[str, msgspec.Meta(max_length=200)] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50


class JobLog(_Request, frozen=True, kw_only=True):
    """Read bytes of an output stream of one attempt (0: the latest) of the current run. Refused if
    that run has another serial (0: any).

    role, index: the task. Without them, the task whose exit decided the attempt, or else the first
    one.
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
    #: read this many bytes from the end, as `tail -c` does; takes precedence over `offset`
    tail: Annotated[int, msgspec.Meta(ge=0, le=512 * 1024)] = 0
    wait_secs: Annotated[float, msgspec.Meta(ge=0, le=30)] = 0.0


class JobCore(_Request, frozen=True, kw_only=True):
    """Read bytes of a core file of a task of the current run. name: as in `exit.core.files` of the
    task. serial, attempt, role and index: see `JobLog`.
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    attempt: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    role: Role | None = None
    index: Index = 0
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    offset: Offset = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=512 * 1024)] = 512 * 1024


class JobTasks(_Request, frozen=True, kw_only=True):
    """List the attempts of the current run, and the tasks of one attempt (0: the latest)."""

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    attempt: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0


class ShellOpen(_Request, frozen=True, kw_only=True):
    """Open a shell in a task (messages.OpenShell). attempt: 0 for the latest.

    shell_id: chosen by the client. A repeated request with the same id returns the same shell.
    program: runs instead of the shell, with the same rules.
    """

    uid: Uid
    compute_jid: ComputeJid
    shell_id: RelayId
    role: Role | None = None
    index: Index = 0
    attempt: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    term: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._+-]{1,64}\Z")] = "dumb"
    rows: Cells = 24
    cols: Cells = 80
    program: Program | None = None


class ShellUse(_Request, frozen=True, kw_only=True):
    """Type into a shell and read its output (messages.ShellIo); input and output are base64. The
    same request may be repeated.
    """

    uid: Uid
    compute_jid: ComputeJid
    shell_id: RelayId
    input_at: Offset = 0
    input: Annotated[bytes, msgspec.Meta(max_length=RELAY_BYTES)] = b""
    offset: Offset = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=RELAY_BYTES)] = 0
    wait_secs: Annotated[float, msgspec.Meta(ge=0, le=30)] = 0.0
    rows: Cells | None = None
    cols: Cells | None = None
    close: bool = False


class JobStory(_Request, frozen=True, kw_only=True):
    """List the events of one job, oldest first."""

    uid: Uid
    compute_jid: ComputeJid


class CallRequest(_Request, frozen=True, kw_only=True):
    """Let an app compute something now. No result is stored; the same request may be repeated.

    compute_jid: the job whose run is read; compute_job_serial refuses a newer run of it. The answer
    is the app's return value, unchanged. A failure of the app is `appFailed` and never affects the
    run.
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
    """Start a user's agent in advance. Answered at once."""

    uid: Uid
    driver: AnyDriver = ""


class RunFile(_Request, frozen=True, kw_only=True):
    """Stream a file below the run directory of the current run. `offset` and `length` are a range
    in bytes.
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    name: Annotated[str, msgspec.Meta(max_length=1024)]
    offset: Offset = 0
    length: Offset | None = None


class RunFiles(_Request, frozen=True, kw_only=True):
    """List the regular files below the run directory of the current run: a page of `limit` files
    after the file `after` ("": from the first).
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    after: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000


class RunFileDigest(_Request, frozen=True, kw_only=True):
    """Return the SHA-256 of a part of a file below the run directory of the current run. `length`:
    fewer bytes at the end of the file.
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    offset: Offset = 0
    length: Annotated[int, msgspec.Meta(ge=0, le=DIGEST_BYTES)] = DIGEST_BYTES


class RunFilePart(_Request, frozen=True, kw_only=True):
    """Return how many bytes of a file an interrupted transfer with this digest has stored. A
    transfer that `PutRunFile` would refuse is refused here, before its content is sent.
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    sha256: Sha256
    size: Offset
    active: bool = False


class PutRunFile(_Request, frozen=True, kw_only=True):
    """Store a file below the run directory of the current run, or continue to do so at `offset`.
    sha256, size: of the whole file. replace: also over an existing file. active: also while the run
    is active.
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    sha256: Sha256
    size: Offset
    offset: Offset = 0
    replace: bool = False
    active: bool = False


class LibFile(_Request, frozen=True, kw_only=True):
    """Stream a file of the user's library of an app. `offset` and `length` are a range in bytes."""

    uid: Uid
    simulation_type: SimulationType
    name: LibName
    offset: Offset = 0
    length: Offset | None = None


class GlobalResources(_Request, frozen=True, kw_only=True):
    """Lease ports to a simulation. It gets the same ports each time, until `release` or the end of
    the lease.
    """

    uid: Uid
    simulation_type: SimulationType
    simulation_id: Sid
    ports: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1
    release: bool = False


class Trace(_Request, frozen=True, kw_only=True):
    """Return everything known about an id or a prefix of one (computeJid, opId, reqId, Slurm job
    number, container, agent key or agentId).

    logs: also search the log files.
    """

    id: Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9_.:@+-]{4,128}|[0-9]{1,3})\Z")]
    uid: Uid | None = None
    logs: bool = False


class RunPlan(_Request, frozen=True, kw_only=True):
    """Return a preview of a run: its tasks, their hosts, commands and environments. Nothing is
    stored.
    """

    run: RunSpec


#: Status filter for the runs of a group. `failed`: ended without completing.
GroupStatus = Literal[
    "pending", "running", "completed", "canceled", "error", "job_run_purged", "failed"
]
#: The index text of an array, as `job_arrays.parse_indices` reads it.
IndexText = Annotated[str, msgspec.Meta(min_length=1, max_length=80_000)]


class RunArray(_Request, frozen=True, kw_only=True):
    """Start one run for each index of an array. It is answered when all are durable; the run of
    index n has the reqId `<reqId>.<n>`.
    """

    req_id: BulkReqId
    run: RunSpec
    indices: IndexText


class JobGroup(_Request, frozen=True, kw_only=True):
    """Return the status of the runs of one simulation: counts, and one page of rows (see
    `job_arrays` for their order).

    after: the computeJid of the last row of the previous page. limit: rows of a page; 0 returns
    only the counts and reads nothing from disk. wait_secs: answer as soon as all runs are over and
    cleaned up, at the latest after this time.
    """

    uid: Uid
    simulation_id: Sid
    status: GroupStatus | None = None
    after: ComputeJid | None = None
    limit: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 100
    wait_secs: Annotated[float, msgspec.Meta(ge=0, le=30)] = 0.0


class GroupCancel(_Request, frozen=True, kw_only=True):
    """Cancel all or some runs of one simulation. Repeating it is harmless: it never cancels a run
    that was submitted later.

    indices, models: only these runs; without both, all runs. status: only runs that currently have
    this status.
    """

    req_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:-]{8,40}\Z")]
    uid: Uid
    simulation_id: Sid
    indices: IndexText | None = None
    models: Annotated[tuple[ComputeModel, ...], msgspec.Meta(max_length=MAX_BULK)] | None = None
    status: Literal["pending", "running"] | None = None
    reason: Sentence = ""


class RunDescription(_Request, frozen=True, kw_only=True):
    """Submit all runs of a job description in dependency order, or none if the description has an
    error.

    The same request may be repeated; it returns the runs of the first time.

    credentials: for the entries of `registryAuth` in the description, by their names there. They are
    never stored.
    """

    req_id: BulkReqId
    uid: Uid
    description: Any
    credentials: (
        Annotated[dict[str, RegistryLogin], msgspec.Meta(max_length=MAX_LOGINS)] | msgspec.UnsetType
    ) = msgspec.UNSET


class JobOptions(_Request, frozen=True, kw_only=True):
    """Return what this user may request here: drivers with their largest host, queues, limits,
    clusters.
    """

    uid: Uid
    active_plan: Plan | None = None


class JobCheck(_Request, frozen=True, kw_only=True):
    """Check the text of a job file (docs/jobs.md, or a configuration of OpenPAI). The answer has all
    problems with their lines. plan: also return the dry run of each job. no_image: run commands of
    OpenPAI without their images. Nothing is stored.
    """

    uid: Uid
    text: str
    no_image: bool = False
    plan: bool = False
    active_plan: Plan | None = None


class RunText(_Request, frozen=True, kw_only=True):
    """Submit all jobs of a job file, or none if its text has a problem. The same request may be
    repeated. tags: of each job.
    """

    req_id: BulkReqId
    uid: Uid
    text: str
    no_image: bool = False
    tags: Tags = ()
    active_plan: Plan | None = None


class JobMetrics(_Request, frozen=True, kw_only=True):
    """Return the resource usage of the tasks of the current run (refused if that run has another
    serial; 0: any). attempt: 0 is the latest.

    series: include the usage over time, at least for the tasks of this role and index. Fewer tasks
    give a finer resolution.
    """

    uid: Uid
    compute_jid: ComputeJid
    compute_job_serial: KnownSerial = 0
    attempt: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    series: bool = False
    role: Role | None = None
    index: Index | None = None


#: What a report of usage can sum by.
UsageGroup = Literal["user", "group", "queue", "app", "driver", "kind", "month", "day"]
UsageDate = Annotated[
    str,
    msgspec.Meta(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?\Z"),
    Form("a month or day, such as 2026-01 or 2026-01-15"),
]


class UsageReport(_Request, frozen=True, kw_only=True):
    """Sum the usage of ended runs of one user. If `uid` is absent: of all users whose data the sender
    may see. since, until: first and last month or day (UTC). by: one row for each combination of
    these. A group is one of the present members of the users file.
    """

    uid: Uid | None = None
    since: UsageDate | None = None
    until: UsageDate | None = None
    by: Annotated[tuple[UsageGroup, ...], msgspec.Meta(max_length=8), Form(unique=True)] = ("user",)


class DiskReport(_Request, frozen=True, kw_only=True):
    """Return the disk usage and quotas of one user. If `uid` is absent: of all users whose data the
    sender may see.
    """

    uid: Uid | None = None


#: Passwords, one-time codes, private keys and certificates: never logged, never stored.
_Secret = Annotated[str, msgspec.Meta(max_length=65_536)]


class SbatchLogin(_Request, frozen=True, kw_only=True):
    """Sign a user in to a cluster (None: the first one) as the unix user `username`, with the
    credentials that the site requires.

    otp: the one-time code; if a site prompts for password and code together, the two are
    concatenated. The answer comes when the user is signed in, or has the reason why not
    (`signInRefused`, `signInUnreachable`). The credentials live in memory only until then.
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

    #: the text for logs, see protocol.redaction
    pkdebug_str = __repr__


class SbatchLoginStatus(_Request, frozen=True, kw_only=True):
    """Return whether the user's agent on a cluster (None: the first one) is connected or starting,
    or whether the user must sign in.
    """

    uid: Uid
    cluster: ClusterName | None = None


class SbatchLogout(_Request, frozen=True, kw_only=True):
    """Sign the user out of a cluster (None: the first one): end the agent and the connection. Slurm
    jobs continue.
    """

    uid: Uid
    cluster: ClusterName | None = None


class ClusterList(_Request, frozen=True, kw_only=True):
    """List the clusters of this site with their defaults, limits and known partitions."""

    uid: Uid


class QueueReport(_Request, frozen=True, kw_only=True):
    """Return the queues with their totals, and of this user the share, the limits, and why each run
    waits; of all users if `uid` is absent. limit: of the rows of users and of waiting runs.
    """

    uid: Uid | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=500)] = 100


class AgentList(_Request, frozen=True, kw_only=True):
    """List the agents of this user, or of all users if `uid` is absent."""

    uid: Uid | None = None


class AgentStop(_Request, frozen=True, kw_only=True):
    """End an agent and its keeper. agent: as in AgentLogs. uid: match only agents of this user."""

    agent: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    uid: Uid | None = None


class AgentLogs(_Request, frozen=True, kw_only=True):
    """Read the log of an agent or of its keeper. agent: its key, at least four characters of its
    id, or a job that it runs.

    uid: match only agents of this user. previous: the log of the process before the last restart,
    in one piece.
    """

    agent: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    uid: Uid | None = None
    part: Literal["agent", "keeper"] = "agent"
    previous: bool = False
    offset: Offset = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=512 * 1024)] = 256 * 1024
    #: as in JobLog
    tail: Annotated[int, msgspec.Meta(ge=0, le=512 * 1024)] = 0


class TokenCreate(_Request, frozen=True, kw_only=True):
    """Create an API token of a user. The answer has its text, which is shown only once, so the
    request is sent once.

    expires_secs: lifetime; None for 90 days, or the rest of the lifetime of the sender's token.
    """

    uid: Uid
    name: TokenName
    scopes: Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1, max_length=4)]
    expires_secs: Annotated[float, msgspec.Meta(gt=0, le=MAX_SECS)] | None = None


class TokenList(_Request, frozen=True, kw_only=True):
    """List the API tokens of a user, oldest first, without their secrets."""

    uid: Uid


class TokenRevoke(_Request, frozen=True, kw_only=True):
    """Revoke an API token of a user. Repeating it is harmless."""

    uid: Uid
    id: TokenId
    reason: Sentence = ""


class DeviceStart(_Request, frozen=True, kw_only=True):
    """Begin a device login: a machine asks for an API token that a person approves elsewhere. Its
    fields are query arguments, because the sender is unknown. name: of the token.
    """

    name: TokenName
    scopes: Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1, max_length=4)]
    expires_secs: Annotated[float, msgspec.Meta(gt=0, le=MAX_SECS)] | None = None


class DeviceBegin(_Request, frozen=True, kw_only=True):
    """Begin a device login with these codes, as a router does in each shard, because it does not know who
    will approve the login. page: address of the page for the user code, if the router knows it.
    """

    name: TokenName
    scopes: Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1, max_length=4)]
    expires_secs: Annotated[float, msgspec.Meta(gt=0, le=MAX_SECS)] | None = None
    device_code: Annotated[str, msgspec.Meta(max_length=64)]
    user_code: Annotated[str, msgspec.Meta(max_length=64)]
    page: Annotated[str, msgspec.Meta(max_length=1024)] | None = None


class DeviceEnd(_Request, frozen=True, kw_only=True):
    """Forget the device login with this user code: it was answered in another shard."""

    user_code: Annotated[str, msgspec.Meta(max_length=64)]


class CreatedTokensRevoke(_Request, frozen=True, kw_only=True):
    """Revoke all tokens that these tokens of any shard created, directly or not. by: who revokes them."""

    ids: Annotated[tuple[TokenId, ...], msgspec.Meta(min_length=1, max_length=100_000)]
    by: Annotated[str, msgspec.Meta(max_length=64)]


class DeviceShow(_Request, frozen=True, kw_only=True):
    """Return the device login with this user code, which a person typed."""

    uid: Uid
    user_code: Annotated[str, msgspec.Meta(max_length=64)]


class DeviceAnswer(_Request, frozen=True, kw_only=True):
    """Approve or deny the device login with this user code, for a user. It can be answered once."""

    uid: Uid
    user_code: Annotated[str, msgspec.Meta(max_length=64)]
    approve: bool


class AuditPage(_Request, frozen=True, kw_only=True):
    """Return the matching ones of the next `limit` audit events after the version `after`, oldest
    first. since_secs: only events of this time until now, by the supervisor's clock. before: newest
    first, of the events before this version (0: the newest). cursor: in place of `after` or of a `before`
    that is given, `cursor` of the previous page.
    """

    after: KnownSerial = 0
    before: KnownSerial | msgspec.UnsetType = msgspec.UNSET
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1000
    since_secs: Annotated[float, msgspec.Meta(ge=0)] | None = None
    actor: Uid | None = None
    cursor: Cursor | msgspec.UnsetType = msgspec.UNSET
