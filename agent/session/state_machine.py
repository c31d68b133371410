"""The agent's side of the protocol as a pure state machine: its input is supervisor messages and
keeper reports, its output supervisor messages and keeper orders.

Lost, repeated and reordered messages are harmless because every answer is a fact about a fencing
token. An operation on a known token is answered with the token's state. An ended execution is
reported until the supervisor acknowledges it. A new connection begins with a snapshot. No execution
is stopped because the supervisor is unreachable.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import assert_never

import msgspec

from ...protocol.execution.table import pages
from ...protocol.ids import OpId, Token, op_id
from ...protocol.jobs.execution_state import REPORTS, ExecutionState, next_state
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.wire.messages import (
    SNAPSHOT_PAGE,
    AttachDebugger,
    Call,
    Cancel,
    CancelCall,
    DebuggerIo,
    DigestFile,
    Execution,
    KeepFile,
    Kill,
    ListFiles,
    ListStops,
    OpenShell,
    ProbePorts,
    ReadFile,
    ReadLog,
    ReleaseHold,
    Run,
    RunAck,
    RunStatus,
    RunStatusUpdate,
    RunTasks,
    Shared,
    ShellIo,
    SlotUse,
    Snapshot,
    StoreFile,
    TaskRun,
    TaskSpec,
    ToAgent,
    ToSupervisor,
)

#: An ended execution is reported again after this long without an acknowledgement (seconds).
REPEAT_SECS = 5.0
#: Number of jobs whose highest serial is remembered: a late operation for an older run is refused
#: without asking the keeper.
SERIALS_KEPT = 10_000


# ---- outputs


class Send(msgspec.Struct, frozen=True):
    """Send to the supervisor; dropped without a connection (the next snapshot contains it)."""

    message: ToSupervisor


class Launch(msgspec.Struct, frozen=True):
    """Order the keeper to start this; it refuses a used token. shared: data of the task's gang.
    slot: see messages.SlotUse.
    """

    token: Token
    spec: TaskSpec
    shared: Shared | None = None
    slot: SlotUse | None = None


class Release(msgspec.Struct, frozen=True):
    """Order the keeper to start this, which waits for a slot."""

    token: Token


class Stop(msgspec.Struct, frozen=True):
    token: Token
    reason: str
    grace_secs: float


class EndHold(msgspec.Struct, frozen=True):
    """Let the batch scheduler end the allocation that is held for this failed task."""

    token: Token


class Forget(msgspec.Struct, frozen=True):
    tokens: tuple[Token, ...]


class Read(msgspec.Struct, frozen=True):
    """Answer this reader from the evidence."""

    op: ReadLog


class StartCall(msgspec.Struct, frozen=True):
    """Let a worker compute this call. It is answered in any case."""

    op: Call


class StopCall(msgspec.Struct, frozen=True):
    """Stop a call: its caller no longer waits."""

    op_id: OpId


class Fetch(msgspec.Struct, frozen=True):
    """Answer from a run directory (part of a file, its digest, file names, or a stored result), or
    store part of a file.
    """

    op: ReadFile | ListFiles | KeepFile | DigestFile | StoreFile | Call


class Probe(msgspec.Struct, frozen=True):
    """Check which of these ports are in use."""

    op: ProbePorts


DebugRequest = ListStops | AttachDebugger | DebuggerIo | OpenShell | ShellIo


class Debug(msgspec.Struct, frozen=True):
    """Answer about debuggers and shells of jobs, or relay between one and its user."""

    op: DebugRequest


class Quit(msgspec.Struct, frozen=True):
    reason: str
    stop_jobs: bool


Output = (
    Send
    | Launch
    | Release
    | Stop
    | EndHold
    | Forget
    | Read
    | StartCall
    | StopCall
    | Fetch
    | Probe
    | Debug
    | Quit
)


class _Known(msgspec.Struct):
    """One execution, with the time of its last change and its last report (monotonic)."""

    execution: Execution
    seen: float
    reported: float = float("-inf")
    #: it waits with the keeper for a free slot
    ahead: bool = False


class Session:
    """The agent's state. Every method returns the outputs to perform, in order. `mono` is the
    monotonic clock in seconds.
    """

    def __init__(self) -> None:
        self._known: dict[Token, _Known] = {}
        self._serials: OrderedDict[str, int] = OrderedDict()
        self._up = False
        self._snapshots = 0

    # ---- the connection

    def connected(self, mono: float) -> list[Output]:
        """Handle a new connection, on which `alive` has been sent: send a snapshot."""
        self._up = True
        return self._snapshot(mono)

    def disconnected(self) -> list[Output]:
        self._up = False
        return []

    def tick(self, mono: float) -> list[Output]:
        """Report ended executions again that were not acknowledged in time."""
        if not self._up:
            return []
        late = [
            k
            for k in self._known.values()
            if k.execution.state == ExecutionState.ENDED and mono - k.reported >= REPEAT_SECS
        ]
        return [self._report(k, mono) for k in late]

    # ---- the supervisor

    def received(self, message: ToAgent, mono: float) -> list[Output]:
        match message:
            case Run():
                return self._run(message, None, mono)
            case RunTasks():
                return [
                    out for task in message.tasks for out in self._run(task, message.shared, mono)
                ]
            case ProbePorts():
                return [Probe(message)]
            case Cancel():
                return self._cancel(message, mono)
            case ReleaseHold():
                return [EndHold(message.token)]
            case RunAck():
                return self._acknowledged(message)
            case RunStatus():
                return self._snapshot(mono)
            case ReadLog():
                return [Read(message)]
            case Call() if message.job_cmd == "sequential_result":
                return [Fetch(message)]
            case Call():
                return [StartCall(message)]
            case CancelCall():
                return [StopCall(message.op_id)]
            case ReadFile() | ListFiles() | KeepFile() | DigestFile() | StoreFile():
                return [Fetch(message)]
            case ListStops() | AttachDebugger() | DebuggerIo() | OpenShell() | ShellIo():
                return [Debug(message)]
            case Kill():
                return [Quit(message.reason, message.stop_jobs)]
            case _:
                assert_never(message)

    def _run(self, op: Run | TaskRun, shared: Shared | None, mono: float) -> list[Output]:
        known = self._known.get(op.token)
        slot = op.slot if isinstance(op, Run) and op.slot is not msgspec.UNSET else None
        if known is not None and known.ahead and slot == "held":
            known.ahead = False
            return [Release(op.token)]
        if known is not None:
            return [self._report(known, mono)]
        if op.token.serial < self._serials.get(op.token.jid, 0):
            exit_ = ExitInfo(source="start", detail="a newer run of this job was started before")
            refused = Execution(
                token=op.token, state=ExecutionState.ENDED, op_id=op.op_id, exit=exit_
            )
            self._known[op.token] = _Known(refused, mono)
            return [self._report(self._known[op.token], mono)]
        known = self._store(
            Execution(token=op.token, state=ExecutionState.STARTING, op_id=op.op_id), mono
        )
        known.ahead = slot == "ahead"
        return [Launch(op.token, op.spec, shared, slot)]

    def _cancel(self, op: Cancel, mono: float) -> list[Output]:
        known = self._known.get(op.token)
        if known is not None and known.execution.state == ExecutionState.ENDED:
            return [self._report(known, mono)]
        if known is None:
            # its `run` may still arrive; the keeper remembers that it must not start
            self._store(
                Execution(
                    token=op.token, state=ExecutionState.STARTING, op_id=op_id(op.token, "run")
                ),
                mono,
            )
        return [Stop(op.token, op.reason, op.grace_secs)]

    def _acknowledged(self, op: RunAck) -> list[Output]:
        ended = tuple(
            t
            for t in dict.fromkeys(op.tokens)
            if t in self._known and self._known[t].execution.state == ExecutionState.ENDED
        )
        for token in ended:
            del self._known[token]
        return [Forget(ended)] if ended else []

    def _snapshot(self, mono: float) -> list[Output]:
        self._snapshots += 1
        all_ = [self._current(k, mono) for k in self._known.values()]
        numbered = list(enumerate(pages(all_, SNAPSHOT_PAGE)))
        for k in self._known.values():
            k.reported = mono
        return [
            Send(
                Snapshot(
                    number=self._snapshots,
                    page=i,
                    last=i == len(numbered) - 1,
                    executions=tuple(page),
                )
            )
            for i, page in numbered
        ]

    # ---- the keeper

    def keeper_hello(self, executions: Sequence[Execution], mono: float) -> list[Output]:
        """Handle the executions of a keeper: at the start, or after a new one took over. Its
        evidence replaces the known state, whatever that is.
        """
        for execution in executions:
            self._known.pop(execution.token, None)
            self._store(execution, mono)
        return self._snapshot(mono) if self._up else []

    def record_states(self, executions: Sequence[Execution], mono: float) -> list[Output]:
        """Record and report new states from the keeper or batch scheduler. An end is final. An
        execution that is `running` and has an exit is ending (see messages.Execution).
        """
        out: list[Output] = []
        for execution in executions:
            known = self._known.get(execution.token)
            if known is None or known.execution.state != ExecutionState.ENDED:
                known = self._store(execution, mono)
                out += [self._report(known, mono)] if self._up else []
        return out

    def launch_failed(
        self, token: Token, detail: str, mono: float, fault: str | None = None
    ) -> list[Output]:
        """Record that the agent could not launch it, unless the keeper has reported it since.

        fault: see exits.FAULTS.
        """
        known = self._known.get(token)
        if known is not None and known.execution.state != ExecutionState.STARTING:
            return []
        known = self._store(_start_failure(token, detail, fault), mono)
        return [self._report(known, mono)]

    # ---- questions

    def has_ended(self, token: Token) -> bool | None:
        """Return whether it has ended. None for unknown tokens: they may be on their way here, or
        were acknowledged and have evidence.
        """
        known = self._known.get(token)
        return None if known is None else known.execution.state == ExecutionState.ENDED

    def live(self) -> int:
        return sum(k.execution.state != ExecutionState.ENDED for k in self._known.values())

    def executions(self) -> list[Execution]:
        return [k.execution for k in self._known.values()]

    # ---- inside

    def _store(self, execution: Execution, mono: float) -> _Known:
        """Record a state. Raises IllegalTransition after an end."""
        before = self._known.get(execution.token)
        if before is not None:
            next_state(before.execution.state, REPORTS[execution.state])
        known = self._known[execution.token] = _Known(execution, mono)
        jid, serial = execution.token.jid, execution.token.serial
        self._serials[jid] = max(serial, self._serials.get(jid, 0))
        self._serials.move_to_end(jid)
        if len(self._serials) > SERIALS_KEPT:
            self._serials.popitem(last=False)
        return known

    def _report(self, known: _Known, mono: float) -> Send:
        known.reported = mono
        return Send(RunStatusUpdate(execution=self._current(known, mono)))

    def _current(self, known: _Known, mono: float) -> Execution:
        e = known.execution
        if e.state != ExecutionState.RUNNING or e.elapsed_secs is None or e.ending:
            return e
        return msgspec.structs.replace(e, elapsed_secs=e.elapsed_secs + mono - known.seen)


def _start_failure(token: Token, detail: str, fault: str | None) -> Execution:
    return Execution(
        token=token,
        state=ExecutionState.ENDED,
        op_id=op_id(token, "run"),
        exit=ExitInfo(source="start", detail=detail, fault=fault),
    )
