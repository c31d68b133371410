"""A model of the keeper: disk, processes, clock and crash points are simulated; all decisions are
those of the real state machine (`jobscribe.protocol.execution`).

The simulator cannot drive the real keeper: its steps are file operations, spawning, waiting and
/proc. test_keeper_model.py runs the same script on both and compares their reports.
"""

from typing import TYPE_CHECKING, Any

from sim_keeper_disk import Disk, Evidence, Execution
from sim_keeper_evidence import elapsed, exit_of, look_for_it, read_start
from sim_time import Life

from jobscribe.protocol.execution.lifecycle import Step
from jobscribe.protocol.execution.table import (
    REFUSED_BEFORE,
    STOPPED_BEFORE,
    ExecutionTable,
    Use,
    never_started,
)
from jobscribe.protocol.ids import AgentKey

if TYPE_CHECKING:
    from sim_agent import Agent
    from sim_machine import Machine, Process

#: Delay between the two ends of the socket pair, in seconds.
WAY_SECS = 0.0005
#: Default grace of an order to stop.
GRACE_SECS = 3.0
#: A waiting order is started in the slot of an ended execution for this long.
AHEAD_SECS = 30.0
#: Pause between two looks at what outlived a main process, and the shortest pause (seconds).
_LOOK_SECS, _SHORTEST_SECS = 0.05, 1e-6


class Dies(BaseException):
    """Raised where the keeper dies."""


class Keeper:
    """Parent of agent and jobs. When it dies its jobs continue, and the next keeper reads the disk."""

    def __init__(self, machine: "Machine", key: AgentKey, pid: int, config: dict[str, str]) -> None:
        self.machine, self.key, self.pid, self.config, self.time = (
            machine,
            key,
            pid,
            config,
            machine.time,
        )
        self.life = Life(machine.time)
        self.host = machine.host(key.host)
        self.disk = machine.disks.setdefault(key, Disk())
        self.table = ExecutionTable()
        #: start orders that wait for a slot, with their time of arrival
        self.ahead: dict[str, tuple[float, dict[str, Any]]] = {}
        self.agent: Agent | None = None
        #: the crash point that kills it
        self.armed: str | None = None
        self.quitting = False
        self._pause = 0.1

    # ---- lifecycle

    def start(self) -> None:
        self.guarded(self._recover)
        if not self.life.over:
            self.start_agent()

    def start_agent(self) -> None:
        if self.life.over or self.quitting:
            return
        if any(a.key == self.key for a in self.machine.live_agents()):
            self.time.saw("two agents of one key lived at once")
        self.ahead.clear()  # the new agent does not know them
        self.agent = self.machine.new_agent(self)
        self.machine.agents.append(self.agent)
        self.agent.start([self.said(e) for e in self.table.known.values()])

    def agent_ended(self, agent: "Agent") -> None:
        """Handle SIGCHLD."""
        if agent is not self.agent:
            return
        self.agent = None
        if self.quitting:
            self.die()
            return
        self.life.after(self._pause, self.start_agent)
        self._pause = 0.1 if self.time.now - agent.since >= 30 else min(5.0, 2 * self._pause)

    def die(self) -> None:
        """kill -9: the agent reads the end of the socket; the jobs are not affected."""
        self.time.say("keeper", self.pid, "dies")
        if self.ahead:
            self.time.saw("a keeper died while runs waited with it for a slot")
        self.life.end()
        if self.agent is not None:
            self.agent.keeper_gone()

    def told_to_end(self) -> None:
        """Handle SIGTERM: stop the jobs first, then the agent, then the keeper itself."""
        self.quitting = True
        self.ahead.clear()
        for e in self.table.live():
            if not self.life.over:
                self.guarded(lambda e=e: self.stop(e, "shutdown", GRACE_SECS))
        self._end_when_idle()

    def _end_when_idle(self) -> None:
        if self.quitting and not self.life.over and not any(self.table.live()):
            if self.agent is not None:
                self.agent.keeper_gone()
            else:
                self.die()

    def guarded(self, act: Any) -> None:
        try:
            act()
        except Dies:
            self.die()

    def reached(self, point: str) -> None:
        if self.armed == point:
            self.armed = None
            self.time.saw(f"a keeper died at {point}")
            raise Dies

    # ---- orders

    def order(self, order: dict[str, Any]) -> None:
        """Handle an order that came from the agent over the socket pair; the answer goes the same
        way.
        """
        match order["do"]:
            case "start":
                self.guarded(lambda: self._start(order))
            case "release":
                if order["name"] in self.ahead:
                    _, waiting = self.ahead[order["name"]]
                    self.guarded(lambda: self._start(waiting | {"ahead": False}))
            case "stop":
                self.guarded(lambda: self._stop_order(order))
            case "forget":
                for name in self.table.settle(order["names"]):
                    self._strike(name)
            case "quit":
                self.quitting = True
                if self.agent is not None:
                    self.agent.keeper_gone()

    def _start(self, order: dict[str, Any]) -> None:
        e = self._found(order)
        if e is not None:
            self._tell_state(e)
            return
        if order.get("ahead") and not self.quitting:
            self.ahead.setdefault(order["name"], (self.time.now, order))
            self.time.saw("a run waited with its agent for a slot")
            return
        self.ahead.pop(order["name"], None)
        e = Execution(order["name"], order["token"])
        e.life.limit, e.life.grace = order["limit"], order["grace"]
        e.slot = order.get("slot", False)
        if self.quitting:
            self.table.refuse(e.name)
            self._never(e, never_started("the keeper is about to end", self.time.wall))
            return
        self._consume(e)
        self.reached("keeper.consumed")
        self._write(e.folder, "output", True)
        e.process = self.machine.spawn(e.token, self.host, order)
        e.life.started(self.time.wall, self.host.mono)
        self.reached("keeper.spawned")
        self._note(e)
        self.reached("keeper.noted")
        self.table.known[e.name] = e
        self.tell("started", e)
        self._advance(e)

    def _stop_order(self, order: dict[str, Any]) -> None:
        e = self._found(order)
        if e is None:
            if self.ahead.pop(order["name"], None) is not None:
                self.time.saw("a run was stopped that waited with its agent for a slot")
            e = Execution(order["name"], order["token"])
            e.life.stop(order["reason"], order["grace"], self.host.mono)
            self._consume(e)
            e.life.start_barred()
            exit_ = never_started(STOPPED_BEFORE, self.time.wall, e.life.stop_reason)
            self._write(e.folder, "exit", exit_)
            self._never(e, exit_)
            self.time.saw("a task was stopped before it started")
        elif e.life.ended:
            self._tell_state(e)
        else:
            self.stop(e, order["reason"], order["grace"])

    # ---- disk

    def _consume(self, e: Execution) -> None:
        self.disk.ledger[e.name] = e.token
        self.host.wrote(lambda: self.disk.ledger.pop(e.name, None))
        self.disk.runs[e.name] = e.folder
        self.host.wrote(lambda: self.disk.runs.pop(e.name, None))
        e.life.claimed()

    def _strike(self, name: str) -> None:
        token = self.disk.ledger.pop(name, None)
        if token is not None:
            self.host.wrote(lambda: self.disk.ledger.__setitem__(name, token))

    def _write(self, folder: Evidence, what: str, value: Any) -> None:
        before = getattr(folder, what)
        setattr(folder, what, value)
        self.host.wrote(lambda: setattr(folder, what, before))

    def _write_stop(self, e: Execution, *, signaled: bool) -> None:
        said = {
            "reason": e.life.requested_reason,
            "grace": e.life.grace,
            "signaled": signaled,
            "step": self.time.steps,
        }
        self._write(e.folder, "stop", said)

    def _note(self, e: Execution) -> None:
        assert e.process is not None
        said = {
            "process": e.process,
            "wall": e.life.started_at,
            "mono": e.life.started_mono,
            "limit": e.life.limit,
            "grace": e.life.grace,
            "boot": self.host.boot,
        }
        self._write(e.folder, "start", said)

    # ---- recovery after an earlier keeper

    def _recover(self) -> None:
        for name, token in sorted(self.disk.ledger.items()):
            if name in self.disk.runs:
                self._take_over(name, token)
            else:
                self._strike(name)

    def _found(self, order: dict[str, Any]) -> Execution | None:
        name = order["name"]
        match self.table.use_of(name, lambda: name in self.disk.runs):
            case Use.KNOWN:
                known: Execution = self.table.known[name]
                return known
            case Use.USED:
                self.time.saw("an order came for what was forgotten")
                return self._take_over(name, order["token"])
            case Use.REFUSED:
                e = self.table.known[name] = Execution(name, order["token"])
                e.life.finish(never_started(REFUSED_BEFORE, self.time.wall))
                return e
            case Use.FREE:
                return None

    def _take_over(self, name: str, token: str) -> Execution:
        folder = self.disk.runs[name]
        e = self.table.known[name] = Execution(name, token, folder, own=False)
        e.life.claimed()
        if folder.start is not None:
            read_start(self.host, e, folder.start)
        exit_ = folder.exit or look_for_it(self.machine, self.host, e)
        if folder.stop is not None:
            e.life.resume_stop(
                folder.stop["reason"],
                folder.stop["grace"],
                self.host.mono,
                signaled=folder.stop["signaled"],
            )
        if exit_ is not None:
            if folder.exit is None:
                exit_["stopReason"] = e.life.stop_reason
                self._write(folder, "exit", exit_)
            e.life.finish(exit_, elapsed(exit_))
            self.machine.on_act(e)
            return e
        self.time.saw("a keeper took over what an earlier one had started")
        if not e.life.exiting:
            self._note(e)
        self._advance(e)
        return e

    # ---- steps

    def stop(self, e: Execution, reason: str, grace: float) -> None:
        self.machine.on_stop(e, grace)
        if not e.life.stop(reason, grace, self.host.mono) and e.life.exiting:
            self.time.saw("a stop came when only children of a job were left")
        self._advance(e)

    def process_ended(self, p: "Process") -> None:
        for e in self.table.live():
            if e.process is p:
                e.life.exited(self.host.mono)
                self.guarded(lambda e=e: self._advance(e))
                return

    def _advance(self, e: Execution) -> None:
        """Perform the steps of an execution until it has ended or waits."""
        e.timer()
        while not e.life.ended:
            step = e.life.next_step(self.host.mono)
            main = e.process or self.machine.by_token.get(e.token)
            if e.life.exiting and step is not Step.WITHDRAW_STOP and not self.machine.is_left(main):
                self._finish(e)
                break
            self._perform(e, step)
            if e.life.stopping or step is Step.WITHDRAW_STOP:
                self._stepped(step)
            if step in (Step.TERMINATE, Step.KILL, Step.NONE):
                self._wait(e)
                break
        self.machine.on_act(e)

    def _stepped(self, step: Step) -> None:
        """Perhaps die after a step of a stop."""
        if self.time.strikes("a keeper died between two steps of a stop"):
            self.time.saw(f"a keeper died after the step: {step.value}")
            raise Dies

    def _perform(self, e: Execution, step: Step) -> None:
        match step:
            case Step.RECORD_STOP:
                self._write_stop(e, signaled=False)
                e.life.stop_recorded()
                self.reached("keeper.stopping")
            case Step.CHECK_EXIT:
                if e.process is None or e.process.ended is not None:
                    e.life.exited(self.host.mono)
                else:
                    e.life.exit_missing()
            case Step.WITHDRAW_STOP:
                self.time.saw("a stop was withdrawn, for the job had just exited")
                self._write(e.folder, "stop", None)
                e.life.stop_withdrawn()
            case Step.RECORD_SIGNAL:
                self._write_stop(e, signaled=True)
                e.life.signal_recorded()
            case Step.TERMINATE | Step.KILL:
                self._signal(e, step)
            case Step.NONE:
                pass
            case Step.BAR_START:
                raise AssertionError(f"{e.token} is known, and neither started nor exited")

    def _signal(self, e: Execution, step: Step) -> None:
        p = e.process
        if p is None or (step is Step.TERMINATE and e.life.terminated):
            return
        self.machine.on_signal(e, step, self.life)
        if step is Step.KILL:
            self.machine.kill(p, 9, with_recorder=False)
        elif p.ended is None:
            self.machine.terminate(p)
        e.life.signal_sent(step)

    def _wait(self, e: Execution) -> None:
        """Plan the next look at an execution."""
        now = self.host.mono
        at = e.life.wake_at(now)
        if e.life.exiting:
            if e.life.exit_due(now):
                self._tell_exit(e)
            at = min(at, self._next_look(e, now))
        if at < float("inf"):
            secs = max(_SHORTEST_SECS, at - now)
            e.timer = self.life.after(secs, lambda: self.guarded(lambda: self._advance(e)))

    def _next_look(self, e: Execution, now: float) -> float:
        """Return when to look again at what outlived the main process."""
        p = e.process or self.machine.by_token[e.token]
        if e.life.own_exit is None or p.ended is None:
            return now + _LOOK_SECS
        return now + p.ended + p.lingers - self.time.now

    # ---- ends of executions

    def _tell_exit(self, e: Execution) -> None:
        """Report the exit of the main process while its children are left."""
        exit_ = exit_of(self.machine, e)
        if exit_["source"] != "lost":
            e.life.exit_reported(exit_)
            self.time.saw("an exit was told while children of the job were left")
            self.tell("started", e)

    def _finish(self, e: Execution) -> None:
        exit_ = exit_of(self.machine, e)
        self.reached("keeper.seen")
        self._write(e.folder, "exit", exit_)
        self.reached("keeper.ended")
        e.life.finish(exit_, elapsed(exit_))
        self._tell_end(e)
        self._end_when_idle()

    def _never(self, e: Execution, exit_: dict[str, Any]) -> None:
        e.life.finish(exit_)
        self.table.known[e.name] = e
        self.machine.on_act(e)
        self._tell_end(e)

    def _tell_end(self, e: Execution) -> None:
        """Report an end, and start the run that has waited longest for the slot."""
        arrived, order = next(iter(self.ahead.values()), (0.0, None))
        if order is None or not e.slot or self.quitting:
            self.tell("ended", e)
            return
        if self.time.now - arrived > AHEAD_SECS:
            self.time.saw("a run had waited too long with its agent for a slot")
            self.tell("ended", e)
            return
        e.successor = order["token"]
        self.tell("ended", e)
        self.time.saw("a run was started in the slot of an ended one")
        self._start(order | {"ahead": False})

    # ---- reports

    def said(self, e: Execution) -> dict[str, Any]:
        p = e.process
        return {
            "name": e.name,
            "token": e.token,
            "state": e.life.state.value,
            "pid": p.pid if p else None,
            "startTicks": p.pid if p else None,
            "startedAt": p.started + self.time.wall_offset if p else None,
            "elapsed": e.life.running_secs(self.host.mono),
            "exit": e.life.exit or e.life.own_exit,
            "successor": e.successor,
        }

    def _tell_state(self, e: Execution) -> None:
        self.time.saw("an order changed nothing, and was answered with what is")
        self.tell("ended" if e.life.ended else "started", e)

    def tell(self, what: str, e: Execution) -> None:
        agent = self.agent
        if agent is not None:
            said = {"is": what, **self.said(e)}
            agent.life.after(WAY_SECS, lambda: agent.keeper_reported(said))
