"""Request and response bodies for browsers, one type each. The same types validate requests and
build the OpenAPI document.

Field names follow Sirepo. Requests may have further fields, because existing clients send whole
simulations. A body never contains the user.
"""

from typing import Annotated, Any, Literal

import msgspec

from ...protocol.api.requests import Cursor, Hash, KnownSerial
from ...protocol.clusters.batch import ClusterName
from ...protocol.ids import ComputeJid, ComputeModel, ReqId, Sid, SimulationType, Uid
from ...protocol.jobs.status import Status

Data = dict[str, Any]
Method = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Deadline = Annotated[float, msgspec.Meta(ge=0.1, le=600)]
Word = Annotated[str, msgspec.Meta(max_length=64)]
UnixName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.@-]{0,127}\Z")]
Secret = Annotated[str, msgspec.Meta(max_length=65_536)]


class Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An empty object is sufficient."""


class RunSimulation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Start a run of this report's compute model, join the active one, or get the completed one
    with the same inputs.

    reqId: makes the request safe to repeat; generated if missing. computeJobSerial: the run that
    the page shows.
    """

    simulation_type: SimulationType
    simulation_id: Sid
    report: ComputeModel
    models: Data = {}
    force_run: bool = False
    compute_job_serial: KnownSerial = 0
    req_id: ReqId | None = None


class RunStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Status of a run. Without hash and models: of the current run."""

    simulation_type: SimulationType
    simulation_id: Sid
    report: ComputeModel
    models: Data | None = None
    compute_job_hash: Hash | None = None
    compute_job_serial: KnownSerial = 0


class RunCancel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Cancel exactly this run. Repeating the request is harmless."""

    simulation_type: SimulationType
    simulation_id: Sid
    report: ComputeModel
    compute_job_hash: Hash | None = None
    compute_job_serial: KnownSerial = 0
    req_id: ReqId | None = None


class AnalysisJob(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Let the app compute something from a run that has started."""

    simulation_type: SimulationType
    simulation_id: Sid
    report: ComputeModel
    method: Method
    args: Data = {}
    models: Data = {}
    compute_job_serial: KnownSerial = 0
    deadline_secs: Deadline | None = None


class Compute(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Let the app compute something without a run: from the request alone, or (stateful) with the
    user's library.
    """

    simulation_type: SimulationType
    method: Method
    args: Data = {}
    models: Data = {}
    deadline_secs: Deadline | None = None


class Jobs(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Filter of a list of jobs. active: pending or running jobs, or (false) the others; null for
    both. before: `next` of the previous page. cursor: in its place, `cursor` of the previous page.
    """

    active: bool | None = True
    before: KnownSerial | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: Cursor | msgspec.UnsetType = msgspec.UNSET


class Ping(msgspec.Struct, frozen=True, kw_only=True):
    """`ping` is returned unchanged."""

    ping: Word = ""


class Resources(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Ports for this simulation: the same ones each time, until they are released or the lease
    expires.
    """

    simulation_type: SimulationType
    simulation_id: Sid
    ports: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1
    release: bool = False


class SbatchCredentials(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Credentials for a cluster: a password, a one-time code, a private key, or several of them.
    They are not stored.
    """

    username: UnixName
    password: Secret | None = None
    otp: Secret | None = None
    private_key: Secret | None = None
    passphrase: Secret | None = None
    certificate: Secret | None = None

    def __repr__(self) -> str:
        return "SbatchCredentials()"


class SbatchLogin(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Sign in to a cluster. Without `cluster`: to the cluster of the simulation's run, or else to
    the first one.
    """

    sbatch_credentials: SbatchCredentials
    cluster: ClusterName | None = None
    simulation_type: SimulationType | None = None
    simulation_id: Sid | None = None
    compute_model: ComputeModel | None = None
    report: ComputeModel | None = None

    def __repr__(self) -> str:
        return "SbatchLogin()"


class SbatchLoginStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Ask whether the user must sign in. The cluster is chosen as in /sbatch-login."""

    cluster: ClusterName | None = None
    simulation_type: SimulationType | None = None
    simulation_id: Sid | None = None
    compute_model: ComputeModel | None = None
    report: ComputeModel | None = None


class SbatchLogout(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Sign out of a cluster. Without `cluster`: of the first one."""

    cluster: ClusterName | None = None


class RequestProblem(msgspec.Struct, frozen=True, kw_only=True):
    """An error in a request. path: its place, such as `models.a[0]`. right: the expected form."""

    path: str
    problem: str
    right: str


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal. error: a sentence for a person. advice: the next action. retry: the same request
    may succeed later. problems: all errors of a request that does not have the expected form.
    """

    state: str
    code: str
    error: str
    advice: str
    retry: bool
    problems: list[RequestProblem] | msgspec.UnsetType = msgspec.UNSET


class ResultError(msgspec.Struct, frozen=True, kw_only=True):
    """Why the result of a completed run cannot be shown."""

    code: str
    error: str
    advice: str
    retry: bool


class NextRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The next request to /run-status for the same run."""

    simulation_type: SimulationType
    simulation_id: Sid
    report: ComputeModel
    compute_job_hash: str | None
    compute_job_serial: int
    compute_job_start: float | None = None


class SignIn(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The sign-in that a cluster requires, with its reason: `no-creds`, `invalid-creds` or
    `general-connection-error`.
    """

    is_modal: bool
    is_sbatch_login: bool
    reason: str
    cluster: str | None = None
    host: str | None = None
    sentence: str | None = None
    advice: str | None = None
    simulation_type: str | None = None
    simulation_id: str | None = None
    compute_model: str | None = None
    compute_jid: str | None = None
    compute_job_serial: int | None = None
    report: str | None = None


class Why(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Why a run waits, or failed. confidence: `certain`, `likely`, `possible` or `unknown`. tries:
    advice.
    """

    cause: str
    confidence: str
    sentence: str
    tries: list[str] = msgspec.field(name="try", default_factory=list)


class WhyReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The full diagnosis. evidence: facts that support the cause. exclusions (`not`): similar
    causes that are ruled out. traceback: of Python.
    """

    state: str
    cause: str | None = None
    confidence: str | None = None
    sentence: str = ""
    evidence: list[str] = []
    exclusions: list[str] = msgspec.field(name="not", default_factory=list)
    tries: list[str] = msgspec.field(name="try", default_factory=list)
    last_lines: str | None = None
    termination_message: str | None = None
    traceback: dict[str, Any] | None = None
    attempt: int | None = None


class StatusReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Status of a run. Times are unix seconds.

    Further fields: those that the app reports while it runs, and the result of a completed
    sequential run. A request for another hash or serial than the current one gets `missing`, with
    the reason. cluster: cluster of the run. batch: Slurm's report about its job.
    computeJobPosition: of the last event included; of two replies about one run, the lower one is
    older. why: cause of a wait or a failure. signIn: the user must sign in before the run continues
    or its status is known.
    """

    state: Status
    reason: str | None = None
    error: str | None = None
    compute_jid: ComputeJid | None = None
    compute_job_hash: str | None = None
    compute_job_serial: int | None = None
    compute_job_queued: float | None = None
    compute_job_start: float | None = None
    compute_job_end: float | None = None
    elapsed_time: float | None = None
    queue_state: str | None = None
    job_status_message: str | None = None
    canceled_after_secs: float | None = None
    known: bool = True
    since: float | None = None
    over: bool = False
    compute_job_position: int | None = None
    frame_count: int | None = None
    percent_complete: float | None = None
    next_request: NextRequest | None = None
    next_request_seconds: float | None = None
    result_error: ResultError | None = None
    cluster: str | None = None
    batch: dict[str, Any] | None = None
    sign_in: SignIn | None = None
    why: Why | None = None


class SrException(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The page to which the client redirects its user. routeName: `sbatchLogin`."""

    route_name: str
    params: SignIn


class SrExceptionReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The user must first sign in to a cluster. run: status of the run, which is stored and then
    continues by itself.
    """

    state: Literal["srException"]
    sr_exception: SrException
    run: StatusReply | None = None


class LoginReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The user is signed in as this unix user; waiting runs continue."""

    state: str = "ok"
    login_success: bool = True
    cluster: str | None = None
    user: str | None = None


class LoginStatusReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """ready: no sign-in is needed. sentence: why a sign-in is needed."""

    ready: bool
    cluster: str | None = None
    host: str | None = None
    access: str | None = None
    user: str | None = None
    sentence: str | None = None


class LogoutReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """signedOut: a sign-in existed. agentEnded: the user's agent has ended there. runs: number of
    runs that Slurm continues.
    """

    state: str
    signed_out: bool
    agent_ended: bool
    runs: int
    cluster: str | None = None
    host: str | None = None
    user: str | None = None


class ClustersReply(msgspec.Struct, frozen=True, kw_only=True):
    """The clusters of this site: defaults, limits, and the known partitions."""

    clusters: list[dict[str, Any]]


class JobRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One job in a list. computeJobPosition: of the last event that changed it."""

    compute_jid: ComputeJid
    uid: Uid
    simulation_id: Sid
    simulation_type: SimulationType
    compute_model: ComputeModel
    state: Status
    compute_job_serial: int | None = None
    compute_job_queued: float | None = None
    compute_job_start: float | None = None
    compute_job_end: float | None = None
    reason: str | None = None
    compute_job_position: int | None = None


class JobsReply(msgspec.Struct, frozen=True, kw_only=True):
    """Newest change first. next: `before` of the next page; null at the end. cursor: the same as a text,
    which is exact for sites with shards, whose `next` exceeds 2^53.
    """

    jobs: list[JobRow]
    next: int | None = None
    cursor: str | None = None


class OkReply(msgspec.Struct, frozen=True, kw_only=True):
    """The request succeeded."""

    state: str = "ok"


class PingReply(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor answers."""

    state: str = "ok"
    ping: str = ""


class CountersReply(msgspec.Struct, frozen=True, kw_only=True):
    """Number of refusals since the start, by code."""

    state: str
    counters: dict[str, int]


class TicketReply(msgspec.Struct, frozen=True, kw_only=True):
    """A ticket for /live, valid until `until` (unix seconds): send `ticket` in the header named
    `header`.
    """

    ticket: str
    header: str
    until: float


class ResourcesReply(msgspec.Struct, frozen=True, kw_only=True):
    """The leased ports on this address, valid until `until` (unix seconds)."""

    ports: list[int]
    ip: str | None = None
    until: float | None = None


class RunFilesReply(msgspec.Struct, frozen=True, kw_only=True):
    """File names; each is a suffix for /download-run-file."""

    files: list[str]


class LibFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the user's library. size: in bytes."""

    name: str
    size: int
    sha256: str
    mtime: float | None = None
    etag: str | None = None


class LibFilesReply(msgspec.Struct, frozen=True, kw_only=True):
    files: list[LibFile]
