"""Event types of the log: past tense, one frozen struct for each fact.

Every event has `at`, the unix time in seconds of its decision. Positions in the log give the order
of events, never `at`. A stored event is JSON text with the tag `type` and the schema version `v`.
`decode` reads every version ever released.

To add an event: add a struct here, a branch in `job_fold.evolve` (or in the fold of the agent, the
API tokens or the system), a line in `event_text` and a row in tests/unit/db/events/golden/. To change an event
(or a value in `state`, which checkpoints contain): raise its version in VERSIONS and add an
upcaster.
"""

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from ...diagnosis.exit_table import Diagnosis
from ...protocol.api.requests import RunSpec
from ...protocol.clusters.batch import BatchState
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, OpId, Token
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.jobs.roles import After
from ...protocol.jobs.status import Status
from .state import AgentRecord, Job, PastRun, Retrying, Task
from .usage_row import UsageRow


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", rename="camel"):
    at: float


# ---- streams `job/<computeJid>`


class RunRequested(_Event, frozen=True, kw_only=True, tag="RunRequested"):
    """The supervisor accepted a run. spec.compute_job_hash is always set here. An earlier run of
    the same job becomes history.

    mono: monotonic clock of the supervisor at `at`, for time spans within the boot `boot_id`; wall
    clocks jump.
    """

    serial: int
    spec: RunSpec
    run_dir: str
    req_id: str
    mono: float | None = None
    boot_id: str | None = None
    #: runs that must end first, with their serials; runs that already ended are left out
    waits_for: tuple[After, ...] = ()


class DependencyEnded(_Event, frozen=True, kw_only=True, tag="DependencyEnded"):
    """A run that this run waited for has ended with `status`."""

    serial: int
    compute_jid: str
    compute_job_serial: int
    status: str


class TaskPlaced(_Event, frozen=True, kw_only=True, tag="TaskPlaced"):
    """The run took its resources, and an agent was assigned to the execution. Written before the op
    is sent (guarantee G2).

    boot_id: boot of the agent's machine. If that machine restarts and the execution cannot be
    found, the execution may have run before the restart. All tasks of an attempt are placed in one
    transaction. address, ports, gpus: see `roles.TaskPlace`. ahead: it has no slot yet and waits
    with its agent for one (see `TaskSlotGranted`).
    """

    token: Token
    agent_key: AgentKey
    op_id: OpId
    boot_id: str | None = None
    address: str = ""
    ports: dict[str, tuple[int, ...]] = {}
    gpus: tuple[str, ...] = ()
    ahead: bool = False


class TaskSlotGranted(_Event, frozen=True, kw_only=True, tag="TaskSlotGranted"):
    """A task that was placed ahead has a slot. Not written if its start is recorded at once."""

    token: Token


class TaskSubmitted(_Event, frozen=True, kw_only=True, tag="TaskSubmitted"):
    """The batch scheduler accepted the task with the job id in `batch`. Once for each token."""

    token: Token
    batch: BatchState


class TaskStarted(_Event, frozen=True, kw_only=True, tag="TaskStarted"):
    """A process started. pid and start_ticks identify it on this host during this boot."""

    token: Token
    pid: int
    start_ticks: int
    started_at: float
    host: str
    boot_id: str


class StopRequested(_Event, frozen=True, kw_only=True, tag="StopRequested"):
    """A user (`by`: a uid) or the supervisor (`by`: "supervisor") requested the end of the run.
    Written before the first signal. The status is final from here on.
    """

    serial: int
    reason: str
    by: str
    grace_secs: float
    note: str = ""
    req_id: str | None = None


class TaskExited(_Event, frozen=True, kw_only=True, tag="TaskExited"):
    """The exit of the command is known, but other processes of the execution are still alive. At
    most once for each token.

    The time limit stops counting here. exit: the part known so far; TaskEnded has all of it.
    """

    token: Token
    exit: ExitInfo


class LateStopRequested(_Event, frozen=True, kw_only=True, tag="LateStopRequested"):
    """A stop was requested after the commands of all live tasks had exited. At most once for each
    run.

    The result does not change, and no further attempt follows.
    """

    serial: int
    reason: str
    by: str
    note: str = ""
    req_id: str | None = None


class TaskHeld(_Event, frozen=True, kw_only=True, tag="TaskHeld"):
    """The task failed, none of its processes runs, and it keeps its resources for `secs` seconds,
    so that a user can debug it.
    """

    token: Token
    exit: ExitInfo
    secs: float
    diagnosis: Diagnosis | None = None
    mono: float | None = None
    boot_id: str | None = None


class TaskEnded(_Event, frozen=True, kw_only=True, tag="TaskEnded"):
    """No process of the execution is left. diagnosis: meaning of the exit by the exit table at that
    time; None for a success.
    """

    token: Token
    exit: ExitInfo
    diagnosis: Diagnosis | None = None


class TaskNoticed(_Event, frozen=True, kw_only=True, tag="TaskNoticed"):
    """Something around the task is not as the job asked for, which neither stops nor fails it. Once
    for each code and text (protocol.jobs.notices).
    """

    token: Token
    code: str
    text: str


class AttemptDecided(_Event, frozen=True, kw_only=True, tag="AttemptDecided"):
    """The completion policy decided the result of the attempt. Written before the remaining tasks
    are stopped, so that these stops do not count as failures.

    reason: a sentence. role, index: the task whose exit decided.
    """

    serial: int
    attempt: int
    succeeded: bool
    reason: str
    role: str | None = None
    index: int | None = None


class AttemptEnded(_Event, frozen=True, kw_only=True, tag="AttemptEnded"):
    """All tasks of the attempt have ended. retry: another attempt follows. not_retried: why no
    attempt follows although a retry policy exists.
    """

    serial: int
    attempt: int
    reason: str
    retry: Retrying | None = None
    not_retried: str | None = None


class RunEnded(_Event, frozen=True, kw_only=True, tag="RunEnded"):
    """The run has its final status. After a stop, RunEnded may come before TaskEnded: the status is
    final while the processes are still being ended.
    """

    serial: int
    status: Status
    reason: str
    error: str | None = None


class RunPurged(_Event, frozen=True, kw_only=True, tag="RunPurged"):
    """The run directory of an old run is removed. Written before the removal."""

    serial: int


class TagsChanged(_Event, frozen=True, kw_only=True, tag="TagsChanged"):
    """Tags of the job were added and removed at a user's request (`by`: a uid). No tag is in both."""

    by: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class JobFolded(_Event, frozen=True, kw_only=True, tag="JobFolded"):
    """A checkpoint that replaces all events of this job up to its own version. `at` is the time of
    the last replaced event.

    job: the folded state. events: number of replaced events. since: time of the first one. trimmed:
    the checkpoint leaves out parts of the job (older runs; the input of a purged run).
    """

    job: Job
    events: int
    since: float
    folded_at: float
    trimmed: bool = False


# ---- streams `agent/<agent key>`


class AgentStartRequested(_Event, frozen=True, kw_only=True, tag="AgentStartRequested"):
    """The start of an agent was requested. token_hash authenticates its connections."""

    agent_key: AgentKey
    token_hash: str
    attempt: int


class AgentStarted(_Event, frozen=True, kw_only=True, tag="AgentStarted"):
    """The driver started the agent. `handle` finds the agent again after a restart."""

    agent_key: AgentKey
    handle: dict[str, Any]


class AgentStartFailed(_Event, frozen=True, kw_only=True, tag="AgentStartFailed"):
    agent_key: AgentKey
    attempt: int
    reason: str


class AgentSignInNeeded(_Event, frozen=True, kw_only=True, tag="AgentSignInNeeded"):
    """The user must sign in before the agent can start. The agent was not started, and no agent got
    its token.
    """

    agent_key: AgentKey
    attempt: int
    reason: str


class AgentGone(_Event, frozen=True, kw_only=True, tag="AgentGone"):
    """The driver found neither keeper nor agent. ended: the driver itself ended them, so it is
    certain that they are gone.
    """

    agent_key: AgentKey
    reason: str
    ended: bool = False


class AgentFolded(_Event, frozen=True, kw_only=True, tag="AgentFolded"):
    """A checkpoint that replaces the events of this agent up to its own version; see JobFolded."""

    agent: AgentRecord
    events: int
    since: float
    folded_at: float


# ---- stream `system`


class SupervisorStarted(_Event, frozen=True, kw_only=True, tag="SupervisorStarted"):
    """The supervisor started. root_id: identity of the root of this log (see
    supervisor.process.root_identity); None in events of versions without it.
    """

    session: int
    pid: int
    boot_id: str
    version: str
    root_id: str | None = None


class SupervisorStopped(_Event, frozen=True, kw_only=True, tag="SupervisorStopped"):
    session: int
    reason: str


class SystemFolded(_Event, frozen=True, kw_only=True, tag="SystemFolded"):
    """A checkpoint that replaces the events of the system up to its own version. session, root_id:
    of the last start.
    """

    session: int
    root_id: str | None = None
    serial_floor: int
    events: int
    since: float
    folded_at: float


class LogCompacted(_Event, frozen=True, kw_only=True, tag="LogCompacted"):
    """Ends a compaction: the log up to `position` was rewritten, shorter. checksum: last checksum
    of the old log, in hex.

    If the head file still names that position and checksum, this last row identifies the log that
    the new file replaced. usage: of all events up to `position`, also of folded ones; None in
    a log of a version without it.
    """

    position: int
    checksum: str
    events_before: int
    events_after: int
    jobs_folded: int
    usage: tuple[UsageRow, ...] | None = None


class LogSetBack(_Event, frozen=True, kw_only=True, tag="LogSetBack"):
    """The log continues without events that it once had: a backup was restored, or damaged events
    were dropped. reason: `restored` or `repaired`.

    position: nothing is lost up to here. lost_up_to: highest position ever assigned before.
    serial_floor: no run may get a lower serial, because a lost run may have used it. witnessed,
    checksum: content of the head file (see LogCompacted).
    """

    position: int
    lost_up_to: int
    serial_floor: int
    reason: str
    witnessed: int | None = None
    checksum: str | None = None


# ---- stream `access`


class TokenCreated(_Event, frozen=True, kw_only=True, tag="TokenCreated"):
    """An API token of the user `uid` was created. secret_hash: see `protocol.api.tokens.digest`. by:
    uid of the creator, or `operator` for the holder of the server secret. parent: id of the token
    that created it.
    """

    id: str
    uid: str
    name: str
    scopes: tuple[str, ...]
    expires_at: float
    secret_hash: str
    by: str
    parent: str | None = None


class TokenRevoked(_Event, frozen=True, kw_only=True, tag="TokenRevoked"):
    """An API token is invalid from here on. by: as in TokenCreated."""

    id: str
    by: str
    reason: str = ""


# ---- stream `audit`


class ActedForUser(_Event, frozen=True, kw_only=True, tag="ActedForUser"):
    """A request of `actor` named another user, `subject`. Written before the request takes effect.

    actor_role: `admin`, `groupAdmin`, or `secretHolder` if the holder of the server secret named the
    actor. action: name of
    the route. jid: of the job that the request names. peer: address of the connection. outcome:
    `allowed`; refused requests leave no event.
    """

    actor: str
    actor_role: str
    subject: str
    action: str
    jid: str | None = None
    peer: str
    outcome: str


class ShellOpened(_Event, frozen=True, kw_only=True, tag="ShellOpened"):
    """`actor` opens a shell in a task of the user `subject`. Written before the shell starts.

    actor_role, peer: as in ActedForUser. shell: its id, shortened. task: `role/index`. program: what
    runs instead of a shell.
    """

    actor: str
    actor_role: str
    subject: str
    jid: str
    serial: int
    attempt: int
    task: str
    shell: str
    peer: str
    program: str | msgspec.UnsetType = msgspec.UNSET


class ShellClosed(_Event, frozen=True, kw_only=True, tag="ShellClosed"):
    """A shell has ended, or nobody uses it any more. reason: `exit` (code or signal), `refused` (it
    did not start), `abandoned`, `agentGone`, `supervisorStopped`.
    """

    subject: str
    jid: str
    shell: str
    reason: str
    code: int | None = None
    signal: int | None = None
    seconds: float = 0.0


AuditEvent = ActedForUser | ShellOpened | ShellClosed

JobEvent = (
    RunRequested
    | DependencyEnded
    | TaskPlaced
    | TaskSubmitted
    | TaskSlotGranted
    | TaskStarted
    | StopRequested
    | LateStopRequested
    | TaskExited
    | TaskHeld
    | TaskEnded
    | TaskNoticed
    | AttemptDecided
    | AttemptEnded
    | RunEnded
    | RunPurged
    | TagsChanged
    | JobFolded
)
AgentEvent = (
    AgentStartRequested
    | AgentStarted
    | AgentStartFailed
    | AgentSignInNeeded
    | AgentGone
    | AgentFolded
)
SystemEvent = SupervisorStarted | SupervisorStopped | SystemFolded | LogCompacted | LogSetBack
AccessEvent = TokenCreated | TokenRevoked
Event = JobEvent | AgentEvent | SystemEvent | AccessEvent | AuditEvent

#: Events that replace all earlier events of their stream. A checkpoint is the first event of its
#: stream, and its version counts the replaced events too.
CHECKPOINTS = frozenset({"JobFolded", "AgentFolded", "SystemFolded"})

#: Newest schema version of each event type; 1 if absent.
VERSIONS: dict[str, int] = {"JobFolded": 5, "LogCompacted": 2, "RunRequested": 2}
#: Types whose newest version only adds optional fields -> whether an event has one of them. An event
#: without them is written in the version before, which the previous release reads.
_HAS_ADDED: dict[str, Callable[[Any], bool]] = {
    "RunRequested": lambda e: _has_later_fields(e.spec),
    "JobFolded": lambda e: (
        e.job.tags != ()
        or (e.job.run is not None and _has_later_fields(e.job.run.spec))
        or any(map(_typed, e.job.history))
        or any(t.notices is not msgspec.UNSET for t in _tasks(e.job))
    ),
}


def _with_driver(event: dict[str, Any]) -> dict[str, Any]:
    """Set the driver to `local`, the former default, in a run without a driver."""
    run = event["job"].get("run")
    if run is not None:
        run["spec"].setdefault("driver", "local")
    return event


def _without_batch(event: dict[str, Any]) -> dict[str, Any]:
    """Version 3 added the batch state, which has a default."""
    return event


def _without_late_stop(event: dict[str, Any]) -> dict[str, Any]:
    """Version 4 added late stops and exits of commands, which have defaults."""
    return event


def _has_later_fields(spec: RunSpec) -> bool:
    added = (spec.config, spec.registry_login, spec.cloned_from, spec.profile, spec.ssh)
    return any(value is not msgspec.UNSET for value in added) or _typed(spec)


def _tasks(job: Job) -> list[Task]:
    own = [] if job.run is None else [t for a in job.run.attempts for t in a.tasks]
    return own + [t for past in job.history for t in past.live_tasks]


def _typed(run: RunSpec | PastRun) -> bool:
    """Return whether a role requests a type of GPUs."""
    return any(role.gpu_type is not msgspec.UNSET for role in run.roles)


def _without_config(event: dict[str, Any]) -> dict[str, Any]:
    """The newest version added `spec.config`, `spec.registry_login`, `spec.cloned_from`,
    `spec.profile`, `spec.ssh`, `gpuType` of roles and `notices` of tasks, which are unset by
    default, and to jobs `tags`, which are empty by default.
    """
    return event


def _without_usage(event: dict[str, Any]) -> dict[str, Any]:
    """Version 2 added the usage, which has a default."""
    return event


#: (type, version) -> function that converts the JSON object of that version to the next version.
UPCASTERS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {
    ("JobFolded", 1): _with_driver,
    ("JobFolded", 2): _without_batch,
    ("JobFolded", 3): _without_late_stop,
    ("JobFolded", 4): _without_config,
    ("RunRequested", 1): _without_config,
    ("LogCompacted", 1): _without_usage,
}

SYSTEM, ACCESS, AUDIT = "system", "access", "audit"

_encoder = msgspec.json.Encoder(order="deterministic")
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_TYPES = {str(c.__struct_config__.tag): c for c in Event.__args__}


def job_stream(jid: str) -> str:
    return "job/" + jid


def agent_stream(key: AgentKey) -> str:
    return f"agent/{key}"


def type_of(event: Event) -> str:
    return str(event.__struct_config__.tag)


def schema_of(event: Event) -> int:
    """Return the lowest schema version that holds the event."""
    type_ = type_of(event)
    newest = VERSIONS.get(type_, 1)
    has_added = _HAS_ADDED.get(type_)
    return newest if has_added is None or has_added(event) else newest - 1


def encode(event: Event) -> bytes:
    """Return the event as deterministic JSON text. A checkpoint leaves out fields that have their
    default.
    """
    if type_of(event) in CHECKPOINTS:
        return _encoder.encode({"type": type_of(event), **_lean(event)})
    return _encoder.encode(event)


def _lean(value: Any) -> Any:
    """Convert structs to objects without the fields that have their default. Dicts come from users
    and stay unchanged.
    """
    if isinstance(value, tuple):
        return [_lean(v) for v in value]
    if not isinstance(value, msgspec.Struct) or value.__struct_config__.array_like:
        return value
    return {
        name: _lean(v)
        for field, name, default in _fields(type(value))
        if (v := getattr(value, field)) != default
    }


@functools.cache
def _fields(struct: type[msgspec.Struct]) -> list[tuple[str, str, Any]]:
    """(name, name in JSON, default) of each field."""
    defaults = (
        (f, f.default_factory() if f.default_factory is not msgspec.NODEFAULT else f.default)
        for f in msgspec.structs.fields(struct)
    )
    return [(f.name, f.encode_name, default) for f, default in defaults]


def known(type_: Any, schema: Any) -> bool:
    """Return whether this version can read events of this type and schema."""
    if type_ not in _TYPES or type(schema) is not int or schema < 1:
        return False
    current = VERSIONS.get(type_, 1)
    return schema <= current and all((type_, v) in UPCASTERS for v in range(schema, current))


def decode(type_: str, schema: int, body: bytes) -> Event:
    """Return the event. Raises Refusal("unknownEvent") for an unknown type or schema, or an invalid
    body.
    """
    current = VERSIONS.get(type_, 1)
    if type_ not in _TYPES or schema > current or schema < 1:
        raise Refusal(
            "unknownEvent",
            f"the log contains an event {type_!r} version {schema}, which this version does not know",
        )
    try:
        if schema == current or (schema == current - 1 and type_ in _HAS_ADDED):
            return _decoder.decode(body)
        data = msgspec.json.decode(body)
        for version in range(schema, current):
            data = UPCASTERS[type_, version](data)
        event: Event = msgspec.convert(data, _TYPES[type_])
        return event
    except (msgspec.DecodeError, KeyError) as e:
        raise Refusal(
            "unknownEvent", f"an event {type_!r} version {schema} cannot be read: {e}"
        ) from None
