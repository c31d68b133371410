"""What the core asks the shell for. Imperative; each has an identity and may be asked again without harm.

Effects are performed only after the events of their decision are durable, in order.
"""

from typing import Any

import msgspec

from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey
from ...protocol.messages import ToAgent


class ReplyStatus(msgspec.Struct, frozen=True):
    """Answer `handle` with the durable status of this job's run (0: the current one)."""

    handle: int
    jid: str
    serial: int = 0


class ReplyRefusal(msgspec.Struct, frozen=True):
    handle: int
    refusal: Refusal


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


class SendOp(msgspec.Struct, frozen=True):
    """Send on the live connection of this agent; without one it is dropped (a snapshot will show the difference)."""

    key: AgentKey
    message: ToAgent


class EndConnection(msgspec.Struct, frozen=True):
    key: AgentKey
    epoch: int
    reason: str


class SetTimer(msgspec.Struct, frozen=True):
    """Identity: `timer`. Setting it again moves it. secs are monotonic seconds from now."""

    timer: tuple[Any, ...]
    secs: float


class ClearTimer(msgspec.Struct, frozen=True):
    timer: tuple[Any, ...]


class Count(msgspec.Struct, frozen=True):
    """Something was refused or noticed; `what` is a counter's name, `detail` goes to the log."""

    what: str
    detail: str


Effect = ReplyStatus | ReplyRefusal | StartAgent | FindAgent | StopAgent | SendOp | EndConnection | SetTimer | ClearTimer | Count
