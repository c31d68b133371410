"""The two contracts of a driver: `AgentDriver` starts agents, `TaskDriver` launches tasks.

A driver is any object that passes tests/contracts/: there is no base class. A driver decides
nothing. Code of a particular driver does not belong here.

ARCHITECTURE.md lists the methods of both; a test compares the list with the code.
"""

import enum
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from ..protocol.ids import AgentKey, OpId, Token
from ..protocol.wire.messages import (
    AttachDebugger,
    DebuggerIo,
    DebuggerOutput,
    ListStops,
    OpenShell,
    Shared,
    ShellIo,
    ShellOutput,
    SlotUse,
    Stops,
    TaskRun,
    TaskSpec,
    ToSupervisor,
)

#: Plain JSON data that identifies a started agent. The supervisor stores it durably, and passes it
#: back to the driver after a restart or an upgrade.
Handle = dict[str, Any]


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The agent to start. `token` authenticates its connections. It travels only through a pipe or
    in a file with mode 0600.
    """

    key: AgentKey
    agent_id: str
    token: str


class FoundState(enum.StrEnum):
    """gone: certainly not running. unknown: cannot be determined now."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


class HostState(enum.StrEnum):
    """Whether a driver reaches a host."""

    UP = "up"
    DOWN = "down"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `AgentDriver.find`.

    detail: one sentence for a person.
    sign_in: `find` and `start` fail until the user signs in.
    """

    state: FoundState
    detail: str = ""
    sign_in: bool = False


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """CPU slots per kind that the driver offers. None: use the configured number."""

    sequential: int | None = None
    parallel: int | None = None


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a driver that the supervisor must know.

    tasks: `keeper` if the agent's keeper launches tasks, `driver` if the driver does.
    same_machine: the agents end when this machine ends.
    containers: tasks of runs with roles run in containers of their own. Their agent keys have the
    kind `container`, and the driver itself reports for them.
    volumes: directories of the site that these containers may mount.
    """

    tasks: Literal["keeper", "driver"]
    same_machine: bool
    containers: bool = False
    volumes: tuple[str, ...] = ()


class AgentDriver(Protocol):
    """Starts, finds and stops agents with their keepers."""

    name: str
    capabilities: Capabilities

    async def start(self, spec: AgentSpec) -> Handle:
        """Start keeper and agent. On success both run; the agent then connects by itself.

        An agent that already runs for this key may be returned instead of a second one.

        Raises Refusal("agentUnavailable"), or Refusal("signInNeeded"): nothing was tried, and every
        try fails until the user signs in.
        """

    async def find(self, handle: Handle) -> Found:
        """Check whether the agent of this handle still runs.

        Accepts handles of an earlier version or boot without raising.
        """

    async def stop(self, handle: Handle, grace_secs: float) -> None:
        """Stop agent and keeper with all their processes. Returns when no process is left.
        Idempotent.
        """

    async def evidence(
        self, key: AgentKey, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        """Return at most `limit` bytes of a file in the agent's `run` folder, and the file's size.

        `name` is relative to that folder. Returns (b"", 0) if there is no such file. Works without
        a running agent. Raises Refusal("agentUnavailable" | "signInNeeded").
        """

    def capacity(self) -> Capacity:
        """Return the resources that this driver offers."""

    async def check(self) -> list[str]:
        """Return one sentence per problem that prevents this driver from working."""

    async def close(self) -> None:
        """Release the resources of this process. Agents and jobs continue to run."""


class PlaceReporter(Protocol):
    """Receives a driver's reports about its hosts, and about agent keys without a connecting agent
    (kind `container`). Called on the event loop.
    """

    def up(self, place: AgentKey, boot_id: str) -> None:
        """The place is reachable. A complete Snapshot of it must follow."""

    def said(self, place: AgentKey, message: ToSupervisor) -> None:
        """Pass on a wire message: RunStatusUpdate, Snapshot, PortsProbed or Samples.

        Messages are dropped while the place is not up.
        """

    def down(self, place: AgentKey) -> None:
        """The state of the place is unknown from now on, until the next `up`."""

    def host(self, driver: str, host: str, state: HostState, detail: str) -> None:
        """Report a host's state, once when it is known and after each change. detail: one sentence
        for a person.
        """


class TaskDriver(Protocol):
    """Launches and stops tasks. `place` is the agent key that the task was assigned to: its user,
    kind and host.

    All methods except `evidence`, `shell` and `debug` return at once and report later, through the receiver
    that the driver was created with: `RunStatusUpdate` for one changed execution, `Snapshot` for all
    known executions of a place, `PortsProbed` for a probe. Reports may be late, repeated and out of
    order. An end is reported again on every request until it is settled. The exit of the command
    is reported as soon as it is final, even while other processes of the execution still run
    (`Execution.ending`).
    """

    def launch(
        self, place: AgentKey, token: Token, spec: TaskSpec, slot: SlotUse | None = None
    ) -> None:
        """Launch this execution. Idempotent: a token is launched at most once, and never after its
        `stop`.

        slot: set only for places that keep runs until a slot is free (see messages.SlotUse).
        """

    def launch_gang(self, place: AgentKey, shared: Shared, tasks: Sequence[TaskRun]) -> None:
        """Launch the tasks of one attempt. Each gets `shared` in addition to its own spec."""

    def probe(self, place: AgentKey, op_id: OpId, ports: Sequence[int]) -> None:
        """Ask which of these ports are busy. No answer means unknown."""

    def stop(self, place: AgentKey, token: Token, reason: str, grace_secs: float) -> None:
        """Stop this execution: SIGTERM, grace, then SIGKILL of all its processes. A token that was
        not launched ends without a start.

        After the command's own exit, only the remaining processes are stopped, and no stop reason
        is reported.
        """

    def find(self, place: AgentKey) -> None:
        """Ask for a snapshot. No answer means unknown, never that nothing runs."""

    def settle(self, place: AgentKey, tokens: tuple[Token, ...]) -> None:
        """The ends of these executions are durable: the place may forget them. It must remember
        that the tokens were launched.
        """

    def release(self, place: AgentKey, token: Token) -> None:
        """Delete everything that is held for debugging of a failed task, except its evidence."""

    async def evidence(
        self, place: AgentKey, token: Token, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        """Return at most `limit` bytes of a file of this execution (`stdout.log`, `stderr.log`,
        `exit.json`), and the file's size; (b"", 0) if there is no such file.

        Raises Refusal("agentUnavailable") if the file cannot be read now.
        """

    async def shell(self, place: AgentKey, op: OpenShell | ShellIo) -> ShellOutput:
        """Open a shell in an execution, or type into it and read its output. Repeating a request
        has no effect. A shell affects no execution, and ends with the process that relays it.

        Raises Refusal: notReady before the start of the execution, notHere if it cannot be entered,
        notFound for an unknown shell, agentUnavailable.
        """

    async def debug(
        self, place: AgentKey, op: ListStops | AttachDebugger | DebuggerIo
    ) -> Stops | DebuggerOutput:
        """List the processes of executions that wait for a debugger, attach a session to one, or pass
        bytes on. A session affects no execution, and ends with the process that relays it.

        Raises Refusal: notFound if nothing waits there, debuggerTaken, agentUnavailable.
        """
