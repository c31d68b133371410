"""What browsers send and get: one type for each body. The same types check requests and make the
OpenAPI document.

Names of fields are Sirepo's. Requests may hold more than is named here: the clients that there are
send whole simulations. Who the user is never stands in a body.
"""

from typing import Annotated, Any, Literal

import msgspec

from ...protocol.api.requests import Hash, KnownSerial
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
    """An empty object will do."""


class RunSimulation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Start a run of this report's compute model, join the one that is live, or get the finished
    one with the same inputs.

    reqId: makes the request safe to send again; made here where it is missing. computeJobSerial:
    the run that the page knows.
    """

    simulation_type: SimulationType
    simulation_id: Sid
    report: ComputeModel
    models: Data = {}
    force_run: bool = False
    compute_job_serial: KnownSerial = 0
    req_id: ReqId | None = None


class RunStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How the run stands. Where neither hash nor models are given: whichever run is in the slot."""

    simulation_type: SimulationType
    simulation_id: Sid
    report: ComputeModel
    models: Data | None = None
    compute_job_hash: Hash | None = None
    compute_job_serial: KnownSerial = 0


class RunCancel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Cancel exactly this run. Doing it again is harmless."""

    simulation_type: SimulationType
    simulation_id: Sid
    report: ComputeModel
    compute_job_hash: Hash | None = None
    compute_job_serial: KnownSerial = 0
    req_id: ReqId | None = None


class AnalysisJob(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Have the app compute something from a run that has started."""

    simulation_type: SimulationType
    simulation_id: Sid
    report: ComputeModel
    method: Method
    args: Data = {}
    models: Data = {}
    compute_job_serial: KnownSerial = 0
    deadline_secs: Deadline | None = None


class Compute(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Have the app compute something that needs no run: from its input alone, or (stateful) with
    the user's library.
    """

    simulation_type: SimulationType
    method: Method
    args: Data = {}
    models: Data = {}
    deadline_secs: Deadline | None = None


class Jobs(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which jobs. active: pending or running, or (false) the others; null for both. before: `next`
    of the page before.
    """

    active: bool | None = True
    before: KnownSerial | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class Ping(msgspec.Struct, frozen=True, kw_only=True):
    """`ping` comes back as it is."""

    ping: Word = ""


class Resources(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Ports for this simulation: the same ones each time, until they are released or the lease is
    over.
    """

    simulation_type: SimulationType
    simulation_id: Sid
    ports: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1
    release: bool = False


class SbatchCredentials(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a site asks for, to sign in there: a password, a one-time code, a private key, or
    several of them. Kept nowhere.
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
    """Sign in to a cluster. Without its name: to that of the simulation's run, or else to the first
    one.
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
    """Does this user have to sign in? Of which cluster as in /sbatch-login."""

    cluster: ClusterName | None = None
    simulation_type: SimulationType | None = None
    simulation_id: Sid | None = None
    compute_model: ComputeModel | None = None
    report: ComputeModel | None = None


class SbatchLogout(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Sign out of a cluster. Without its name: of the first one."""

    cluster: ClusterName | None = None


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """Why not. error: a sentence for a person; advice: what to do next; retry: may the very same
    request succeed later?
    """

    state: str
    code: str
    error: str
    advice: str
    retry: bool


class ResultError(msgspec.Struct, frozen=True, kw_only=True):
    """Why the result of a run that completed cannot be shown."""

    code: str
    error: str
    advice: str
    retry: bool


class NextRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What to send to /run-status to hear of the same run again."""

    simulation_type: SimulationType
    simulation_id: Sid
    report: ComputeModel
    compute_job_hash: str | None
    compute_job_serial: int
    compute_job_start: float | None = None


class SignIn(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a user has to sign in, and why. reason: `no-creds`, `invalid-creds` or
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
    """Why a run waits, or did not complete. confidence: `certain`, `likely`, `possible` or
    `unknown`. tries: what a person can do.
    """

    cause: str
    confidence: str
    sentence: str
    tries: list[str] = msgspec.field(name="try", default_factory=list)


class WhyReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The whole answer. evidence: what shows the cause; exclusions (`not`): what it is taken for
    and is not. traceback: of Python.
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
    """How a run stands. Times are unix seconds.

    Beside these fields stand those that the app reports while it runs, and the result of a
    sequential run that completed. A question about another hash or serial than the current one is
    answered `missing`, with the reason. cluster: to which the run goes; batch: what Slurm says of
    its job there. computeJobPosition: of the last event that it counts in; of two answers about one
    run the lower one is older. why: of what waits or did not complete, the cause in a word and a
    sentence. signIn: what is to be known of it, or goes on, only after its user has signed in
    there.
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
    """Where the client is to take its user. routeName: `sbatchLogin`."""

    route_name: str
    params: SignIn


class SrExceptionReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """First the user has to sign in to a cluster. run: the status of the run, which is on file and
    goes on by itself then.
    """

    state: Literal["srException"]
    sr_exception: SrException
    run: StatusReply | None = None


class LoginReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The user is signed in, as this unix user; what waited for it goes on."""

    state: str = "ok"
    login_success: bool = True
    cluster: str | None = None
    user: str | None = None


class LoginStatusReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """ready: nobody has to sign in now. sentence: why somebody has to."""

    ready: bool
    cluster: str | None = None
    host: str | None = None
    access: str | None = None
    user: str | None = None
    sentence: str | None = None


class LogoutReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """signedOut: was anybody signed in? agentEnded: is nothing of the user's agent left there?
    runs: that Slurm goes on with.
    """

    state: str
    signed_out: bool
    agent_ended: bool
    runs: int
    cluster: str | None = None
    host: str | None = None
    user: str | None = None


class ClustersReply(msgspec.Struct, frozen=True, kw_only=True):
    """The clusters of this house: defaults, limits, and what is known of their partitions."""

    clusters: list[dict[str, Any]]


class JobRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One job, as a list shows it. computeJobPosition: of the last event that changed it."""

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
    """Newest change first. next: `before` of the next page, null at the end."""

    jobs: list[JobRow]
    next: int | None = None


class OkReply(msgspec.Struct, frozen=True, kw_only=True):
    """It is done."""

    state: str = "ok"


class PingReply(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor answers."""

    state: str = "ok"
    ping: str = ""


class CountersReply(msgspec.Struct, frozen=True, kw_only=True):
    """What was refused here since the start, by code."""

    state: str
    counters: dict[str, int]


class TicketReply(msgspec.Struct, frozen=True, kw_only=True):
    """What opens /live until that moment (unix seconds): `ticket` goes into the header of this
    name.
    """

    ticket: str
    header: str
    until: float


class ResourcesReply(msgspec.Struct, frozen=True, kw_only=True):
    """The ports on this address are the simulation's until then (unix seconds)."""

    ports: list[int]
    ip: str | None = None
    until: float | None = None


class RunFilesReply(msgspec.Struct, frozen=True, kw_only=True):
    """Names; each of them is a suffix for /download-run-file."""

    files: list[str]


class LibFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the user's library. size in bytes."""

    name: str
    size: int
    sha256: str
    mtime: float | None = None


class LibFilesReply(msgspec.Struct, frozen=True, kw_only=True):
    files: list[LibFile]
