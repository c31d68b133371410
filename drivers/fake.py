"""In-memory agents and tasks for tests and demonstrations without processes.

They pass tests/contracts/ like real drivers. No agent is executed: a test that needs a talking
agent takes its `AgentSpec` from `Place` and speaks for it. A few commands are simulated. `Place` is
the outside world: like a machine, it outlives the driver.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from ..protocol.errors import Refusal
from ..protocol.execution.table import STARTED_BEFORE, STOPPED_BEFORE
from ..protocol.ids import AgentKey, OpId, Token, op_id
from ..protocol.jobs.execution_state import ExecutionState
from ..protocol.jobs.exit_info import ExitInfo
from ..protocol.wire.messages import (
    AttachDebugger,
    DebuggerIo,
    DebuggerOutput,
    Execution,
    ListStops,
    OpenShell,
    PortsProbed,
    RunStatusUpdate,
    Shared,
    ShellIo,
    ShellOutput,
    SlotUse,
    Snapshot,
    Stops,
    TaskRun,
    TaskSpec,
)
from .contracts import AgentSpec, Capabilities, Capacity, Found, FoundState, Handle


class Entry(msgspec.Struct):
    """One started agent. `number` is unique within its `Place`."""

    number: int
    spec: AgentSpec
    running: bool = True


class Place:
    """The outside world of fake agents.

    broken: every start is refused with this sentence. silent: nothing can be determined about the
    place. taken: busy ports.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        #: known executions, and consumed tokens, by agent key
        self.executions: dict[AgentKey, dict[Token, Execution]] = {}
        self.consumed: dict[AgentKey, set[Token]] = {}
        self.snapshots = 0
        #: files of agents' folders, by agent key and name
        self.files: dict[tuple[AgentKey, str], bytes] = {}
        self.broken: str | None = None
        self.silent = False
        self.taken: set[int] = set()
        self.boot = 1

    def living(self, key: AgentKey) -> Entry | None:
        return next((e for e in self.entries if e.running and e.spec.key == key), None)

    def entry(self, number: object) -> Entry | None:
        return next((e for e in self.entries if e.number == number), None)

    def vanish(self, key: AgentKey) -> None:
        """End the agent of this key without a stop. Its files stay."""
        entry = self.living(key)
        if entry is not None:
            entry.running = False

    def reboot(self) -> None:
        """End everything that runs."""
        self.boot += 1
        for entry in self.entries:
            entry.running = False


class FakeDriver:
    """An `AgentDriver` (see drivers.contracts). name: its registered name."""

    capabilities = Capabilities(tasks="keeper", same_machine=True)

    def __init__(
        self, place: Place | None = None, *, name: str = "fake", cpu_slots: Capacity | None = None
    ) -> None:
        self.name = name
        self.place = place or Place()
        self._cpu_slots = cpu_slots or Capacity()

    async def start(self, spec: AgentSpec) -> Handle:
        if self.place.broken is not None:
            raise Refusal("agentUnavailable", self.place.broken)
        entry = self.place.living(spec.key)
        if entry is None:
            entry = Entry(number=len(self.place.entries) + 1, spec=spec)
            self.place.entries.append(entry)
        return {"number": entry.number, "boot": self.place.boot}

    async def find(self, handle: Handle) -> Found:
        state: FoundState
        if self.place.silent:
            return Found(state=FoundState.UNKNOWN, detail="the place does not answer")
        entry = self.place.entry(handle.get("number"))
        state = (
            FoundState.ALIVE
            if entry is not None and entry.running and handle.get("boot") == self.place.boot
            else FoundState.GONE
        )
        return Found(state=state, detail=f"fake agent {handle.get('number')}")

    async def stop(self, handle: Handle, grace_secs: float) -> None:
        entry = self.place.entry(handle.get("number"))
        if entry is not None and handle.get("boot") == self.place.boot:
            entry.running = False

    async def evidence(
        self, key: AgentKey, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        content = self.place.files.get((key, name), b"")
        return content[offset : offset + limit], len(content)

    def capacity(self) -> Capacity:
        return self._cpu_slots

    async def check(self) -> list[str]:
        return [] if self.place.broken is None else [self.place.broken]

    async def close(self) -> None:
        """Nothing to release: the agents belong to the place."""


Report = Callable[[AgentKey, RunStatusUpdate | Snapshot | PortsProbed], None]


class FakeTasks:
    """A `TaskDriver` (see drivers.contracts). `report` is called from the event loop, never within
    a method.

    Simulates `true`, `false`, `echo WORDS` and `sleep SECS` (which runs until it is stopped). Other
    commands exit with 127. While the place is silent, no call reaches it.
    """

    def __init__(self, place: Place, report: Report) -> None:
        self.place, self._report = place, report

    def launch(
        self, place: AgentKey, token: Token, spec: TaskSpec, slot: SlotUse | None = None
    ) -> None:
        if self.place.silent:
            return
        known = self._known(place)
        if token not in known:
            if token in self._consumed(place):
                known[token] = _ended(token, ExitInfo(source="start", detail=STARTED_BEFORE))
            else:
                self._consumed(place).add(token)
                self._simulate(place, token, spec)
        self._send(place, RunStatusUpdate(execution=known[token]))

    def launch_gang(self, place: AgentKey, shared: Shared, tasks: Sequence[TaskRun]) -> None:
        for task in tasks:
            self.launch(place, task.token, task.spec)

    def probe(self, place: AgentKey, op_id: OpId, ports: Sequence[int]) -> None:
        if not self.place.silent:
            self._send(
                place,
                PortsProbed(op_id=op_id, busy=tuple(p for p in ports if p in self.place.taken)),
            )

    def stop(self, place: AgentKey, token: Token, reason: str, grace_secs: float) -> None:
        if self.place.silent:
            return
        known = self._known(place)
        self._consumed(place).add(token)
        if token not in known:
            known[token] = _ended(
                token, ExitInfo(source="start", detail=STOPPED_BEFORE, stop_reason=reason)
            )
        elif known[token].state != ExecutionState.ENDED:
            known[token] = _ended(token, ExitInfo(signal=15, stop_reason=reason))
        self._send(place, RunStatusUpdate(execution=known[token]))

    def find(self, place: AgentKey) -> None:
        if self.place.silent:
            return
        self.place.snapshots += 1
        executions = tuple(self._known(place).values())
        self._send(
            place, Snapshot(number=self.place.snapshots, page=0, last=True, executions=executions)
        )

    def settle(self, place: AgentKey, tokens: tuple[Token, ...]) -> None:
        if self.place.silent:
            return
        known = self._known(place)
        for token in tokens:
            if token in known and known[token].state == ExecutionState.ENDED:
                del known[token]

    def release(self, place: AgentKey, token: Token) -> None:
        """Do nothing: a failed task has only its evidence, which stays."""

    async def evidence(
        self, place: AgentKey, token: Token, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        if self.place.silent:
            raise Refusal("agentUnavailable", "the place does not answer")
        content = self.place.files.get((place, f"{token.name}/{name}"), b"")
        return content[offset : offset + limit], len(content)

    async def shell(self, place: AgentKey, op: OpenShell | ShellIo) -> ShellOutput:
        raise Refusal("notHere", "a simulated task has no shell")

    async def debug(
        self, place: AgentKey, op: ListStops | AttachDebugger | DebuggerIo
    ) -> Stops | DebuggerOutput:
        if isinstance(op, ListStops):
            return Stops(op_id=op.op_id, found=())
        raise Refusal("notFound", "a simulated task has no processes")

    def _simulate(self, place: AgentKey, token: Token, spec: TaskSpec) -> None:
        output, exit_ = b"", ExitInfo(code=127)
        match spec.command:
            case ("true",):
                exit_ = ExitInfo(code=0)
            case ("false",):
                exit_ = ExitInfo(code=1)
            case ("echo", *words):
                output, exit_ = (" ".join(words) + "\n").encode(), ExitInfo(code=0)
            case ("sleep", _):
                self._known(place)[token] = Execution(
                    token=token,
                    state=ExecutionState.RUNNING,
                    op_id=op_id(token, "run"),
                    pid=1,
                    start_ticks=1,
                )
                return
        self.place.files[place, f"{token.name}/stdout.log"] = output
        self._known(place)[token] = _ended(token, exit_)

    def _known(self, place: AgentKey) -> dict[Token, Execution]:
        return self.place.executions.setdefault(place, {})

    def _consumed(self, place: AgentKey) -> set[Token]:
        return self.place.consumed.setdefault(place, set())

    def _send(self, place: AgentKey, message: RunStatusUpdate | Snapshot | PortsProbed) -> None:
        asyncio.get_running_loop().call_soon(self._report, place, message)


def _ended(token: Token, exit_: ExitInfo) -> Execution:
    return Execution(token=token, state=ExecutionState.ENDED, op_id=op_id(token, "run"), exit=exit_)
