"""Tasks as processes of the agent's keeper. Each call becomes a message on the agent's connection.

The agent and its keeper fulfil the contract (agent/session, agent/keeper).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from ..protocol.errors import Refusal
from ..protocol.ids import AgentKey, OpId, Token, base62, op_id
from ..protocol.wire.messages import (
    AttachDebugger,
    Cancel,
    DebuggerIo,
    DebuggerOutput,
    ListStops,
    OpenShell,
    ProbePorts,
    ReleaseHold,
    Run,
    RunAck,
    RunStatus,
    RunTasks,
    Shared,
    ShellIo,
    ShellOutput,
    SlotUse,
    Stops,
    TaskRun,
    TaskSpec,
    ToAgent,
)
from .contracts import AgentDriver

Send = Callable[[AgentKey, ToAgent], None]
Question = OpenShell | ShellIo | ListStops | AttachDebugger | DebuggerIo
Answer = ShellOutput | Stops | DebuggerOutput
Ask = Callable[[AgentKey, Question], Awaitable[Answer]]


async def _no_answer(place: AgentKey, op: Question) -> Answer:
    raise Refusal("agentUnavailable", "its agent is not connected now")


class KeeperTaskDriver:
    """A `TaskDriver` (see drivers.contracts).

    send: sends a message on the agent's live connection, or drops it without one. The snapshot at
    the start of the next connection then shows the difference. Reports arrive on the same
    connection. ask: sends a request and returns its answer.
    """

    def __init__(
        self,
        send: Send,
        agents: Mapping[str, AgentDriver],
        entropy: Callable[[int], bytes],
        ask: Ask = _no_answer,
    ) -> None:
        self._send, self._agents, self._entropy, self._ask = send, agents, entropy, ask

    def launch(
        self, place: AgentKey, token: Token, spec: TaskSpec, slot: SlotUse | None = None
    ) -> None:
        run = Run(op_id=op_id(token, "run"), token=token, spec=spec)
        self._send(place, run if slot is None else msgspec.structs.replace(run, slot=slot))

    def launch_gang(self, place: AgentKey, shared: Shared, tasks: Sequence[TaskRun]) -> None:
        self._send(
            place, RunTasks(op_id=base62(self._entropy(32), 32), shared=shared, tasks=tuple(tasks))
        )

    def probe(self, place: AgentKey, op_id: OpId, ports: Sequence[int]) -> None:
        self._send(place, ProbePorts(op_id=op_id, ports=tuple(ports)))

    def stop(self, place: AgentKey, token: Token, reason: str, grace_secs: float) -> None:
        self._send(
            place,
            Cancel(op_id=op_id(token, "cancel"), token=token, reason=reason, grace_secs=grace_secs),
        )

    def find(self, place: AgentKey) -> None:
        self._send(place, RunStatus(op_id=base62(self._entropy(32), 32)))

    def settle(self, place: AgentKey, tokens: tuple[Token, ...]) -> None:
        self._send(place, RunAck(tokens=tokens))

    def release(self, place: AgentKey, token: Token) -> None:
        """End the hold of its allocation. Agents without a batch scheduler hold none."""
        self._send(place, ReleaseHold(token=token))

    async def evidence(
        self, place: AgentKey, token: Token, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        driver = self._agents.get(place.driver)
        if driver is None:
            raise Refusal("agentUnavailable", f"the driver {place.driver} is not configured")
        return await driver.evidence(place, f"{token.name}/{name}", offset, limit)

    async def shell(self, place: AgentKey, op: OpenShell | ShellIo) -> ShellOutput:
        answer = await self._ask(place, op)
        assert isinstance(answer, ShellOutput)
        return answer

    async def debug(
        self, place: AgentKey, op: ListStops | AttachDebugger | DebuggerIo
    ) -> Stops | DebuggerOutput:
        answer = await self._ask(place, op)
        assert isinstance(answer, Stops | DebuggerOutput)
        return answer
