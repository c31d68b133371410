"""The supervisor in the simulator: the real engine and core over the in-memory store; hub, run
service, effect executor and clock are simulated.

Supervisor processes follow each other on one store. Each may die at a crash point or between two
effects.
"""

from collections.abc import Callable
from typing import Any

from sim_driver import Driver
from sim_link import Link
from sim_machine import Machine
from sim_time import Cancel, Life, Time

from jobscribe.db.events.state import Job
from jobscribe.db.store.failing_store import Faults
from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.drivers.keeper_tasks import KeeperTaskDriver
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.protocol.wire.messages import Alive, Kill, ToAgent
from jobscribe.supervisor.core.interface.causes import Cause
from jobscribe.supervisor.core.interface.effects import (
    AcknowledgeTasks,
    AgentReady,
    CheckPorts,
    ClearTimer,
    DiscardHeldTask,
    Effect,
    EndConnection,
    EvictAgent,
    FindAgent,
    IncrementCounter,
    LaunchGang,
    LaunchTask,
    ListTasks,
    RemoveRunDir,
    ReplyRefusal,
    ReplyStatus,
    SetTimer,
    StartAgent,
    StopAgent,
    StopTask,
)
from jobscribe.supervisor.core.interface.inputs import Input, Now, TimerFired
from jobscribe.supervisor.core.interface.timers import Timer
from jobscribe.supervisor.core.state.configuration import CoreConfig
from jobscribe.supervisor.core.state.transaction import token_hash
from jobscribe.supervisor.engine.decision_loop import Engine

POKE_SECS = 0.5

Reply = Callable[[dict[str, Any] | Refusal], None]


class Killed(BaseException):
    """Raised where the process dies."""


class Supervisor:
    def __init__(self, time: Time, machine: Machine, policy: CoreConfig, max_frame: int) -> None:
        self.time, self.machine, self.policy, self.max_frame = time, machine, policy, max_frame
        self.faults = Faults()
        self.store = MemoryStore(self._deliver, hold=True, point=self._point)
        self.tasks = KeeperTaskDriver(self._send, {}, time.random.randbytes)
        self.driver = Driver(self)
        self.sessions = 0
        self.life = Life(time)
        self.life.end()
        self.engine: Engine
        #: links by agent key that sent `alive`; and all open ones, by epoch
        self.links: dict[AgentKey, Link] = {}
        self.sockets: dict[int, Link] = {}
        #: waiting requests: callback and deadline
        self.replies: dict[int, tuple[Reply, float]] = {}
        self.timers: dict[Timer, Cancel] = {}
        #: the crash point that kills it, and at which passage
        self.armed: tuple[str, int] | None = None
        #: mean duration of a commit in seconds
        self.commit_secs = 0.002
        #: time since which it is up and well without a break: before that, no answer is expected in
        #: time
        self.well_since = 0.0
        self.on_projected: Callable[[Job], None] = lambda job: None
        self.on_decision: Callable[[], None] = lambda: None
        self.on_start: Callable[[], None] = lambda: None
        self.on_engine: Callable[[], None] = lambda: None
        self.on_death: Callable[[], None] = lambda: None
        self.on_removed: Callable[[str, int], None] = lambda jid, serial: None
        self._launched: set[Any] = set()
        #: number of inputs
        self.decisions = 0
        self._epoch = 0
        self._delivered_at = 0.0
        self._committing = False

    # ---- lifecycle

    @property
    def running(self) -> bool:
        return not self.life.over

    def start(self) -> None:
        if self.running:
            return
        self.time.say("supervisor starts")
        self.life = Life(self.time)
        self.sessions += 1
        self._epoch = self.sessions << 24
        self._committing = False
        self._delivered_at = self.well_since = self.time.now
        self.engine = Engine(self.policy, self.store, self)
        self.on_engine()
        self.guarded(self.engine.start)
        if self.running:
            self.on_decision()
        self.life.after(POKE_SECS, self._poke)
        self.on_start()

    def guarded(self, act: Callable[[], None]) -> None:
        """Run an action that may reach a crash point."""
        try:
            act()
        except Killed:
            self.crash()
        else:
            self._soon()

    def crash(self, *, doubtful: bool = False) -> None:
        """kill -9: data that is not durable is lost, with every connection and timer; the next
        process starts after a moment.
        """
        if not self.running:
            return
        self.time.say("supervisor dies")
        if self.store.waiting:
            self.time.saw("the supervisor died before a commit")
        self.life.end()
        self.armed = None
        self.store = self.store.crash(doubtful=doubtful)
        self.faults.mend()
        self.timers.clear()
        self.replies.clear()
        self.driver.forget()
        self.on_death()
        self._launched.clear()
        links, self.sockets = list(self.sockets.values()), {}
        self.links.clear()
        for link in links:
            link.open = False
            link.asked.clear()
            link.agent.life.after(
                0.2 * self.time.random.random(), lambda link=link: link.agent.lost(link)
            )
        self.time.after(self.time.random.random() * 5, self.start)

    def stop(self) -> None:
        """SIGTERM: accepted requests become durable, and idle agents are told to exit."""
        if not self.life.awake:
            return
        for key, link in list(self.links.items()):
            if link.alive is not None and not self.engine.world.agent(key).needed:
                self.time.saw("an idle agent was sent home")
                link.to_agent(Kill(reason="the supervisor stops, and nothing runs here"))
        self.guarded(lambda: self.store.commit())
        self.crash()

    def freeze(self, secs: float) -> None:
        life = self.life
        life.freeze()

        def thaw() -> None:
            self.well_since = self.time.now
            life.thaw()

        self.time.after(secs, thaw)
        for link in list(self.sockets.values()):
            late = self.time.random.uniform(10, 30)
            if late < secs:
                link.agent.life.after(late, link.agent_gives_up)

    def _poke(self) -> None:
        was_paused = self.engine.paused
        self.guarded(self.engine.poke)
        if self.running and was_paused and not self.engine.paused:
            self.well_since = self.time.now
            self.time.saw("the supervisor went on after its disk was well again")
            self.on_decision()
        self.life.after(POKE_SECS, self._poke)

    def tell(self, *inputs: Input) -> None:
        if self.running:
            self.time.say("engine <-", *inputs)
            self.decisions += 1
            self.guarded(lambda: self.engine.tell(*inputs))
            if self.running:
                self.on_decision()

    def _point(self, name: str) -> None:
        """Handle a crash point of the store or (through `crashpoints`) of the engine."""
        self.reached("supervisor." + name)
        self.faults(name)

    def reached(self, name: str) -> None:
        if self.armed is not None and self.armed[0] == name:
            self.armed = (name, self.armed[1] - 1)
            if self.armed[1] <= 0:
                self.time.saw(f"the supervisor died at {name}")
                raise Killed

    # ---- store

    def _soon(self) -> None:
        """Plan a commit: all that waits by then becomes durable a little later."""
        if self.running and self.store.waiting and not self._committing:
            self._committing = True
            secs = self.time.random.expovariate(1 / self.commit_secs)
            self.life.after(
                secs
                * (
                    200 if self.commit_secs < 0.01 and self.time.strikes("a commit was slow") else 1
                ),
                self._commit,
            )

    def _commit(self) -> None:
        self._committing = False
        self.guarded(self.store.commit)

    def _deliver(self, call: Callable[[], None]) -> None:
        """Deliver notifications of durable events a little later, in order."""
        self._delivered_at = max(
            self._delivered_at, self.time.now + self.time.random.expovariate(1000.0)
        )
        self.life.after(self._delivered_at - self.time.now, lambda: self.guarded(call))

    # ---- clients and agents

    def request(self, handle: int, reply: Reply, secs: float) -> None:
        """Register the callback and the deadline of a request."""
        self.replies[handle] = (reply, self.time.now + secs)

    def connect(self, agent: Any) -> Link | None:
        if not self.life.awake or self.time.strikes("a dial failed"):
            return None
        if (
            token_hash(agent.config["token"])
            not in self.engine.agent_record(agent.key).token_hashes
        ):
            self.time.saw("an agent with an unknown token was refused")
            return None
        self._epoch += 1
        link = self.sockets[self._epoch] = Link(self, agent, self._epoch, self.max_frame)
        return link

    def _send(self, key: AgentKey, message: ToAgent) -> None:
        if key in self.links:
            self.links[key].to_agent(message)

    # ---- ports of the engine

    def now(self) -> Now:
        return Now(
            self.time.wall,
            self.machine.home.mono,
            self.machine.home.boot_id,
            self.time.random.randbytes(32),
        )

    def now_of_checks(self) -> Now:
        """Return the time without entropy: a check must not change the life."""
        return Now(self.time.wall, self.machine.home.mono, self.machine.home.boot_id, b"")

    def perform(self, effect: Effect, cause: Cause) -> None:
        if self.time.strikes("the supervisor died between two effects"):
            raise Killed
        self.time.say("effect", effect, f"cause={cause}")
        match effect:
            case ReplyStatus(handle=handle, jid=jid, serial=serial):
                run = self.engine.world.jobs[jid].run if jid in self.engine.world.jobs else None
                late = None if run is None or run.serial != serial else run.late_stop
                self._reply(handle, {"jid": jid, "serial": serial, "lateStop": late})
            case AgentReady(handle=handle):
                self._reply(handle, {})
            case ReplyRefusal(handle=handle, refusal=refusal):
                self._reply(handle, refusal)
            case LaunchTask(key=key, token=token, spec=spec, slot=slot):
                self._see_launch(token)
                self.tasks.launch(key, token, spec, slot)
            case LaunchGang(key=key, shared=shared, tasks=tasks):
                for task in tasks:
                    self._see_launch(task.token)
                self.tasks.launch_gang(key, shared, tasks)
            case CheckPorts(key=key, op_id=op_id, ports=ports):
                self.tasks.probe(key, op_id, ports)
            case StopTask(key=key, token=token, reason=reason, grace_secs=grace):
                self.tasks.stop(key, token, reason, grace)
            case ListTasks(key=key):
                self.tasks.find(key)
            case AcknowledgeTasks(key=key, tokens=tokens):
                self.tasks.settle(key, tokens)
            case DiscardHeldTask(key=key, token=token):
                self.tasks.release(key, token)
            case SetTimer(timer=timer, secs=secs):
                self._clear(timer)
                self.timers[timer] = self.life.after(secs, lambda: self._fired(timer, cause))
            case ClearTimer(timer=timer):
                self._clear(timer)
            case StartAgent() | FindAgent() | StopAgent():
                self.driver.perform(effect)
            case EvictAgent():
                self.driver.dismiss(effect)
            case RemoveRunDir(jid=jid, serial=serial):
                self.on_removed(jid, serial)
            case EndConnection(key=key, epoch=epoch):
                link = self.links.get(key)
                if link is not None and link.epoch == epoch:
                    link.close()
            case IncrementCounter(what=what):
                self.time.saw("counted: " + what)

    def projected(self, job: Job, position: int, at: float) -> None:
        self.on_projected(job)

    def connections(self) -> list[tuple[AgentKey, int, Alive]]:
        return [(k, link.epoch, link.alive) for k, link in self.links.items() if link.alive]

    def fatal(self, refusal: Refusal) -> None:
        """Stop the process with the reason. The data of the failed sync may be on the disk or not."""
        self.time.saw("the store failed for good, and the supervisor stopped")
        self.life.after(
            self.time.random.random() * 0.1,
            lambda: self.crash(doubtful=self.time.random.random() < 0.5),
        )

    def noticed(self, what: str, detail: str) -> None:
        self.well_since = self.time.now
        self.time.saw("noticed: " + what)

    def broken(self, error: Exception) -> None:
        raise error

    def _see_launch(self, token: Token) -> None:
        if token in self._launched:
            self.time.saw("a task was launched again, for nobody knew whether it had been")
        self._launched.add(token)

    def _reply(self, handle: int, reply: Any) -> None:
        waiting = self.replies.pop(handle, None)
        if waiting is not None:
            waiting[0](reply)

    def _clear(self, timer: Timer) -> None:
        self.timers.pop(timer, lambda: None)()

    def _fired(self, timer: Timer, cause: Cause) -> None:
        self.timers.pop(timer, None)
        self.tell(TimerFired(timer, cause))
