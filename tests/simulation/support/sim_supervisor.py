"""The supervisor in the simulator: the real engine and core over the in-memory store; hub, run
service, effect executor and clock are simulated.

Supervisor processes follow each other on one store. Each may die at a crash point or between two
effects. In a life with several supervisors, each of these objects is one of them, with its processes;
`sim_site` has their lease.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
from jobscribe.supervisor.connections.hub import END_DEFERRED_SECS
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
from jobscribe.supervisor.engine.deferred_inputs import are_unawaited_ends, no_run_is_queued

if TYPE_CHECKING:
    from sim_database import Connection
    from sim_site import Site
    from sim_writer import LeasedStore, Writer

    from jobscribe.db.postgres.lease_protocol import Lease
    from jobscribe.runtime.lease_deadline import LeaseDeadline

POKE_SECS = 0.5

Reply = Callable[[dict[str, Any] | Refusal], None]


class Killed(BaseException):
    """Raised where the process dies."""


class Supervisor:
    def __init__(self, time: Time, machine: Machine, policy: CoreConfig, max_frame: int) -> None:
        self.time, self.machine, self.policy, self.max_frame = time, machine, policy, max_frame
        self.faults = Faults()
        #: decides which ends are deferred; None: none, because clients wait for all of them
        self.deferral: random.Random | None = None
        self.store: MemoryStore | LeasedStore = MemoryStore(
            self.deliver, hold=True, point=self.point
        )
        self.tasks = KeeperTaskDriver(self._send, {}, time.random.randbytes)
        self.driver = Driver(self)
        self.sessions = 0
        #: of several supervisors: the site, and of the present process its name, deadline and writer
        self.site: Site | None = None
        self.name = ""
        self.deadline: LeaseDeadline | None = None
        self.writer: Writer | None = None
        #: it has the lease, or had it and does not know better
        self.serving = False
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
        #: depth of calls of `guarded`
        self._guards = 0

    # ---- lifecycle

    @property
    def running(self) -> bool:
        """Return whether a process serves; it may be frozen."""
        return self.serving and not self.life.over

    @property
    def awake(self) -> bool:
        return self.serving and self.life.awake

    def start(self) -> None:
        if not self.life.over:
            return
        self.time.say("supervisor starts")
        self.life = Life(self.time)
        if self.site is not None:
            self.site.begins(self)
        else:
            self.sessions += 1
            self._serve()

    def serve(self, taken: "Lease", connection: "Connection") -> None:
        """Serve, with the lease."""
        assert self.site is not None
        self.time.say(self.name, "serves with epoch", taken.epoch)
        self.site.serves(self, taken, connection)
        self._serve()

    def _serve(self) -> None:
        self.serving = True
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
        if self.site is not None:
            if self.life.over:
                return
            self.site.acting = self
        self._guards += 1
        try:
            act()
        except Killed:
            self.crash()
        else:
            self.soon()
        finally:
            self._guards -= 1

    def crash(self, *, doubtful: bool = False) -> None:
        """kill -9: data that is not durable is lost, with every connection and timer; the next
        process starts after a moment.
        """
        if self.life.over:
            return
        self.time.say("supervisor dies", self.name)
        if self.serving and self.store.waiting:
            self.time.saw("the supervisor died before a commit")
        self.life.end()
        self.armed = None
        self.serving = False
        if self.site is None:
            self.store = self.store.crash(doubtful=doubtful)
        else:
            self.site.ends(self)
        self.faults.mend()
        self.timers.clear()
        self.replies.clear()
        self.driver.busy.clear()
        if self.site is None or self.site.sim.serving is self:
            self.driver.sign_ins.forget()
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
        if not self.awake:
            return
        for key, link in list(self.links.items()):
            if link.alive is not None and not self.engine.world.agent(key).needed:
                self.time.saw("an idle agent was sent home")
                link.to_agent(Kill(reason="the supervisor stops, and nothing runs here"))
        if self.writer is not None:
            writer = self.writer
            self.guarded(lambda: writer.close(self.crash))
            return
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
            if inputs and self.engine.deferred:
                self.time.saw("a deferred end was decided with the next inputs")
            self.decisions += 1
            self.guarded(lambda: self.engine.tell(*inputs))
            if self.running:
                self.on_decision()

    def hear(self, key: AgentKey, inputs: list[Input]) -> None:
        """Tell the engine what arrived in a frame, at once or with the next inputs, as the hub does."""
        r = self.deferral
        if (
            r is not None
            and self.running
            and are_unawaited_ends(inputs, lambda jid: r.random() < 0.5)
            and no_run_is_queued(self.engine.world, key)
        ):
            self.time.say("engine, with the next <-", *inputs)
            self.engine.deferred.add(inputs)
            self.life.after(r.choice((END_DEFERRED_SECS, 0.2)), self._tell_deferred)
        else:
            self.tell(*inputs)

    def _tell_deferred(self) -> None:
        if self.running and self.engine.deferred:
            self.tell()

    def point(self, name: str) -> None:
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

    def soon(self) -> None:
        """Plan a commit: all that waits by then becomes durable a little later."""
        if self.writer is not None and self.writer.busy:
            return
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

    def deliver(self, call: Callable[[], None]) -> None:
        """Deliver notifications of durable events a little later, in order."""
        self._delivered_at = max(
            self._delivered_at, self.time.now + self.time.random.expovariate(1000.0)
        )
        self.life.after(self._delivered_at - self.time.now, lambda: self.guarded(call))

    # ---- the lease

    def fence(self, what: str) -> None:
        """Check the deadline before anything is sent or started, as the product does: the process ends
        if it has passed. Then what it does must be allowed by the lease.
        """
        if self.deadline is not None:
            self.deadline.check()
            self.site.did(self, what)

    def fence_answer(self) -> None:
        self.fence("answered a request")

    def fence_effect(self, effect: Effect) -> None:
        self.fence(f"performed {type(effect).__name__}")

    def answers(self) -> bool:
        """Return whether it may answer a request that changes nothing."""
        self.fence_answer()
        return not self.life.over

    def sends(self) -> bool:
        """Return whether it may send to an agent; the process may end here."""
        if self.deadline is None:
            return True
        fence = lambda: self.fence("sent a message to an agent")
        if self._guards:
            fence()
        else:
            self.guarded(fence)
        return not self.life.over

    # ---- clients and agents

    def request(self, handle: int, reply: Reply, secs: float) -> None:
        """Register the callback and the deadline of a request."""
        self.replies[handle] = (reply, self.time.now + secs)

    def connect(self, agent: Any) -> Link | None:
        if not self.awake or self.time.strikes("a dial failed"):
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
        if isinstance(effect, ReplyStatus | ReplyRefusal | AgentReady):
            self.fence_answer()
        elif not isinstance(effect, SetTimer | ClearTimer | IncrementCounter):
            self.fence_effect(effect)
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
        if self.deadline is not None and not self.deadline.held:
            return  # the thread that writes records ends the process
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
