"""Agents and tasks as entries in memory: what a test, or a demonstration without processes, uses in
place of real drivers.

They obey tests/contracts/ like all others. Nothing is executed: whoever wants an agent that speaks
takes its `AgentSpec` from the place and speaks for it; of commands a few are played. `Place` is the
world outside: it outlives the driver, as machines do.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from ..protocol.errors import Refusal
from ..protocol.ids import AgentKey, OpId, Token, op_id
from ..protocol.jobs.exit_info import ExitInfo
from ..protocol.wire.messages import (
    Execution,
    PortsProbed,
    RunStatusUpdate,
    Shared,
    Snapshot,
    TaskRun,
    TaskSpec,
)
from .contracts import AgentSpec, Capabilities, Capacity, Found, Handle


class Entry(msgspec.Struct):
    """One agent that was started: `number` tells it from every other one there ever was."""

    number: int
    spec: AgentSpec
    running: bool = True


class Place:
    """Where the fake agents live. `broken`: a sentence that every start is refused with; `silent`:
    nobody can tell what runs.

    `taken`: ports that strangers listen on.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        #: what is known of executions, and who was launched or refused for good, by agent key
        self.executions: dict[AgentKey, dict[Token, Execution]] = {}
        self.spent: dict[AgentKey, set[Token]] = {}
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
        """The agent of this key ends by itself; what it wrote stays."""
        entry = self.living(key)
        if entry is not None:
            entry.running = False

    def reboot(self) -> None:
        """Everything that ran is gone."""
        self.boot += 1
        for entry in self.entries:
            entry.running = False


class FakeDriver:
    """An AgentDriver; see drivers.driver for what its methods promise. name: the one it is
    registered by.
    """

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
        state: Literal["alive", "gone"]
        if self.place.silent:
            return Found(state="unknown", detail="the place does not answer")
        entry = self.place.entry(handle.get("number"))
        state = (
            "alive"
            if entry is not None and entry.running and handle.get("boot") == self.place.boot
            else "gone"
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
        """Nothing is held: agents are the place's."""


Report = Callable[[AgentKey, RunStatusUpdate | Snapshot | PortsProbed], None]


class FakeTasks:
    """A TaskDriver; see drivers.driver for what its methods promise. `report` is called by the
    loop, never from within a verb.

    It plays `true`, `false`, `echo WORDS` and `sleep SECS` (which goes on until it is stopped);
    other commands end with 127. While the place is silent no verb reaches it.
    """

    def __init__(self, place: Place, report: Report) -> None:
        self.place, self._report = place, report

    def launch(self, place: AgentKey, token: Token, spec: TaskSpec) -> None:
        if self.place.silent:
            return
        known = self._known(place)
        if token not in known:
            if token in self._spent(place):
                known[token] = _ended(
                    token, ExitInfo(source="start", detail="it was started before")
                )
            else:
                self._spent(place).add(token)
                self._plays(place, token, spec)
        self._tell(place, RunStatusUpdate(execution=known[token]))

    def launch_gang(self, place: AgentKey, shared: Shared, tasks: Sequence[TaskRun]) -> None:
        for task in tasks:
            self.launch(place, task.token, task.spec)

    def probe(self, place: AgentKey, op_id: OpId, ports: Sequence[int]) -> None:
        if not self.place.silent:
            self._tell(
                place,
                PortsProbed(op_id=op_id, busy=tuple(p for p in ports if p in self.place.taken)),
            )

    def stop(self, place: AgentKey, token: Token, reason: str, grace_secs: float) -> None:
        if self.place.silent:
            return
        known = self._known(place)
        self._spent(place).add(token)
        if token not in known:
            known[token] = _ended(
                token,
                ExitInfo(source="start", detail="stopped before it began", stop_reason=reason),
            )
        elif known[token].state != "ended":
            known[token] = _ended(token, ExitInfo(signal=15, stop_reason=reason))
        self._tell(place, RunStatusUpdate(execution=known[token]))

    def find(self, place: AgentKey) -> None:
        if self.place.silent:
            return
        self.place.snapshots += 1
        executions = tuple(self._known(place).values())
        self._tell(
            place, Snapshot(number=self.place.snapshots, page=0, last=True, executions=executions)
        )

    def settle(self, place: AgentKey, tokens: tuple[Token, ...]) -> None:
        if self.place.silent:
            return
        known = self._known(place)
        for token in tokens:
            if token in known and known[token].state == "ended":
                del known[token]

    def release(self, place: AgentKey, token: Token) -> None:
        """Evidence is all that there is of it."""

    async def evidence(
        self, place: AgentKey, token: Token, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        if self.place.silent:
            raise Refusal("agentUnavailable", "the place does not answer")
        content = self.place.files.get((place, f"{token.name}/{name}"), b"")
        return content[offset : offset + limit], len(content)

    def _plays(self, place: AgentKey, token: Token, spec: TaskSpec) -> None:
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
                    token=token, state="running", op_id=op_id(token, "run"), pid=1, start_ticks=1
                )
                return
        self.place.files[place, f"{token.name}/stdout.log"] = output
        self._known(place)[token] = _ended(token, exit_)

    def _known(self, place: AgentKey) -> dict[Token, Execution]:
        return self.place.executions.setdefault(place, {})

    def _spent(self, place: AgentKey) -> set[Token]:
        return self.place.spent.setdefault(place, set())

    def _tell(self, place: AgentKey, message: RunStatusUpdate | Snapshot | PortsProbed) -> None:
        asyncio.get_running_loop().call_soon(self._report, place, message)


def _ended(token: Token, exit_: ExitInfo) -> Execution:
    return Execution(token=token, state="ended", op_id=op_id(token, "run"), exit=exit_)
