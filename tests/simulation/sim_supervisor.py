"""The supervisor in the simulator: the real engine, core and codec over the in-memory store; hub, driver and clock are played."""

from collections.abc import Callable
from typing import Any

from sim_machine import Agent, Machine
from sim_time import Time

from jobscribe.db.job import Job
from jobscribe.db.failing import Faults
from jobscribe.db.memory import MemoryStore
from jobscribe.drivers.keeper_tasks import KeeperTasks
from jobscribe.protocol.codec import Decoder, Encoder
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.messages import Alive, ToAgent
from jobscribe.supervisor.core.effects import (
    AgentReady, ClearTimer, Count, Effect, EndConnection, FindAgent, FindTasks, LaunchTask, ReplyRefusal, ReplyStatus, SetTimer, SettleTasks, StartAgent,
    StopAgent, StopTask,
)
from jobscribe.supervisor.core.inputs import (
    AgentConnected, AgentDisconnected, AgentGap, AgentSaid, DriverFailed, DriverFound, DriverStarted, DriverStopped, Input, Now, TimerFired,
)
from jobscribe.supervisor.core.world import Policy, token_hash
from jobscribe.supervisor.engine import Engine

POLICY = Policy(cpu_slots={("local", "sequential"): 3}, op_run_slots={("local", "sequential"): 2}, agent_return_secs=1.0, op_reply_secs=5.0)

#: As the hub does: who does not say `alive` in time is sent away.
ALIVE_SECS = 10.0


class Link:
    """A connection that delays, loses, repeats and reorders frames, and that ends."""

    def __init__(self, supervisor: "Supervisor", agent: Agent, epoch: int) -> None:
        self.supervisor, self.agent, self.epoch, self.time = supervisor, agent, epoch, supervisor.time
        self.open = True
        self.encoder, self.decoder = Encoder(), Decoder("to_supervisor")
        self.gaps = 0
        self.alive: Alive | None = None
        self._free_at = {"up": 0.0, "down": 0.0}
        self.time.after(ALIVE_SECS, lambda: self.cut() if self.alive is None else None)

    def to_supervisor(self, frame: bytes) -> None:
        self._carry("up", lambda: self._receive(frame))

    def to_agent(self, messages: list[Any]) -> None:
        for frame in self.encoder.frames(messages):
            self._carry("down", lambda frame=frame: self.agent.frame(frame) if self.agent.alive and self.agent.link is self else None)

    def _carry(self, way: str, deliver: Callable[[], None]) -> None:
        if not self.open or self.time.sometimes(f"a frame was lost, {way}", 0.01):
            return
        delay = self.time.random.expovariate(200.0)
        if self.time.sometimes(f"a frame was late, {way}", 0.02):
            delay += self.time.random.random() * 3
        at = self.time.now + delay
        if not self.time.sometimes(f"frames were reordered, {way}", 0.01):
            at = max(at, self._free_at[way])
            self._free_at[way] = at
        act = lambda: deliver() if self.open else None  # noqa: E731
        self.time.after(at - self.time.now, act)
        if self.time.sometimes(f"a frame was repeated, {way}", 0.01):
            self.time.after(at - self.time.now, act)

    def _receive(self, frame: bytes) -> None:
        s = self.supervisor
        if not s.running or (s.links.get(self.agent.key) not in (self, None) and self.alive is not None):
            return
        inputs: list[Input] = []
        messages = self.decoder.messages(frame)
        if self.decoder.gaps != self.gaps:
            self.gaps = self.decoder.gaps
            inputs.append(AgentGap(self.agent.key, self.epoch))
        for message in messages:
            if isinstance(message, Alive):
                self.alive = message
                older = s.links.get(self.agent.key)
                s.links[self.agent.key] = self
                if older is not None and older is not self:
                    older.cut(tell=False)
                inputs.append(AgentConnected(self.agent.key, self.epoch, message))
            elif self.alive is None:
                self.cut()
                return
            else:
                inputs.append(AgentSaid(self.agent.key, self.epoch, message))
        if inputs:
            s.tell(*inputs)

    def cut(self, tell: bool = True) -> None:
        if not self.open:
            return
        self.open = False
        if self.agent.link is self:
            self.time.after(self.time.random.random() * 0.2, self.agent.cut if self.agent.link is self else lambda: None)
        s = self.supervisor
        if tell and s.links.get(self.agent.key) is self:
            del s.links[self.agent.key]
            s.tell(AgentDisconnected(self.agent.key, self.epoch))


class Supervisor:
    """One process after another on one store."""

    def __init__(self, time: Time, machine: Machine) -> None:
        self.time, self.machine = time, machine
        self.running = False
        self.sessions = 0
        self.links: dict[AgentKey, Link] = {}
        self.tasks = KeeperTasks(self._send, {}, time.random.randbytes)
        self.replies: dict[int, Callable[[dict[str, Any] | Refusal], None]] = {}
        self.durable_statuses: list[tuple[str, int, str]] = []
        self.on_projected: Callable[[Job], None] = lambda job: None
        self.faults = Faults()
        self.store = MemoryStore(self._deliver, hold=True, point=self.faults)
        self._delivered_at = 0.0
        self._committing = -1
        self._timers: dict[tuple[Any, ...], Callable[[], None]] = {}
        self._life = 0

    # ---- life

    def start(self) -> None:
        self.running, self.sessions = True, self.sessions + 1
        self._epoch = self.sessions << 24
        self.engine = Engine(POLICY, self.store, self)
        self.engine.start()
        self._soon()

    def _soon(self) -> None:
        """The disk takes its time: what waits becomes durable a little later, with all that came meanwhile."""
        if self.store.waiting and self._committing != self._life:
            life = self._committing = self._life
            self.time.after(self.time.random.expovariate(500.0), lambda: self._commit(life))

    def _commit(self, life: int) -> None:
        if life == self._life:
            self._committing = -1
            self.store.commit()

    def crash(self) -> None:
        """kill -9: what was not durable is gone, with every connection and timer."""
        if self.store.waiting:
            self.time.happened["the supervisor died before a commit"] += 1
        self.running = False
        self._life += 1
        self.store = self.store.crash()
        self.faults.mend()
        self._timers.clear()
        self.replies.clear()
        for link in list(self.links.values()):
            link.cut(tell=False)
        self.links.clear()

    def tell(self, *inputs: Input) -> None:
        if self.running:
            self.engine.tell(*inputs)
            self._soon()

    def _deliver(self, call: Callable[[], None]) -> None:
        """News of what is durable comes a little later, in order."""
        life = self._life
        self._delivered_at = max(self._delivered_at, self.time.now + self.time.random.expovariate(1000.0))

        def tell() -> None:
            if life == self._life:
                call()
                self._soon()

        self.time.after(self._delivered_at - self.time.now, tell)

    def connect(self, agent: Agent) -> Link | None:
        if not self.running or self.time.sometimes("a dial failed", 0.05):
            return None
        if token_hash(agent.config["token"]) not in self.engine.agent_record(agent.key).token_hashes:
            self.time.happened["an agent with an unknown token was refused"] += 1
            return None
        self._epoch += 1
        return Link(self, agent, self._epoch)

    def _send(self, key: AgentKey, message: ToAgent) -> None:
        if key in self.links:
            self.links[key].to_agent([message])

    # ---- ports of the engine

    def now(self) -> Now:
        return Now(self.time.wall, self.time.now, "sim", self.time.random.randbytes(32))

    def perform(self, effect: Effect) -> None:
        if not self.running:
            return
        match effect:
            case ReplyStatus(handle=handle, jid=jid, serial=serial):
                self._reply(handle, {"jid": jid, "serial": serial})
            case AgentReady(handle=handle, key=key):
                self._reply(handle, key)
            case ReplyRefusal(handle=handle, refusal=refusal):
                self._reply(handle, refusal)
            case LaunchTask(key=key, token=token, spec=spec):
                self.tasks.launch(key, token, spec)
            case StopTask(key=key, token=token, reason=reason, grace_secs=grace):
                self.tasks.stop(key, token, reason, grace)
            case FindTasks(key=key):
                self.tasks.find(key)
            case SettleTasks(key=key, tokens=tokens):
                self.tasks.settle(key, tokens)
            case SetTimer(timer=timer, secs=secs):
                self._clear(timer)
                life = self._life
                self._timers[timer] = self.time.after(secs, lambda: self._fired(timer, life))
            case ClearTimer(timer=timer):
                self._clear(timer)
            case StartAgent() | FindAgent() | StopAgent():
                self._drive(effect)
            case EndConnection(key=key, epoch=epoch):
                link = self.links.get(key)
                if link is not None and link.epoch == epoch:
                    link.cut()
            case Count(what=what):
                self.time.happened["counted: " + what] += 1

    def projected(self, job: Job, position: int, at: float) -> None:
        self.on_projected(job)

    def connections(self) -> list[tuple[AgentKey, int, Alive]]:
        return [(k, link.epoch, link.alive) for k, link in self.links.items() if link.alive]

    def fatal(self, refusal: Refusal) -> None:
        raise AssertionError(f"the store was given up: {refusal}")

    def noticed(self, what: str, detail: str) -> None:
        self.time.happened["noticed: " + what] += 1

    def broken(self, error: Exception) -> None:
        raise error

    # ---- played

    def _reply(self, handle: int, reply: Any) -> None:
        answer = self.replies.pop(handle, None)
        if answer is not None:
            answer(reply)

    def _clear(self, timer: tuple[Any, ...]) -> None:
        self._timers.pop(timer, lambda: None)()

    def _fired(self, timer: tuple[Any, ...], life: int) -> None:
        if life == self._life and self.running:
            self._timers.pop(timer, None)
            self.tell(TimerFired(timer))

    def _drive(self, effect: StartAgent | FindAgent | StopAgent) -> None:
        """The driver's verbs: slow, and failing now and then. A start may succeed though nobody hears of it."""
        key, life = effect.key, self._life

        def act() -> None:
            match effect:
                case StartAgent(attempt=attempt, token=token):
                    if self.time.sometimes("an agent's start failed", 0.05):
                        answer: Input = DriverFailed(key, attempt, "simulated")
                    else:
                        answer = DriverStarted(key, attempt, self.machine.start_keeper(key, {"token": token, "agentId": "A" * 32}))
                case FindAgent(handle=handle):
                    alive = self.machine.keeper_alive(key, handle)
                    if not alive and self.time.sometimes("the driver did not know", 0.1):
                        answer = DriverFound(key, "unknown", "simulated")
                    else:
                        answer = DriverFound(key, "alive" if alive else "gone", "simulated")
                case StopAgent(handle=handle):
                    if self.machine.keeper_alive(key, handle):
                        self.machine.keepers[key].die()
                    answer = DriverStopped(key)
            self.time.after(self.time.random.random() * 0.05, lambda: self.tell(answer) if life == self._life else None)

        self.time.after(self.time.random.random() * 0.3, act)
