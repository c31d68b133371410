"""The facts. Past tense, one frozen struct each; what is not here did not happen.

Every event has `at` (unix seconds when it was decided). Order is given by positions in the log,
never by `at`. A stored event is its JSON text with the tag `type` and the schema version `v`;
`decode` reads every version ever released.

To add an event: a struct here, a branch in `job.evolve` (or the agent's or the system's fold), a
line in `story`, and a row in tests/unit/db/events/golden/. To change one (or a value in `state`, which the
checkpoints carry): raise its version in VERSIONS and add an upcaster.
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
from .state import AgentRecord, Job, Retrying


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", rename="camel"):
    at: float


# ---- streams `job/<computeJid>`


class RunRequested(_Event, frozen=True, kw_only=True, tag="RunRequested"):
    """A run was accepted. spec.compute_job_hash is always set here. The run before it, if any, is
    history from now on.

    mono: the supervisor's monotonic clock at `at`, good for spans within the boot that is named;
    wall clocks jump.
    """

    serial: int
    spec: RunSpec
    run_dir: str
    req_id: str
    mono: float | None = None
    boot_id: str | None = None
    #: runs of which it waits for the end, their serials known; those that have ended already are
    #: not among them
    waits_for: tuple[After, ...] = ()


class DependencyEnded(_Event, frozen=True, kw_only=True, tag="DependencyEnded"):
    """A run that this one waited for is over; `status` is how."""

    serial: int
    compute_jid: str
    compute_job_serial: int
    status: str


class TaskPlaced(_Event, frozen=True, kw_only=True, tag="TaskPlaced"):
    """Slots were taken and the execution was assigned to an agent. Written before the op is sent:
    G2's first line.

    boot_id: of the agent's machine. What is nowhere to be found after a restart of that machine may
    have run before it. All tasks of an attempt are placed in one transaction. address, ports, gpus:
    see roles.Place.
    """

    token: Token
    agent_key: AgentKey
    op_id: OpId
    boot_id: str | None = None
    address: str = ""
    ports: dict[str, tuple[int, ...]] = {}
    gpus: tuple[str, ...] = ()


class TaskSubmitted(_Event, frozen=True, kw_only=True, tag="TaskSubmitted"):
    """A batch scheduler has accepted it, under the number that `batch` has. Once for each token."""

    token: Token
    batch: BatchState


class TaskStarted(_Event, frozen=True, kw_only=True, tag="TaskStarted"):
    """A process started. pid and start_ticks name it on the machine and boot named here."""

    token: Token
    pid: int
    start_ticks: int
    started_at: float
    host: str
    boot_id: str


class StopRequested(_Event, frozen=True, kw_only=True, tag="StopRequested"):
    """Somebody (`by`: a uid, or "supervisor") wants the run to end. Written before the first
    signal; the status is final from here.
    """

    serial: int
    reason: str
    by: str
    grace_secs: float
    note: str = ""
    req_id: str | None = None


class TaskExited(_Event, frozen=True, kw_only=True, tag="TaskExited"):
    """The command's own exit is known, and something of the execution is still there. At most once
    for each token.

    From here on its time limit is not counted. exit: as far as it is known; TaskEnded has all of
    it.
    """

    token: Token
    exit: ExitInfo


class LateStopRequested(_Event, frozen=True, kw_only=True, tag="LateStopRequested"):
    """Somebody wanted the run to end when the commands of all its live tasks had exited. At most
    once for each run.

    It does not change the result; no other attempt follows.
    """

    serial: int
    reason: str
    by: str
    note: str = ""
    req_id: str | None = None


class TaskHeld(_Event, frozen=True, kw_only=True, tag="TaskHeld"):
    """It failed, nothing of it runs any more, and it keeps what it holds for `secs`, so that
    somebody can look at it.
    """

    token: Token
    exit: ExitInfo
    secs: float
    diagnosis: Diagnosis | None = None
    mono: float | None = None
    boot_id: str | None = None


class TaskEnded(_Event, frozen=True, kw_only=True, tag="TaskEnded"):
    """Nothing of the execution is left. diagnosis: what the exit means by the table of that day;
    None for a success.
    """

    token: Token
    exit: ExitInfo
    diagnosis: Diagnosis | None = None


class AttemptDecided(_Event, frozen=True, kw_only=True, tag="AttemptDecided"):
    """By the completion policy it is known what the attempt comes to. Written before the other
    tasks are stopped: they did not fail.

    reason: a sentence. role, index: the task whose end decided it.
    """

    serial: int
    attempt: int
    succeeded: bool
    reason: str
    role: str | None = None
    index: int | None = None


class AttemptEnded(_Event, frozen=True, kw_only=True, tag="AttemptEnded"):
    """All tasks of the attempt are over. retry: another one follows; not_retried: why none does,
    where one might be expected.
    """

    serial: int
    attempt: int
    reason: str
    retry: Retrying | None = None
    not_retried: str | None = None


class RunEnded(_Event, frozen=True, kw_only=True, tag="RunEnded"):
    """The run has its final status. With a stop it may come before TaskEnded: the status is true,
    its processes are being ended.
    """

    serial: int
    status: str
    reason: str
    error: str | None = None


class RunPurged(_Event, frozen=True, kw_only=True, tag="RunPurged"):
    """The run ended long ago, and its run directory is not kept any longer. Written before the
    directory goes.
    """

    serial: int


class JobFolded(_Event, frozen=True, kw_only=True, tag="JobFolded"):
    """A checkpoint: stands for all events of this job up to its own version. `at` is the time of
    the last of them.

    job: what they add up to. events: how many they were; since: time of the first. trimmed: parts
    of the job (older runs; of a purged run its input) are not in it any more.
    """

    job: Job
    events: int
    since: float
    folded_at: float
    trimmed: bool = False


# ---- streams `agent/<agent key>`


class AgentStartRequested(_Event, frozen=True, kw_only=True, tag="AgentStartRequested"):
    """An agent is being started; token_hash authenticates its connections."""

    agent_key: AgentKey
    token_hash: str
    attempt: int


class AgentStarted(_Event, frozen=True, kw_only=True, tag="AgentStarted"):
    """The driver started it. The handle finds it again after a restart."""

    agent_key: AgentKey
    handle: dict[str, Any]


class AgentStartFailed(_Event, frozen=True, kw_only=True, tag="AgentStartFailed"):
    agent_key: AgentKey
    attempt: int
    reason: str


class AgentSignInNeeded(_Event, frozen=True, kw_only=True, tag="AgentSignInNeeded"):
    """Its user has to sign in before it can be started: it was not, and its token was given to
    nobody.
    """

    agent_key: AgentKey
    attempt: int
    reason: str


class AgentGone(_Event, frozen=True, kw_only=True, tag="AgentGone"):
    """The driver found that keeper and agent are not there any more. ended: it had ended them
    itself, so there is no mistake.
    """

    agent_key: AgentKey
    reason: str
    ended: bool = False


class AgentFolded(_Event, frozen=True, kw_only=True, tag="AgentFolded"):
    """A checkpoint: stands for the events of this agent up to its own version, as JobFolded does
    for a job's.
    """

    agent: AgentRecord
    events: int
    since: float
    folded_at: float


# ---- stream `system`


class SupervisorStarted(_Event, frozen=True, kw_only=True, tag="SupervisorStarted"):
    """root_id: the identity of the root that the log belongs to (see supervisor.root_identity);
    None from versions that had none.
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
    """A checkpoint: stands for the events of the system up to its own version. session, root_id: of
    the last one that started.
    """

    session: int
    root_id: str | None = None
    serial_floor: int
    events: int
    since: float
    folded_at: float


class LogCompacted(_Event, frozen=True, kw_only=True, tag="LogCompacted"):
    """Closes a compaction: the log up to `position` was written anew, shorter. checksum: the last
    one of the old log, hex.

    As the last row of a log whose witness names that position and checksum, it says which log this
    one took the place of.
    """

    position: int
    checksum: str
    events_before: int
    events_after: int
    jobs_folded: int


class LogSetBack(_Event, frozen=True, kw_only=True, tag="LogSetBack"):
    """The log goes on without events that it had: a backup was restored, or damaged events were
    left out. reason: `restored` or `repaired`.

    position: up to which nothing was lost; `lost_up_to`: the highest that had been given away
    before. No run may get a serial below `serial_floor`: one like it may have been used in what is
    lost. witnessed, checksum: as the witness had it (see LogCompacted).
    """

    position: int
    lost_up_to: int
    serial_floor: int
    reason: str
    witnessed: int | None = None
    checksum: str | None = None


JobEvent = (
    RunRequested
    | DependencyEnded
    | TaskPlaced
    | TaskSubmitted
    | TaskStarted
    | StopRequested
    | LateStopRequested
    | TaskExited
    | TaskHeld
    | TaskEnded
    | AttemptDecided
    | AttemptEnded
    | RunEnded
    | RunPurged
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
Event = JobEvent | AgentEvent | SystemEvent

#: Events that stand for all before them in their stream, of which they are the first; their version
#: counts those as well.
CHECKPOINTS = frozenset({"JobFolded", "AgentFolded", "SystemFolded"})

#: Schema version written for each event type; absent means 1.
VERSIONS: dict[str, int] = {"JobFolded": 4}


def _with_driver(event: dict[str, Any]) -> dict[str, Any]:
    """A run whose driver is left out is one of the driver local: it was the default once, and there
    is none any more.
    """
    run = event["job"].get("run")
    if run is not None:
        run["spec"].setdefault("driver", "local")
    return event


def _without_batch(event: dict[str, Any]) -> dict[str, Any]:
    """Nothing was given to a batch scheduler yet: what is new has its default."""
    return event


def _without_late_stop(event: dict[str, Any]) -> dict[str, Any]:
    """No stop was kept that came after the exits of all tasks: the new fields have their defaults."""
    return event


#: (type, version) -> function from the JSON object of that version to the object of the next.
UPCASTERS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {
    ("JobFolded", 1): _with_driver,
    ("JobFolded", 2): _without_batch,
    ("JobFolded", 3): _without_late_stop,
}

SYSTEM = "system"

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
    return VERSIONS.get(type_of(event), 1)


def encode(event: Event) -> bytes:
    """JSON text, the same bytes for the same event. A checkpoint, made to save room, leaves out
    what reading it supplies.
    """
    if type_of(event) in CHECKPOINTS:
        return _encoder.encode({"type": type_of(event), **_lean(event)})
    return _encoder.encode(event)


def _lean(value: Any) -> Any:
    """Structs without the fields that have their defaults. What users gave (dicts) is as it is."""
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
    made = (
        (f, f.default_factory() if f.default_factory is not msgspec.NODEFAULT else f.default)
        for f in msgspec.structs.fields(struct)
    )
    return [(f.name, f.encode_name, default) for f, default in made]


def known(type_: Any, schema: Any) -> bool:
    """Can this version read events of this type and schema?"""
    if type_ not in _TYPES or type(schema) is not int or schema < 1:
        return False
    current = VERSIONS.get(type_, 1)
    return schema <= current and all((type_, v) in UPCASTERS for v in range(schema, current))


def decode(type_: str, schema: int, body: bytes) -> Event:
    """The event; raises Refusal("unknownEvent") for a type or schema this version does not know, or
    a body that does not fit.
    """
    current = VERSIONS.get(type_, 1)
    if type_ not in _TYPES or schema > current or schema < 1:
        raise Refusal(
            "unknownEvent",
            f"the log holds an event {type_!r} version {schema}, which this version does not know",
        )
    try:
        if schema == current:
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
