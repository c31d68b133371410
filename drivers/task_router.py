"""Routing of one driver's tasks: to their own containers, or to the keeper of the user's agent."""

from collections.abc import Sequence

from ..protocol.ids import AgentKey, AgentKind, OpId, Token
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
)
from .contracts import TaskDriver


class TaskRouter:
    """A `TaskDriver` that passes each call to the task driver for the kind of place."""

    def __init__(self, *, containers: TaskDriver, agents: TaskDriver) -> None:
        self._containers, self._agents = containers, agents

    def _driver_for(self, place: AgentKey) -> TaskDriver:
        return self._containers if place.kind == AgentKind.CONTAINER else self._agents

    def launch(
        self, place: AgentKey, token: Token, spec: TaskSpec, slot: SlotUse | None = None
    ) -> None:
        self._driver_for(place).launch(place, token, spec, slot)

    def launch_gang(self, place: AgentKey, shared: Shared, tasks: Sequence[TaskRun]) -> None:
        self._driver_for(place).launch_gang(place, shared, tasks)

    def probe(self, place: AgentKey, op_id: OpId, ports: Sequence[int]) -> None:
        self._driver_for(place).probe(place, op_id, ports)

    def stop(self, place: AgentKey, token: Token, reason: str, grace_secs: float) -> None:
        self._driver_for(place).stop(place, token, reason, grace_secs)

    def find(self, place: AgentKey) -> None:
        self._driver_for(place).find(place)

    def settle(self, place: AgentKey, tokens: tuple[Token, ...]) -> None:
        self._driver_for(place).settle(place, tokens)

    def release(self, place: AgentKey, token: Token) -> None:
        self._driver_for(place).release(place, token)

    async def evidence(
        self, place: AgentKey, token: Token, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        return await self._driver_for(place).evidence(place, token, name, offset, limit)

    async def shell(self, place: AgentKey, op: OpenShell | ShellIo) -> ShellOutput:
        return await self._driver_for(place).shell(place, op)

    async def debug(
        self, place: AgentKey, op: ListStops | AttachDebugger | DebuggerIo
    ) -> Stops | DebuggerOutput:
        return await self._driver_for(place).debug(place, op)
