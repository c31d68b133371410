"""The two small contracts of every driver. A handle is plain data and durable: what survives a
restart of the supervisor.

Where an agent lives: `start`, `find`, `stop`, `evidence`. How a task is launched: `launch`, `stop`,
`find`, `settle`, `evidence`. No base class, nothing to inherit: a driver is whatever passes
tests/contracts/.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from ..protocol.ids import AgentKey, OpId, Token
from ..protocol.wire.messages import Shared, TaskRun, TaskSpec, ToSupervisor

Handle = dict[str, Any]


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Who is to be started. `token` authenticates its connections; it travels by pipe or 0600 file,
    never otherwise.
    """

    key: AgentKey
    agent_id: str
    token: str


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """state: `alive`, `gone` (certainly not running any more), or `unknown` (nobody can tell now).
    detail: one sentence.

    sign_in: nobody can tell, or start it, before its user has signed in.
    """

    state: Literal["alive", "gone", "unknown"]
    detail: str = ""
    sign_in: bool = False


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """cpu slots per kind that this driver's place offers; `None` asks for the configured number."""

    sequential: int | None = None
    parallel: int | None = None


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """tasks: who launches them, the agent's keeper or the driver itself. same_machine: do agents
    die with this machine?

    containers: tasks of runs with roles get containers of their own, at places of kind `container`,
    which the driver speaks for. volumes: directories of the site that these may name.
    """

    tasks: Literal["keeper", "driver"]
    same_machine: bool
    containers: bool = False
    volumes: tuple[str, ...] = ()


class AgentDriver(Protocol):
    name: str
    capabilities: Capabilities

    async def start(self, spec: AgentSpec) -> Handle:
        """Start keeper and agent. Success: they run (connected they are when they say `alive`).

        Raises Refusal("agentUnavailable"), or ("signInNeeded"): nothing was tried, and nothing will
        come of trying before its user has signed in.
        """

    async def find(self, handle: Handle) -> Found:
        """Is what `start` returned this handle for still there? Never raises for a handle of an
        earlier version or boot.
        """

    async def stop(self, handle: Handle, grace_secs: float) -> None:
        """End agent and keeper with all that they run; returns when nothing of them is left.
        Idempotent.
        """

    async def evidence(
        self, key: AgentKey, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        """Bytes of a file of the agent's folder and the file's size; (b"", 0) where there is none.
        For agents that are gone.

        Raises Refusal("agentUnavailable" | "signInNeeded").
        """

    def capacity(self) -> Capacity:
        """What can run here at once."""

    async def check(self) -> list[str]:
        """Sentences about what would keep this driver from working; none is good."""

    async def close(self) -> None:
        """Give back what this process holds. Agents and jobs live on."""


class PlaceReporter(Protocol):
    """Who hears what a driver says for places where no agent connects, and of its hosts. Called on
    the loop.
    """

    def up(self, place: AgentKey, boot_id: str) -> None:
        """The place answers from now on; a Snapshot of all that is known there is said next."""

    def said(self, place: AgentKey, message: ToSupervisor) -> None:
        """In the words of the wire: RunStatusUpdate, Snapshot, PortsProbed, Samples. Dropped while
        the place is not up.
        """

    def down(self, place: AgentKey) -> None:
        """Nobody can tell now what is there. It is up again with the next `up`."""

    def host(self, driver: str, host: str, state: Literal["up", "down"], detail: str) -> None:
        """Told once when it is known, and at each change. detail: one sentence."""


class TaskDriver(Protocol):
    """How tasks are launched. `place` is the agent key they were placed with: it says whose they
    are and where.

    What happens is reported in the words of the wire, to whom this was made for: `RunStatusUpdate`
    for one execution that changed, `Snapshot` for every one that is known at a place, `PortsProbed`
    for a probe. Reports may come late, twice and out of order; an end is reported again, whenever
    it is asked for, until it is settled. The command's own exit is reported as soon as it is known
    for good, also while something of the execution is still there (`Execution.ending`).
    """

    def launch(self, place: AgentKey, token: Token, spec: TaskSpec) -> None:
        """Ask for this execution. A token is launched at most once, and never after its `stop`:
        asking again is harmless.
        """

    def launch_gang(self, place: AgentKey, shared: Shared, tasks: Sequence[TaskRun]) -> None:
        """The same for tasks of one attempt; each has `shared` besides its own."""

    def probe(self, place: AgentKey, op_id: OpId, ports: Sequence[int]) -> None:
        """Ask which of these ports nobody could listen on there now. No answer means that nobody
        can tell.
        """

    def stop(self, place: AgentKey, token: Token, reason: str, grace_secs: float) -> None:
        """Ask for its end: SIGTERM, grace, SIGKILL of everything. A token that was not launched is
        ended before it began.

        A stop that comes after the command's own exit changes nothing: what is left is ended, and
        no stop reason is reported.
        """

    def find(self, place: AgentKey) -> None:
        """Ask for a snapshot. No answer means that nobody can tell now, never that nothing runs."""

    def settle(self, place: AgentKey, tokens: tuple[Token, ...]) -> None:
        """The ends of these executions are durable: the place may forget them (that they were
        launched it never forgets).
        """

    def release(self, place: AgentKey, token: Token) -> None:
        """Nobody looks at this failed task any more: what was kept of it, beside its evidence, may
        go.
        """

    async def evidence(
        self, place: AgentKey, token: Token, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        """Bytes of one of its files (`stdout.log`, `stderr.log`, `exit.json`) and that file's size;
        (b"", 0) where there is none.

        Raises Refusal("agentUnavailable") where nobody can look now.
        """
