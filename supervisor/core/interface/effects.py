"""Effects that the core requests from the engine. Each has an identity and is idempotent.

Effects are performed in order, and only after the events of their decision are durable.
"""

from typing import Any, assert_never

import msgspec

from ....db.events.events import agent_stream, job_stream
from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey, OpId, Token
from ....protocol.wire.messages import Shared, TaskRun, TaskSpec
from .causes import Cause
from .timers import (
    AgentIdleDeadline,
    AgentLeaveDeadline,
    AgentReturnDeadline,
    AgentStartDeadline,
    AgentStartRetry,
    AttemptRetry,
    AvoidedResourcesRetry,
    DebugHoldDeadline,
    FollowerCheck,
    LaunchDeadline,
    QueueGiveUp,
    QueueLimit,
    ReservationDeadline,
    ReservationRetry,
    SnapshotDeadline,
    StopReminder,
    TimeLimit,
    Timer,
)


class ReplyStatus(msgspec.Struct, frozen=True):
    """Answer `handle` with the durable status of this job's run (0: the current one)."""

    handle: int
    jid: str
    serial: int = 0


class ReplyRefusal(msgspec.Struct, frozen=True):
    handle: int
    refusal: Refusal


class AgentReady(msgspec.Struct, frozen=True):
    """Tell `handle` that the agent is up and synchronised."""

    handle: int
    key: AgentKey


class StartAgent(msgspec.Struct, frozen=True):
    """Identity: key and attempt. `token` is the secret; the log has its hash."""

    key: AgentKey
    attempt: int
    token: str


class FindAgent(msgspec.Struct, frozen=True):
    key: AgentKey
    handle: dict[str, Any]


class StopAgent(msgspec.Struct, frozen=True):
    key: AgentKey
    handle: dict[str, Any]


class EvictAgent(msgspec.Struct, frozen=True):
    """Stop an idle agent, unless a call is in progress there, which is reported as EvictionRefused.
    reason: for logs and the agent.
    """

    key: AgentKey
    epoch: int
    handle: dict[str, Any]
    reason: str = "it was idle for too long"


class LaunchTask(msgspec.Struct, frozen=True):
    """Start this execution at the agent `key`, unless its token was started before. The result is
    reported.
    """

    key: AgentKey
    token: Token
    spec: TaskSpec


class LaunchGang(msgspec.Struct, frozen=True):
    """Start tasks of one attempt, with the data that they share."""

    key: AgentKey
    shared: Shared
    tasks: tuple[TaskRun, ...]


class CheckPorts(msgspec.Struct, frozen=True):
    """Check whether other processes listen on these ports of this agent's host. The answer names
    the op.
    """

    key: AgentKey
    op_id: OpId
    ports: tuple[int, ...]


class StopTask(msgspec.Struct, frozen=True):
    """Stop this execution. If it was never launched, it must never start."""

    key: AgentKey
    token: Token
    reason: str
    grace_secs: float


class ListTasks(msgspec.Struct, frozen=True):
    """Report every execution that this agent knows. The log and the agent may differ."""

    key: AgentKey


class AcknowledgeTasks(msgspec.Struct, frozen=True):
    """The ends of these executions are durable: the agent may forget them."""

    key: AgentKey
    tokens: tuple[Token, ...]


class DiscardHeldTask(msgspec.Struct, frozen=True):
    """End the hold of a failed task: everything except its evidence may be removed."""

    key: AgentKey
    token: Token


class EndConnection(msgspec.Struct, frozen=True):
    key: AgentKey
    epoch: int
    reason: str


class RemoveRunDir(msgspec.Struct, frozen=True):
    """Remove the run directory of a purged run, before a newer run uses it."""

    jid: str
    serial: int
    run_dir: str


class SetTimer(msgspec.Struct, frozen=True):
    """Identity: `timer`. Setting it again replaces the deadline. secs: monotonic seconds from now."""

    timer: Timer
    secs: float


class ClearTimer(msgspec.Struct, frozen=True):
    timer: Timer


class IncrementCounter(msgspec.Struct, frozen=True):
    """Count and log an event. `what`: name of the counter; `detail`: for the log."""

    what: str
    detail: str


TaskEffect = (
    LaunchTask | LaunchGang | CheckPorts | StopTask | ListTasks | AcknowledgeTasks | DiscardHeldTask
)
Effect = (
    ReplyStatus
    | ReplyRefusal
    | AgentReady
    | StartAgent
    | FindAgent
    | StopAgent
    | EvictAgent
    | TaskEffect
    | RemoveRunDir
    | EndConnection
    | SetTimer
    | ClearTimer
    | IncrementCounter
)


class CausedEffect(msgspec.Struct, frozen=True):
    effect: Effect
    cause: Cause


def stream_of(effect: Effect) -> str | None:
    """Return the stream of the job or agent that the effect is about. The job comes first."""
    match effect:
        case ReplyStatus(jid=jid) | RemoveRunDir(jid=jid):
            return job_stream(jid)
        case LaunchTask(token=token) | StopTask(token=token) | DiscardHeldTask(token=token):
            return job_stream(token.jid)
        case LaunchGang(tasks=tasks):
            return job_stream(tasks[0].token.jid)
        case AcknowledgeTasks(tokens=tokens):
            return job_stream(tokens[0].jid)
        case (
            AgentReady(key=key)
            | StartAgent(key=key)
            | FindAgent(key=key)
            | StopAgent(key=key)
            | EvictAgent(key=key)
            | CheckPorts(key=key)
            | ListTasks(key=key)
            | EndConnection(key=key)
        ):
            return agent_stream(key)
        case SetTimer(timer=timer) | ClearTimer(timer=timer):
            return _stream_of_timer(timer)
        case ReplyRefusal() | IncrementCounter():
            return None
        case _:
            assert_never(effect)


def _stream_of_timer(timer: Timer) -> str | None:
    match timer:
        case (
            AgentStartDeadline(key=key)
            | AgentStartRetry(key=key)
            | AgentReturnDeadline(key=key)
            | AgentIdleDeadline(key=key)
            | AgentLeaveDeadline(key=key)
            | QueueGiveUp(key=key)
            | SnapshotDeadline(key=key)
        ):
            return agent_stream(key)
        case (
            LaunchDeadline(token=token)
            | TimeLimit(token=token)
            | StopReminder(token=token)
            | DebugHoldDeadline(token=token)
        ):
            return job_stream(token.jid)
        case (
            QueueLimit(jid=jid)
            | AttemptRetry(jid=jid)
            | ReservationDeadline(jid=jid)
            | ReservationRetry(jid=jid)
            | FollowerCheck(jid=jid)
        ):
            return job_stream(jid)
        case AvoidedResourcesRetry():
            return None
        case _:
            assert_never(timer)
