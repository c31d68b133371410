"""Inputs of the core, one frozen struct each. `Input` is the union; `jids` and `agent_key` name the
state that must be loaded before the decision.
"""

from typing import Any

import msgspec

from ....drivers.contracts import FoundState
from ....protocol.api.requests import JobTag, RunCancel, RunRelease, RunSimulation
from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey
from ....protocol.wire.messages import Alive, RunStatusUpdate, Snapshot, ToSupervisor
from .causes import Cause
from .drains import Drains
from .grants import Grants
from .timers import AgentTimer, FollowerCheck, Timer


class Now(msgspec.Struct, frozen=True):
    """Time of a decision. wall: unix seconds; mono: seconds of the monotonic clock; entropy: fresh
    random bytes.
    """

    wall: float
    mono: float
    boot_id: str
    entropy: bytes


class Submit(msgspec.Struct, frozen=True):
    """A run request. `handle` identifies the caller; `known` is the result of an earlier request
    with the same reqId.

    taken: another kind of request used this reqId. refused: why the user may start no new run now;
    a run that exists is not affected.
    """

    handle: int
    request: RunSimulation
    run_dir: str
    known: tuple[str, int] | None = None
    taken: bool = False
    refused: Refusal | None = None


class Cancel(msgspec.Struct, frozen=True):
    handle: int
    request: RunCancel
    known: tuple[str, int] | None = None
    taken: bool = False


class ReleaseHold(msgspec.Struct, frozen=True):
    """Tasks of this run that are held for debugging are no longer needed."""

    handle: int
    request: RunRelease


class ChangeTags(msgspec.Struct, frozen=True):
    """A user adds tags to a job or removes them."""

    handle: int
    request: JobTag


class RequireAgent(msgspec.Struct, frozen=True):
    """A reader or a call needs this agent. `handle` gets an answer when the agent is up, or a
    refusal. The request is not stored.
    """

    handle: int
    key: AgentKey


class AgentStopRequested(msgspec.Struct, frozen=True):
    """A user or operator asks to stop an agent. `handle` gets an answer once the stop was
    requested.
    """

    handle: int
    key: AgentKey


class Purge(msgspec.Struct, frozen=True):
    """Purge this run if it ended before `ended_before` (wall time)."""

    jid: str
    serial: int
    ended_before: float


class AgentConnected(msgspec.Struct, frozen=True):
    """An authenticated connection sent `alive`. Epochs only grow."""

    key: AgentKey
    epoch: int
    alive: Alive


class AgentMessage(msgspec.Struct, frozen=True):
    key: AgentKey
    epoch: int
    message: ToSupervisor


class FramesLost(msgspec.Struct, frozen=True):
    """Frames of this connection were lost."""

    key: AgentKey
    epoch: int


class AgentDisconnected(msgspec.Struct, frozen=True):
    key: AgentKey
    epoch: int


class DriverStarted(msgspec.Struct, frozen=True):
    key: AgentKey
    attempt: int
    handle: dict[str, Any]


class DriverFailed(msgspec.Struct, frozen=True):
    key: AgentKey
    attempt: int
    reason: str


class DriverFound(msgspec.Struct, frozen=True):
    """sign_in: the state is unknown until the user signs in;
    `detail` says so.
    """

    key: AgentKey
    state: FoundState
    detail: str
    sign_in: bool = False


class SignInNeeded(msgspec.Struct, frozen=True):
    """Nothing can be done with this agent before its user signs in.

    attempt: number of the requested start; None if a stop was requested.
    """

    key: AgentKey
    attempt: int | None
    sentence: str


class SignedIn(msgspec.Struct, frozen=True):
    """The user of this agent has signed in: it can be looked for, started and stopped."""

    key: AgentKey


class SignedOut(msgspec.Struct, frozen=True):
    """The user of this agent has signed out, and the agent has ended completely."""

    key: AgentKey


class DriverStopped(msgspec.Struct, frozen=True):
    key: AgentKey


class HostChanged(msgspec.Struct, frozen=True):
    """A host of a driver with several hosts is up or down. This is a notice: without it, a host
    counts as up.
    """

    driver: str
    host: str
    up: bool
    detail: str


class DrainsChanged(msgspec.Struct, frozen=True):
    """Hosts, or the site, get no new runs, or get them again. This is a notice. drains: all that
    there are now.
    """

    drains: Drains


class GrantsChanged(msgspec.Struct, frozen=True):
    """The shard has other parts of the limits of its site, or the same. This is a notice. grants: all that
    there are now. `number` gets an answer once all earlier decisions are durable.
    """

    grants: Grants
    number: int


class EvictionRefused(msgspec.Struct, frozen=True):
    """The agent was to be evicted, but owes an answer to a call."""

    key: AgentKey
    epoch: int


class TimerFired(msgspec.Struct, frozen=True):
    """`timer`: the value given to SetTimer."""

    """cause: of the effect that set the timer; None if it is not known."""

    timer: Timer
    cause: Cause | None = None


class Restarted(msgspec.Struct, frozen=True):
    """The world was folded from the log: emit all outstanding effects."""


Input = (
    Submit
    | Cancel
    | ReleaseHold
    | ChangeTags
    | RequireAgent
    | AgentStopRequested
    | Purge
    | AgentConnected
    | AgentMessage
    | FramesLost
    | AgentDisconnected
    | DriverStarted
    | DriverFailed
    | DriverFound
    | DriverStopped
    | SignInNeeded
    | SignedIn
    | SignedOut
    | HostChanged
    | DrainsChanged
    | GrantsChanged
    | EvictionRefused
    | TimerFired
    | Restarted
)


def cancel_receipt(req_id: str) -> str:
    """Return the receipt id of a cancel with this reqId. No reqId contains a slash, so it never
    equals the id of a submission.
    """
    return "cancel/" + req_id


def jids(input_: Input) -> tuple[str, ...]:
    """Return the jobs that must be in the world before this input is decided."""
    match input_:
        case Submit(request=request):
            spec = request.run
            return (
                f"{spec.uid}-{spec.simulation_id}-{spec.compute_model}",
                *(a.compute_jid for a in spec.after),
            )
        case Cancel(request=request) | ReleaseHold(request=request):
            return (request.compute_jid,)
        case ChangeTags(request=tagging):
            return (tagging.compute_jid,)
        case TimerFired(timer=FollowerCheck(jid)):
            return (jid,)
        case Purge(jid=jid):
            return (jid,)
        case AgentMessage(message=RunStatusUpdate(execution=execution)):
            return (execution.token.jid,)
        case AgentMessage(message=Snapshot(executions=executions)):
            return tuple(e.token.jid for e in executions)
        case _:
            return ()


def agent_key(input_: Input) -> AgentKey | None:
    """Return the agent whose record must be in the world before this input is decided."""
    match input_:
        case TimerFired(timer=timer):
            return timer.key if isinstance(timer, AgentTimer) else None
        case (
            Submit()
            | Cancel()
            | ReleaseHold()
            | ChangeTags()
            | Purge()
            | HostChanged()
            | DrainsChanged()
            | GrantsChanged()
            | Restarted()
        ):
            return None
        case _:
            return input_.key


def cause(input_: Input) -> Cause:
    """Return the cause of effects that follow from this input and not from an event."""
    if isinstance(input_, TimerFired) and input_.cause is not None:
        return input_.cause
    return Cause(None, type(input_).__name__)


def refusal_handle(input_: Input) -> int | None:
    """Return the handle of the caller that gets the refusal if this input fails."""
    match input_:
        case (
            Submit()
            | Cancel()
            | ReleaseHold()
            | ChangeTags()
            | RequireAgent()
            | AgentStopRequested()
        ):
            return input_.handle
        case _:
            return None
