"""The driver's verbs under faults: slow, failing, without an answer, or with a false answer."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.wire.messages import Kill
from jobscribe.supervisor.core.interface.effects import (
    EvictAgent,
    FindAgent,
    StartAgent,
    StopAgent,
)
from jobscribe.supervisor.core.interface.inputs import (
    DriverFailed,
    DriverFound,
    DriverStarted,
    DriverStopped,
    EvictionRefused,
    Input,
    SignInNeeded,
)

if TYPE_CHECKING:
    from sim_slurm import SignIns
    from sim_supervisor import Supervisor

AGENT_ID = "A" * 32
#: Maximum number of consecutive false answers about one agent.
LIES = 3


class Driver:
    """A driver whose verbs continue when the supervisor that called them dies; then nobody gets the
    result.
    """

    def __init__(self, supervisor: "Supervisor") -> None:
        self.supervisor, self.time, self.machine = supervisor, supervisor.time, supervisor.machine
        self.sign_ins: SignIns
        #: number of unfinished verbs by key: the core waits for these
        self.busy: dict[AgentKey, int] = {}
        self._lies: dict[AgentKey, int] = {}
        self.on_dismissal: Callable[[EvictAgent], None] = lambda effect: None

    def perform(self, effect: StartAgent | FindAgent | StopAgent) -> None:
        life, key, boot = self.supervisor.life, effect.key, self.machine.home.boot
        secs = self.time.random.random() * (
            10.0 if self.time.strikes("the driver was slow") else 0.3
        )

        def act() -> None:
            if boot != self.machine.home.boot:
                return
            answer = self._act(effect)
            if answer is not None:
                life.after(self.time.random.random() * 0.05, lambda: tell(answer))
            elif not life.over:
                self.busy[key] -= 1

        def tell(answer: Input) -> None:
            self.busy[key] -= 1
            self.supervisor.tell(answer)

        self.busy[key] = self.busy.get(key, 0) + 1
        self.time.after(secs, act)

    def dismiss(self, effect: EvictAgent) -> None:
        """Send the eviction as the effect executor does: over the intended connection, unless a
        request waits for an answer there.
        """
        link = self.supervisor.links.get(effect.key)
        if link is None or link.epoch != effect.epoch:
            return  # decisions that followed in the same commit may have placed tasks with it
        self.on_dismissal(effect)
        if link.asked:
            self.time.saw("an agent that was to be dismissed was busy")
            self.supervisor.life.after(
                0.0, lambda: self.supervisor.tell(EvictionRefused(effect.key, effect.epoch))
            )
        else:
            link.to_agent(Kill(reason="nobody needs it"))

    def _act(self, effect: StartAgent | FindAgent | StopAgent) -> Input | None:
        if effect.key.host in self.machine.out_of_reach:
            return self._unreachable(effect)
        if self.sign_ins.lacks(effect.key):
            return self._signed_out(effect)
        match effect:
            case StartAgent():
                return self._start(effect)
            case FindAgent():
                return self._find(effect)
            case StopAgent():
                return self._stop(effect)

    def _signed_out(self, effect: StartAgent | FindAgent | StopAgent) -> Input:
        match effect:
            case StartAgent():
                return SignInNeeded(effect.key, effect.attempt, "simulated: sign in")
            case FindAgent():
                return DriverFound(effect.key, "unknown", "simulated: sign in", sign_in=True)
            case StopAgent():
                return SignInNeeded(effect.key, None, "simulated: sign in")

    def _unreachable(self, effect: StartAgent | FindAgent | StopAgent) -> Input | None:
        match effect:
            case StartAgent():
                return DriverFailed(
                    effect.key, effect.attempt, "simulated: its host does not answer"
                )
            case FindAgent():
                return DriverFound(effect.key, "unknown", "simulated: its host does not answer")
            case StopAgent():
                return None

    def _start(self, effect: StartAgent) -> Input | None:
        key, attempt = effect.key, effect.attempt
        if self.time.strikes("an agent's start failed"):
            return DriverFailed(key, attempt, "simulated")
        handle = self.machine.start_keeper(key, {"token": effect.token, "agentId": AGENT_ID})
        if self.time.strikes("a start was told as failed though it lives"):
            return DriverFailed(key, attempt, "simulated lie")
        if self.time.strikes("a start was never answered"):
            return None
        return DriverStarted(key, attempt, handle)

    def _find(self, effect: FindAgent) -> Input:
        key = effect.key
        alive = self.machine.keeper_of(key, effect.handle) is not None
        if self.time.strikes("the driver did not know"):
            return DriverFound(key, "unknown", "simulated")
        lied = self._lies.get(key, 0)
        self._lies[key] = lied + 1
        if lied < LIES and not alive and self.time.strikes("the driver found a dead agent alive"):
            return DriverFound(key, "alive", "simulated lie")
        if lied < LIES and alive and self.time.strikes("the driver did not find a living agent"):
            return DriverFound(key, "gone", "simulated lie")
        self._lies[key] = 0
        return DriverFound(key, "alive" if alive else "gone", "simulated")

    def _stop(self, effect: StopAgent) -> Input | None:
        keeper = self.machine.keeper_of(effect.key, effect.handle)
        if keeper is not None:
            for p in list(self.machine.live.values()):
                if any(e.process is p for e in keeper.table.known.values()):
                    self.machine.kill(p, 9, with_recorder=True)
            keeper.die()
        if self.time.strikes("a stop of the driver was never answered"):
            return None
        return DriverStopped(effect.key)
