"""Virtual agents: reports of drivers for places where no agent connects, such as task containers.

They reach the engine as if an agent had sent them, so the core handles one kind of agent only.
Implements `PlaceReporter` of `drivers.contracts`.
"""

from collections.abc import Callable

from ...drivers.contracts import HostState
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, agent_log_ids, execution_log_ids, short_op
from ...protocol.version import VERSION
from ...protocol.wire.messages import (
    Alive,
    RunStatusUpdate,
    Samples,
    Snapshot,
    ToSupervisor,
    op_name,
)
from ...runtime.log.logger import Log
from ..core.interface.inputs import AgentConnected, AgentDisconnected, AgentMessage, HostChanged
from ..engine.decision_loop import Engine
from ..process.counters import Counters
from ..usage.samples import UsageSamples


class DriverReports:
    """The virtual agents that are up. `bind` must be called before any driver reports."""

    def __init__(self, log: Log, counters: Counters, agent_id: Callable[[AgentKey], str]) -> None:
        self._log, self._counters, self._agent_id = log, counters, agent_id
        self._up: dict[AgentKey, tuple[int, Alive]] = {}
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
        self._up[place] = epoch, alive
        self._log("{} is up", str(place), **agent_log_ids(place))
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
                self._log("{}: {}", str(place), e.sentence, **agent_log_ids(place))
            return
        self._log_receipt(place, message)
        self._engine.tell(AgentMessage(place, entry[0], message))

    def down(self, place: AgentKey) -> None:
        entry = self._up.pop(place, None)
        if entry is not None:
            self._log("{} is down", str(place), **agent_log_ids(place))
            self._engine.tell(AgentDisconnected(place, entry[0]))

    def host(self, driver: str, host: str, state: HostState, detail: str) -> None:
        self._log("host {} of {} is {}: {}", host, driver, state, detail, driver=driver, host=host)
        if state == HostState.DOWN:
            self._counters.add("hostDown")
        self._engine.tell(HostChanged(driver, host, state == HostState.UP, detail))

    # ---- for the effect executor

    def end(self, place: AgentKey, epoch: int, reason: str) -> None:
        """Take down a virtual agent whose reports the core rejects."""
        entry = self._up.get(place)
        if entry is not None and entry[0] == epoch:
            self._log("{} is disconnected: {}", str(place), reason, **agent_log_ids(place))
            self.down(place)

    def alive(self) -> list[tuple[AgentKey, int, Alive]]:
        return [(place, epoch, alive) for place, (epoch, alive) in self._up.items()]

    def sizes(self) -> dict[str, int]:
        return {"up": len(self._up)}

    def _log_receipt(self, place: AgentKey, message: ToSupervisor) -> None:
        """Log a message in the same form as a message of an agent."""
        match message:
            case RunStatusUpdate(execution=e):
                self._log(
                    "{} opName={} o={} jid={} state={}",
                    str(place),
                    op_name(message),
                    short_op(e.op_id),
                    e.token.jid,
                    e.state,
                    **execution_log_ids(e.token),
                    **agent_log_ids(place),
                )
            case Snapshot():
                self._log(
                    "{} opName=snapshot executions={} page={}",
                    str(place),
                    len(message.executions),
                    message.page,
                    **agent_log_ids(place),
                )
            case _:
                pass
