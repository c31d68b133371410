"""Timers that the core sets, one frozen struct each. `Timer` is the union.

A timer is its own identity: setting an equal one again replaces the deadline. Timers of different
types are never equal, whatever their fields are. A timer that fires late is harmless, because the
core compares its fields with the current state.
"""

import msgspec

from ....protocol.ids import AgentKey, Token

# ---- of an agent


class AgentStartDeadline(msgspec.Struct, frozen=True, tag=True):
    """The agent has not connected since this attempt was requested, or its stop."""

    key: AgentKey
    attempt: int


class AgentStartRetry(msgspec.Struct, frozen=True, tag=True):
    """The pause after this failed attempt is over."""

    key: AgentKey
    attempt: int


class AgentReturnDeadline(msgspec.Struct, frozen=True, tag=True):
    """An agent that is alive according to its driver has not connected."""

    key: AgentKey


class AgentIdleDeadline(msgspec.Struct, frozen=True, tag=True):
    """The agent was idle for too long."""

    key: AgentKey


class AgentLeaveDeadline(msgspec.Struct, frozen=True, tag=True):
    """An evicted agent has not ended."""

    key: AgentKey


class HoursCheck(msgspec.Struct, frozen=True, tag=True):
    """Runs of this agent wait because their user has used up the hours of a month."""

    key: AgentKey


class QueueGiveUp(msgspec.Struct, frozen=True, tag=True):
    """More queued runs of an agent that cannot be started must end: those with a submission number
    below `before`.
    """

    key: AgentKey
    before: int
    reason: str


class SnapshotDeadline(msgspec.Struct, frozen=True, tag=True):
    """The first snapshot of this connection is missing."""

    key: AgentKey
    epoch: int


# ---- of a task


class LaunchDeadline(msgspec.Struct, frozen=True, tag=True):
    """The launch was not confirmed."""

    token: Token


class TimeLimit(msgspec.Struct, frozen=True, tag=True):
    """The task should have ended at its time limit."""

    token: Token


class StopReminder(msgspec.Struct, frozen=True, tag=True):
    """The end of a task that must stop was not reported."""

    token: Token


class DebugHoldDeadline(msgspec.Struct, frozen=True, tag=True):
    """The debug hold of a failed task is over."""

    token: Token


# ---- of a run


class QueueLimit(msgspec.Struct, frozen=True, tag=True):
    """The run waited for too long."""

    jid: str
    serial: int


class AttemptRetry(msgspec.Struct, frozen=True, tag=True):
    """The pause before the next attempt is over."""

    jid: str
    serial: int


class ReservationDeadline(msgspec.Struct, frozen=True, tag=True):
    """A gang holds all its resources and is not placed."""

    jid: str
    serial: int


class ReservationRetry(msgspec.Struct, frozen=True, tag=True):
    """The pause of a gang that released its resources is over."""

    jid: str
    serial: int


# ---- of a job and of a driver


class FollowerCheck(msgspec.Struct, frozen=True, tag=True):
    """A run of this job has ended, and other runs wait for it."""

    jid: str


class NodePoolRetry(msgspec.Struct, frozen=True, tag=True):
    """Avoided ports and addresses of this driver's hosts may be free again."""

    driver: str


AgentTimer = (
    AgentStartDeadline
    | AgentStartRetry
    | AgentReturnDeadline
    | AgentIdleDeadline
    | AgentLeaveDeadline
    | HoursCheck
    | QueueGiveUp
    | SnapshotDeadline
)
TaskTimer = LaunchDeadline | TimeLimit | StopReminder | DebugHoldDeadline
RunTimer = QueueLimit | AttemptRetry | ReservationDeadline | ReservationRetry
Timer = AgentTimer | TaskTimer | RunTimer | FollowerCheck | NodePoolRetry
