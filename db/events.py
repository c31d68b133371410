"""The facts. Past tense, one frozen struct each; what is not here did not happen.

Every event has `at` (unix seconds when it was decided). Order is given by positions in the log, never by `at`.
A stored event is its JSON text with the tag `type` and the schema version `v`; `decode` reads every version ever released.

To add an event: a struct here, a branch in `job.evolve` (or the agent's or the system's fold), a line in `story`, and a
row in tests/db/golden/. To change one: raise its version in VERSIONS and add an upcaster.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from ..protocol.errors import Refusal
from ..protocol.exits import ExitInfo
from ..protocol.ids import AgentKey, OpId, Token
from ..protocol.requests import RunSpec


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", rename="camel"):
    at: float


# ---- streams `job/<computeJid>`


class RunRequested(_Event, frozen=True, kw_only=True, tag="RunRequested"):
    """A run was accepted. spec.compute_job_hash is always set here. The run before it, if any, is history from now on.

    mono: the supervisor's monotonic clock at `at`, good for spans within the boot that is named; wall clocks jump.
    """

    serial: int
    spec: RunSpec
    run_dir: str
    req_id: str
    mono: float | None = None
    boot_id: str | None = None


class TaskPlaced(_Event, frozen=True, kw_only=True, tag="TaskPlaced"):
    """Slots were taken and the execution was assigned to an agent. Written before the op is sent: G2's first line."""

    token: Token
    agent_key: AgentKey
    op_id: OpId


class TaskStarted(_Event, frozen=True, kw_only=True, tag="TaskStarted"):
    """A process started. pid and start_ticks name it on the machine and boot named here."""

    token: Token
    pid: int
    start_ticks: int
    started_at: float
    host: str
    boot_id: str


class StopRequested(_Event, frozen=True, kw_only=True, tag="StopRequested"):
    """Somebody (`by`: a uid, or "supervisor") wants the run to end. Written before the first signal; the status is final from here."""

    serial: int
    reason: str
    by: str
    grace_secs: float
    note: str = ""
    req_id: str | None = None


class TaskEnded(_Event, frozen=True, kw_only=True, tag="TaskEnded"):
    """Nothing of the execution is left."""

    token: Token
    exit: ExitInfo


class AttemptEnded(_Event, frozen=True, kw_only=True, tag="AttemptEnded"):
    """All tasks of the attempt are over."""

    serial: int
    attempt: int
    reason: str


class RunEnded(_Event, frozen=True, kw_only=True, tag="RunEnded"):
    """The run has its final status. With a stop it may come before TaskEnded: the status is true, its processes are being ended."""

    serial: int
    status: str
    reason: str
    error: str | None = None


class RunPurged(_Event, frozen=True, kw_only=True, tag="RunPurged"):
    """The run ended long ago, and its run directory is not kept any longer. Written before the directory goes."""

    serial: int


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


class AgentGone(_Event, frozen=True, kw_only=True, tag="AgentGone"):
    """The driver found that keeper and agent are not there any more."""

    agent_key: AgentKey
    reason: str


# ---- stream `system`


class SupervisorStarted(_Event, frozen=True, kw_only=True, tag="SupervisorStarted"):
    session: int
    pid: int
    boot_id: str
    version: str


class SupervisorStopped(_Event, frozen=True, kw_only=True, tag="SupervisorStopped"):
    session: int
    reason: str


JobEvent = RunRequested | TaskPlaced | TaskStarted | StopRequested | TaskEnded | AttemptEnded | RunEnded | RunPurged
AgentEvent = AgentStartRequested | AgentStarted | AgentStartFailed | AgentGone
SystemEvent = SupervisorStarted | SupervisorStopped
Event = JobEvent | AgentEvent | SystemEvent

#: Schema version written for each event type; absent means 1.
VERSIONS: dict[str, int] = {}
#: (type, version) -> function from the JSON object of that version to the object of the next.
UPCASTERS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}

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
    """JSON text, the same bytes for the same event."""
    return _encoder.encode(event)


def known(type_: Any, schema: Any) -> bool:
    """Can this version read events of this type and schema?"""
    if type_ not in _TYPES or type(schema) is not int or schema < 1:
        return False
    current = VERSIONS.get(type_, 1)
    return schema <= current and all((type_, v) in UPCASTERS for v in range(schema, current))


def decode(type_: str, schema: int, body: bytes) -> Event:
    """The event; raises Refusal("unknownEvent") for a type or schema this version does not know, or a body that does not fit."""
    current = VERSIONS.get(type_, 1)
    if type_ not in _TYPES or schema > current or schema < 1:
        raise Refusal("unknownEvent", f"the log holds an event {type_!r} version {schema}, which this version does not know")
    try:
        if schema == current:
            return _decoder.decode(body)
        data = msgspec.json.decode(body)
        for version in range(schema, current):
            data = UPCASTERS[type_, version](data)
        event: Event = msgspec.convert(data, _TYPES[type_])
        return event
    except (msgspec.DecodeError, KeyError) as e:
        raise Refusal("unknownEvent", f"an event {type_!r} version {schema} cannot be read: {e}") from None
