"""The two small contracts of every driver. A handle is plain data and durable: what survives a restart of the supervisor.

Where an agent lives: `start`, `find`, `stop`, `evidence`. How a task is launched: `launch`, `find`, `stop`, `evidence`.
No base class, nothing to inherit: a driver is whatever passes tests/contracts/.
"""

from typing import Any, Literal, Protocol

import msgspec

from ..protocol.ids import AgentKey, Token
from ..protocol.messages import TaskSpec

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
    """Not implemented yet: today the core's effects send `Run` and `Cancel` to the agent, whose keeper launches every task."""

    def launch(self, token: Token, spec: TaskSpec) -> None:
        """Ask for this execution; at most once is its own promise, so asking again is harmless. What happens is reported."""

    def find(self, token: Token) -> None:
        """Ask for a report about this execution."""

    def stop(self, token: Token, reason: str, grace_secs: float) -> None:
        """Ask for its end: SIGTERM, grace, SIGKILL of everything. What happens is reported."""

    async def evidence(self, token: Token, name: str, offset: int, limit: int) -> tuple[bytes, int]:
        """Bytes of one of its evidence files (`stdout.log`, `stderr.log`, `exit.json`) and that file's size."""
