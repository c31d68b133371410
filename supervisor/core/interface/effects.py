"""What the core asks the shell for. Imperative; each has an identity and may be asked again without
harm.

Effects are performed only after the events of their decision are durable, in order.
"""

from typing import Any

import msgspec

from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey, OpId, Token
from ....protocol.wire.messages import Shared, TaskRun, TaskSpec


class ReplyStatus(msgspec.Struct, frozen=True):
    """Answer `handle` with the durable status of this job's run (0: the current one)."""

    handle: int
    jid: str
    serial: int = 0


class ReplyRefusal(msgspec.Struct, frozen=True):
    handle: int
    refusal: Refusal


class AgentReady(msgspec.Struct, frozen=True):
    """Tell `handle` that the agent it wanted is up and believed."""

    handle: int
    key: AgentKey


class StartAgent(msgspec.Struct, frozen=True):
    """Identity: key and attempt. `token` is the secret whose hash is in the log."""

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
    """Nobody needs this agent: end it, unless a call is under way there, which is told as
    AgentBusy. reason: for logs and the agent.
    """

    key: AgentKey
    epoch: int
    handle: dict[str, Any]
    reason: str = "nobody has needed it for long"


class LaunchTask(msgspec.Struct, frozen=True):
    """Start this execution at the place `key`, unless its token was started before. What comes of
    it is reported.
    """

    key: AgentKey
    token: Token
    spec: TaskSpec


class LaunchGang(msgspec.Struct, frozen=True):
    """The same for tasks of one attempt, with what they share."""

    key: AgentKey
    shared: Shared
    tasks: tuple[TaskRun, ...]


class CheckPorts(msgspec.Struct, frozen=True):
    """Is anybody listening on these ports at this place? The answer names the op."""

    key: AgentKey
    op_id: OpId
    ports: tuple[int, ...]


class StopTask(msgspec.Struct, frozen=True):
    """End this execution; one that was never launched is never to be."""

    key: AgentKey
    token: Token
    reason: str
    grace_secs: float


class ListTasks(msgspec.Struct, frozen=True):
    """Report every execution that is known at this place: the log and the place may differ."""

    key: AgentKey


class AcknowledgeTasks(msgspec.Struct, frozen=True):
    """The ends of these executions are durable: the place may forget them."""

    key: AgentKey
    tokens: tuple[Token, ...]


class DiscardHeldTask(msgspec.Struct, frozen=True):
    """A failed task is not kept for anybody to look at any more: what the place has of it, beside
    its evidence, may go.
    """

    key: AgentKey
    token: Token


class EndConnection(msgspec.Struct, frozen=True):
    key: AgentKey
    epoch: int
    reason: str


class RemoveRunDir(msgspec.Struct, frozen=True):
    """Take the run directory of a purged run away, before anything of a newer run is in it."""

    jid: str
    serial: int
    run_dir: str


class SetTimer(msgspec.Struct, frozen=True):
    """Identity: `timer`. Setting it again moves it. secs are monotonic seconds from now."""

    timer: tuple[Any, ...]
    secs: float


class ClearTimer(msgspec.Struct, frozen=True):
    timer: tuple[Any, ...]


class IncrementCounter(msgspec.Struct, frozen=True):
    """Something was refused or noticed; `what` is a counter's name, `detail` goes to the log."""

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
