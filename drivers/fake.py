"""Agents as entries in memory: what a test, or a demonstration without processes, uses in place of a real driver.

It obeys tests/contracts/test_agent_driver.py like every other one. Nothing is executed: whoever wants an agent that speaks
takes its `AgentSpec` from the place and speaks for it. `Place` is the world outside: it outlives the driver, as machines do.
"""

from typing import Literal

import msgspec

from ..protocol.errors import Refusal
from ..protocol.ids import AgentKey
from .driver import AgentSpec, Capabilities, Capacity, Found, Handle


class Entry(msgspec.Struct):
    """One agent that was started: `number` tells it from every other one there ever was."""

    number: int
    spec: AgentSpec
    running: bool = True


class Place:
    """Where the fake agents live. `broken`: a sentence that every start is refused with; `silent`: nobody can tell what runs."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        #: files of agents' folders, by agent key and name
        self.files: dict[tuple[AgentKey, str], bytes] = {}
        self.broken: str | None = None
        self.silent = False
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
    """An AgentDriver; see drivers.driver for what its methods promise. name: the one it is registered by."""

    capabilities = Capabilities(tasks="keeper", same_machine=True)

    def __init__(self, place: Place | None = None, *, name: str = "fake", cpu_slots: Capacity | None = None) -> None:
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
        state = "alive" if entry is not None and entry.running and handle.get("boot") == self.place.boot else "gone"
        return Found(state=state, detail=f"fake agent {handle.get('number')}")

    async def stop(self, handle: Handle, grace_secs: float) -> None:
        entry = self.place.entry(handle.get("number"))
        if entry is not None and handle.get("boot") == self.place.boot:
            entry.running = False

    async def evidence(self, key: AgentKey, name: str, offset: int, limit: int) -> tuple[bytes, int]:
        content = self.place.files.get((key, name), b"")
        return content[offset : offset + limit], len(content)

    def capacity(self) -> Capacity:
        return self._cpu_slots

    async def check(self) -> list[str]:
        return [] if self.place.broken is None else [self.place.broken]

    async def close(self) -> None:
        """Nothing is held: agents are the place's."""
