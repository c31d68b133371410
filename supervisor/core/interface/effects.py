"""Effects that the core requests from the engine. Each has an identity and is idempotent.

Effects are performed in order, and only after the events of their decision are durable.
"""

from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec

from ....db.events.events import agent_stream, job_stream
from ....protocol.errors import Refusal
from ....protocol.grants import Use
from ....protocol.ids import AgentKey, OpId, Token
from ....protocol.wire.messages import Shared, SlotUse, TaskRun, TaskSpec
from .causes import Cause
from .timers import (
    AgentTimer,
    FollowerCheck,
    NodePoolRetry,
    RunTimer,
    TaskTimer,
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
    #: None: the agent does not know slots, or the run takes no part in them
    slot: SlotUse | None = None


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
    """Remove the run directory of a purged run, before a newer run uses it, and the evidence of its
    executions.
    """

    jid: str
    serial: int
    run_dir: str
    executions: tuple[tuple[AgentKey, Token], ...] = ()


class GrantsApplied(msgspec.Struct, frozen=True):
    """The limits of `GrantsChanged` with this number are in effect, and everything decided before is
    durable. use: at that time, by limit.
    """

    number: int
    use: Mapping[str, Use]


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
    | GrantsApplied
    | SetTimer
    | ClearTimer
    | IncrementCounter
)


class CausedEffect(msgspec.Struct, frozen=True):
    effect: Effect
    cause: Cause


def stream_of(effect: Effect) -> str | None:
    """Return the stream of the job or agent that the effect is about. The job comes first."""
    # by type, because a match over this many structs takes several microseconds
    return _STREAMS[type(effect)](effect)


def _of_timer(about: Any) -> str | None:
    return _STREAMS[type(about.timer)](about.timer)


def _of_job(about: Any) -> str:
    return job_stream(about.jid)


def _of_token(about: Any) -> str:
    return job_stream(about.token.jid)


def _of_agent(about: Any) -> str:
    return agent_stream(about.key)


def _of_none(about: Any) -> None:
    return None


#: For each type of effect and timer, the function that returns the stream of its job or agent.
_STREAMS: Mapping[type, Callable[[Any], str | None]] = {
    **dict.fromkeys((ReplyStatus, RemoveRunDir), _of_job),
    **dict.fromkeys((LaunchTask, StopTask, DiscardHeldTask), _of_token),
    LaunchGang: lambda effect: job_stream(effect.tasks[0].token.jid),
    AcknowledgeTasks: lambda effect: job_stream(effect.tokens[0].jid),
    **dict.fromkeys((AgentReady, StartAgent, FindAgent, StopAgent, EvictAgent), _of_agent),
    **dict.fromkeys((CheckPorts, ListTasks, EndConnection), _of_agent),
    **dict.fromkeys((SetTimer, ClearTimer), _of_timer),
    **dict.fromkeys((ReplyRefusal, GrantsApplied, IncrementCounter), _of_none),
    **dict.fromkeys(get_args(AgentTimer), _of_agent),
    **dict.fromkeys(get_args(TaskTimer), _of_token),
    **dict.fromkeys((*get_args(RunTimer), FollowerCheck), _of_job),
    NodePoolRetry: _of_none,
}
