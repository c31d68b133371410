"""The two small contracts of every driver. A handle is plain data and durable: what survives a restart of the supervisor.

Where an agent lives: `start`, `find`, `stop`, `evidence`. How a task is launched: `launch`, `stop`, `find`, `settle`, `evidence`.
No base class, nothing to inherit: a driver is whatever passes tests/contracts/.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from ..protocol.ids import AgentKey, OpId, Token
from ..protocol.messages import Shared, TaskRun, TaskSpec

Handle = dict[str, Any]


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Who is to be started. `token` authenticates its connections; it travels by pipe or 0600 file, never otherwise."""

    key: AgentKey
    agent_id: str
    token: str


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """state: `alive`, `gone` (certainly not running any more), or `unknown` (nobody can tell now). detail: one sentence."""

    state: Literal["alive", "gone", "unknown"]
    detail: str = ""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """cpu slots per kind that this driver's place offers; `None` asks for the configured number."""

    sequential: int | None = None
    parallel: int | None = None


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """tasks: who launches them, the agent's keeper or the driver itself. same_machine: do agents die with this machine?"""

    tasks: Literal["keeper", "driver"]
    same_machine: bool


class AgentDriver(Protocol):
    name: str
    capabilities: Capabilities

    async def start(self, spec: AgentSpec) -> Handle:
        """Start keeper and agent. Success: they run (connected they are when they say `alive`). Raises Refusal("agentUnavailable")."""

    async def find(self, handle: Handle) -> Found:
        """Is what `start` returned this handle for still there? Never raises for a handle of an earlier version or boot."""

    async def stop(self, handle: Handle, grace_secs: float) -> None:
        """End agent and keeper with all that they run; returns when nothing of them is left. Idempotent."""

    async def evidence(self, key: AgentKey, name: str, offset: int, limit: int) -> tuple[bytes, int]:
        """Bytes of a file of the agent's folder and the file's size; (b"", 0) where there is none. For agents that are gone."""

    def capacity(self) -> Capacity:
        """What can run here at once."""

    async def check(self) -> list[str]:
        """Sentences about what would keep this driver from working; none is good."""

    async def close(self) -> None:
        """Give back what this process holds. Agents and jobs live on."""


class TaskDriver(Protocol):
    """How tasks are launched. `place` is the agent key they were placed with: it says whose they are and where.

    What happens is reported in the words of the wire, to whom this was made for: `RunStatusUpdate` for one execution that
    changed, `Snapshot` for every one that is known at a place, `PortsProbed` for a probe. Reports may come late, twice and out of
    order; an end is reported again, whenever it is asked for, until it is settled.
    """

    def launch(self, place: AgentKey, token: Token, spec: TaskSpec) -> None:
        """Ask for this execution. A token is launched at most once, and never after its `stop`: asking again is harmless."""

    def launch_gang(self, place: AgentKey, shared: Shared, tasks: Sequence[TaskRun]) -> None:
        """The same for tasks of one attempt; each has `shared` besides its own."""

    def probe(self, place: AgentKey, op_id: OpId, ports: Sequence[int]) -> None:
        """Ask which of these ports nobody could listen on there now. No answer means that nobody can tell."""

    def stop(self, place: AgentKey, token: Token, reason: str, grace_secs: float) -> None:
        """Ask for its end: SIGTERM, grace, SIGKILL of everything. A token that was not launched is ended before it began."""

    def find(self, place: AgentKey) -> None:
        """Ask for a snapshot. No answer means that nobody can tell now, never that nothing runs."""

    def settle(self, place: AgentKey, tokens: tuple[Token, ...]) -> None:
        """The ends of these executions are durable: the place may forget them (that they were launched it never forgets)."""

    async def evidence(self, place: AgentKey, token: Token, name: str, offset: int, limit: int) -> tuple[bytes, int]:
        """Bytes of one of its files (`stdout.log`, `stderr.log`, `exit.json`) and that file's size; (b"", 0) where there is none.

        Raises Refusal("agentUnavailable") where nobody can look now.
        """
