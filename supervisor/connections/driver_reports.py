"""Virtual agents: reports of drivers for places where no agent connects, such as task containers.

They reach the engine as if an agent had sent them, so the core handles one kind of agent only.
Implements `PlaceReporter` of `drivers.contracts`.
"""

from collections.abc import Callable
from typing import NamedTuple

from ...drivers.contracts import HostState
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, agent_log_ids, short_op
from ...protocol.version import VERSION
from ...protocol.wire.messages import (
    Alive,
    RunStatusUpdate,
    Samples,
    Snapshot,
    ToSupervisor,
    message_log_ids,
    op_name,
)
from ...runtime.log.logger import Log
from ..core.interface.inputs import AgentConnected, AgentDisconnected, AgentMessage, HostChanged
from ..engine.decision_loop import Engine
from ..process.counters import Counters
from ..usage.samples import UsageSamples


class _Place(NamedTuple):
    """A virtual agent. log: adds the ids of the place to each line."""

    epoch: int
    alive: Alive
    log: Log


class DriverReports:
    """The virtual agents that are up. `bind` must be called before any driver reports."""

    def __init__(self, log: Log, counters: Counters, agent_id: Callable[[AgentKey], str]) -> None:
        self._log, self._counters, self._agent_id = log, counters, agent_id
        self._up: dict[AgentKey, _Place] = {}
        self._engine: Engine
        self._metering: UsageSamples
        self._next_epoch: Callable[[], int]

    def bind(self, engine: Engine, metering: UsageSamples, next_epoch: Callable[[], int]) -> None:
        """next_epoch: the hub's function, because the epochs of all agents come from one
        sequence.
        """
        self._engine, self._metering, self._next_epoch = engine, metering, next_epoch

    def up(self, place: AgentKey, boot_id: str) -> None:
        epoch = self._next_epoch()
        alive = Alive(
            agent_id=self._agent_id(place),
            agent_key=place,
            version=VERSION,
            host=place.host,
            boot_id=boot_id,
            pid=0,
            keeper_pid=0,
        )
        log = self._log.bound(**agent_log_ids(place))
        self._up[place] = _Place(epoch, alive, log)
        log("{} is up", str(place))
        self._engine.tell(AgentConnected(place, epoch, alive))

    def said(self, place: AgentKey, message: ToSupervisor) -> None:
        entry = self._up.get(place)
        if entry is None:
            return
        if isinstance(message, Samples):
            try:
                self._metering.take(place, message)
            except Refusal as e:
                self._counters.add(e.code)
                entry.log("{}: {}", str(place), e.sentence)
            return
        self._log_receipt(place, entry.log.bound(**message_log_ids(message)), message)
        self._engine.tell(AgentMessage(place, entry.epoch, message))

    def down(self, place: AgentKey) -> None:
        entry = self._up.pop(place, None)
        if entry is not None:
            entry.log("{} is down", str(place))
            self._engine.tell(AgentDisconnected(place, entry.epoch))

    def host(self, driver: str, host: str, state: HostState, detail: str) -> None:
        log = self._log.bound(driver=driver, host=host)
        log("host {} of {} is {}: {}", host, driver, state, detail)
        if state == HostState.DOWN:
            self._counters.add("hostDown")
        self._engine.tell(HostChanged(driver, host, state == HostState.UP, detail))

    # ---- for the effect executor

    def end(self, place: AgentKey, epoch: int, reason: str) -> None:
        """Take down a virtual agent whose reports the core rejects."""
        entry = self._up.get(place)
        if entry is not None and entry.epoch == epoch:
            entry.log("{} is disconnected: {}", str(place), reason)
            self.down(place)

    def alive(self) -> list[tuple[AgentKey, int, Alive]]:
        return [(place, entry.epoch, entry.alive) for place, entry in self._up.items()]

    def sizes(self) -> dict[str, int]:
        return {"up": len(self._up)}

    def _log_receipt(self, place: AgentKey, log: Log, message: ToSupervisor) -> None:
        """Log a message in the same form as a message of an agent."""
        match message:
            case RunStatusUpdate(execution=e):
                log(
                    "{} opName={} o={} jid={} state={}",
                    str(place),
                    op_name(message),
                    short_op(e.op_id),
                    e.token.jid,
                    e.state,
                )
            case Snapshot():
                log(
                    "{} opName=snapshot executions={} page={}",
                    str(place),
                    len(message.executions),
                    message.page,
                )
            case _:
                pass
