"""What the core is told. One frozen struct each; `Input` is the union, `jids` says which jobs must
be at hand to decide.
"""

from typing import Any

import msgspec

from ....protocol.api.requests import RunCancel, RunRelease, RunSimulation
from ....protocol.ids import AgentKey
from ....protocol.wire.messages import Alive, RunStatusUpdate, Snapshot, ToSupervisor


class Now(msgspec.Struct, frozen=True):
    """The moment of a decision. wall: unix seconds; mono: seconds of the monotonic clock; entropy:
    fresh random bytes.
    """

    wall: float
    mono: float
    boot_id: str
    entropy: bytes


class Submit(msgspec.Struct, frozen=True):
    """A run was asked for. `handle` names who waits for the reply; `known` is where the same reqId
    led to before.

    taken: another kind of request had this reqId.
    """

    handle: int
    request: RunSimulation
    run_dir: str
    known: tuple[str, int] | None = None
    taken: bool = False


class Cancel(msgspec.Struct, frozen=True):
    handle: int
    request: RunCancel
    known: tuple[str, int] | None = None
    taken: bool = False


class ReleaseHold(msgspec.Struct, frozen=True):
    """Tasks of this run that are kept for debugging are not needed any more."""

    handle: int
    request: RunRelease


class RequireAgent(msgspec.Struct, frozen=True):
    """A reader or a call needs this agent to be up; `handle` is told when it is, or why it cannot
    be. Nothing of it is kept.
    """

    handle: int
    key: AgentKey


class AgentStopRequested(msgspec.Struct, frozen=True):
    """Somebody asks for the end of an agent; `handle` is told whether it was told to end."""

    handle: int
    key: AgentKey


class Purge(msgspec.Struct, frozen=True):
    """Runs that ended before `ended_before` (wall time) are not to be kept: is this one of them?"""

    jid: str
    serial: int
    ended_before: float


class AgentConnected(msgspec.Struct, frozen=True):
    """An authenticated connection said `alive`. Epochs only grow."""

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
    """state: alive, gone or unknown. sign_in: it cannot be known before its user has signed in;
    `detail` says so.
    """

    key: AgentKey
    state: str
    detail: str
    sign_in: bool = False


class SignInNeeded(msgspec.Struct, frozen=True):
    """Nothing can be done about this agent before its user has signed in.

    attempt: of the start that was asked for; None: it was to be ended.
    """

    key: AgentKey
    attempt: int | None
    sentence: str


class SignedIn(msgspec.Struct, frozen=True):
    """The user of this agent has signed in: it can be looked for, started and ended."""

    key: AgentKey


class SignedOut(msgspec.Struct, frozen=True):
    """The user of this agent has signed out, and nothing of the agent is left."""

    key: AgentKey


class DriverStopped(msgspec.Struct, frozen=True):
    key: AgentKey


class HostChanged(msgspec.Struct, frozen=True):
    """A host of a driver with several can be asked, or cannot. A notice: who is told nothing takes
    it for up.
    """

    driver: str
    host: str
    up: bool
    detail: str


class EvictionRefused(msgspec.Struct, frozen=True):
    """It was to be dismissed, and somebody waits for an answer of it."""

    key: AgentKey
    epoch: int


class TimerFired(msgspec.Struct, frozen=True):
    """`timer` is the value that SetTimer was given."""

    timer: tuple[Any, ...]


class Restarted(msgspec.Struct, frozen=True):
    """The world was folded from the log: ask for everything that is still owed."""


Input = (
    Submit
    | Cancel
    | ReleaseHold
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
    | EvictionRefused
    | TimerFired
    | Restarted
)


def cancel_receipt(req_id: str) -> str:
    """Under which a cancel with this reqId is on record. No reqId has a slash, so that a submission
    is never taken for a cancel.
    """
    return "cancel/" + req_id


def jids(input_: Input) -> tuple[str, ...]:
    """Jobs that have to be in the world before this input is decided."""
    match input_:
        case Submit(request=request):
            spec = request.run
            return (
                f"{spec.uid}-{spec.simulation_id}-{spec.compute_model}",
                *(a.compute_jid for a in spec.after),
            )
        case Cancel(request=request) | ReleaseHold(request=request):
            return (request.compute_jid,)
        case TimerFired(timer=("follow", str() as jid)):
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
    """The agent whose record has to be in the world before this input is decided."""
    match input_:
        case TimerFired(timer=(_, AgentKey() as key, *_)):
            return key
        case (
            Submit()
            | Cancel()
            | ReleaseHold()
            | Purge()
            | HostChanged()
            | TimerFired()
            | Restarted()
        ):
            return None
        case _:
            return input_.key


def refusal_handle(input_: Input) -> int | None:
    """Who has to be told when this input cannot be carried out."""
    return (
        input_.handle
        if isinstance(input_, Submit | Cancel | ReleaseHold | RequireAgent | AgentStopRequested)
        else None
    )
