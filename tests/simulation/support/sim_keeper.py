"""A model of the keeper: the same decisions as the real one, on a simulated disk and simulated
processes.

The simulator cannot drive the real keeper: its decisions are mixed with file operations, spawning,
waiting and /proc. test_keeper_model.py runs the same script on both and compares their reports.
"""

from typing import TYPE_CHECKING, Any

import msgspec
from sim_time import Cancel, Life

from jobscribe.agent.keeper.executions import exit_info
from jobscribe.protocol.execution.table import STOPPED_BEFORE
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


class Dies(BaseException):
    """Raised where the keeper dies."""


class Evidence(msgspec.Struct):
    """A token's folder. The token is consumed if the folder exists. start, stop, exit: content of
    the files of these names.
    """

    output: bool = False
    start: dict[str, Any] | None = None
    stop: dict[str, Any] | None = None
    exit: dict[str, Any] | None = None


class Disk(msgspec.Struct):
    """An agent's folder."""

    ledger: dict[str, str] = msgspec.field(default_factory=dict)
    runs: dict[str, Evidence] = msgspec.field(default_factory=dict)


class Execution(msgspec.Struct):
    """The keeper's state of one execution."""

    name: str
    token: str
    folder: Evidence
    process: "Process | None" = None
    own: bool = True
    main_over: bool = False
    started_mono: float | None = None
    limit: float | None = None
    grace: float = GRACE_SECS
    stop_reason: str | None = None
    kill_at: float | None = None
    killing: bool = False
    exit: dict[str, Any] | None = None
    slot: bool = False
    successor: str | None = None


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
        self.known: dict[str, Execution] = {}
        self.refused: set[str] = set()
        #: start orders that wait for a slot, with their time of arrival
        self.ahead: dict[str, tuple[float, dict[str, Any]]] = {}
        self.agent: Agent | None = None
        #: the crash point that kills it
        self.armed: str | None = None
        self.quitting = False
        self._pause = 0.1
        self._limits: dict[str, Cancel] = {}

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
        self.agent.start([self.said(e) for e in self.known.values()])

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
        for cancel in self._limits.values():
            cancel()
        if self.agent is not None:
            self.agent.keeper_gone()

    def told_to_end(self) -> None:
        """Handle SIGTERM: stop the jobs first, then the agent, then the keeper itself."""
        self.quitting = True
        self.ahead.clear()
        for e in list(self.known.values()):
            self.guarded(lambda e=e: self.stop(e, "shutdown", GRACE_SECS))
        self._end_when_idle()

    def _end_when_idle(self) -> None:
        if (
            self.quitting
            and not self.life.over
            and all(e.exit is not None for e in self.known.values())
        ):
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
                for name in order["names"]:
                    self._forget(name)
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
        e = Execution(
            name=order["name"],
            token=order["token"],
            folder=Evidence(),
            limit=order["limit"],
            grace=order["grace"],
            slot=order.get("slot", False),
        )
        if self.quitting:
            self.refused.add(e.name)
            self._never(e, "the keeper is about to end", consumed=False)
            return
        self._consume(e)
        self.reached("keeper.consumed")
        self._write(e.folder, "output", True)
        e.process = self.machine.spawn(e.token, self.host, order)
        e.started_mono = self.host.mono
        self.reached("keeper.spawned")
        self._note(e)
        self.reached("keeper.noted")
        self._add(e)
        self.tell("started", e)

    def _stop_order(self, order: dict[str, Any]) -> None:
        e = self._found(order)
        if e is None:
            if self.ahead.pop(order["name"], None) is not None:
                self.time.saw("a run was stopped that waited with its agent for a slot")
            e = Execution(
                name=order["name"],
                token=order["token"],
                folder=Evidence(),
                stop_reason=order["reason"],
            )
            self._consume(e)
            self._never(e, STOPPED_BEFORE, consumed=True)
            self.time.saw("a task was stopped before it started")
        elif e.exit is not None:
            self._tell_state(e)
        else:
            self.stop(e, order["reason"], order["grace"])

    def _forget(self, name: str) -> None:
        e = self.known.get(name)
        if e is not None and e.exit is not None:
            self._strike(name)
            del self.known[name]

    # ---- disk

    def _consume(self, e: Execution) -> None:
        self.disk.ledger[e.name] = e.token
        self.host.wrote(lambda: self.disk.ledger.pop(e.name, None))
        self.disk.runs[e.name] = e.folder
        self.host.wrote(lambda: self.disk.runs.pop(e.name, None))

    def _strike(self, name: str) -> None:
        token = self.disk.ledger.pop(name, None)
        if token is not None:
            self.host.wrote(lambda: self.disk.ledger.__setitem__(name, token))

    def _write(self, folder: Evidence, what: str, value: Any) -> None:
        before = getattr(folder, what)
        setattr(folder, what, value)
        self.host.wrote(lambda: setattr(folder, what, before))

    def _note(self, e: Execution) -> None:
        assert e.process is not None
        said = {
            "process": e.process,
            "mono": e.started_mono,
            "limit": e.limit,
            "grace": e.grace,
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
        if name in self.known:
            return self.known[name]
        if name in self.disk.runs:
            self.time.saw("an order came for what was forgotten")
            return self._take_over(name, order["token"])
        if name in self.refused:
            e = Execution(name=name, token=order["token"], folder=Evidence())
            e.exit = self._never_began("an earlier start failed; it is not tried again", None)
            self.known[name] = e
            return e
        return None

    def _take_over(self, name: str, token: str) -> Execution:
        folder = self.disk.runs[name]
        e = self.known[name] = Execution(name=name, token=token, folder=folder, own=False)
        e.stop_reason = folder.stop["reason"] if folder.stop and folder.stop["signaled"] else None
        if folder.start is not None:
            start = folder.start
            e.process, e.started_mono, e.limit, e.grace = (
                start["process"],
                start["mono"],
                start["limit"],
                start["grace"],
            )
        if folder.exit is not None:
            e.exit = folder.exit
            return e
        if folder.start is None:
            self._search(e)
        elif folder.start["boot"] != self.host.boot:
            self._end(e, self._from_evidence(e, exit_info.RESTARTED))
        else:
            e.main_over = e.process is None or e.process.ended is not None
        if e.exit is not None:
            self._write(folder, "exit", e.exit)
            return e
        self.time.saw("a keeper took over what an earlier one had started")
        if e.main_over:
            self._finish(e)
            return e
        self._note(e)
        self._add(e)
        if folder.stop is not None:
            self.stop(e, folder.stop["reason"], folder.stop["grace"])
        return e

    def _search(self, e: Execution) -> None:
        """Search for the process: the keeper ended between consuming the token and recording the
        process.
        """
        p = self.machine.by_token.get(e.token)
        if p is not None and p.ended is None:
            e.process, e.started_mono = p, self.host.mono - (self.time.now - p.started)
            return
        e.main_over = True
        if not e.folder.output:
            self._end(e, self._never_began(exit_info.NEVER_SPAWNED, e.stop_reason))

    # ---- ends of executions

    def _add(self, e: Execution) -> None:
        self.known[e.name] = e
        if e.limit is not None and e.started_mono is not None:
            left = max(0.0, e.started_mono + e.limit - self.host.mono)
            self._limits[e.name] = self.life.after(
                left, lambda: self.guarded(lambda: self.stop(e, "timeLimit", e.grace))
            )

    def stop(self, e: Execution, reason: str, grace: float) -> None:
        if e.exit is not None:
            return
        now = self.host.mono
        if e.kill_at is None:
            if e.stop_reason is None:
                self._write(e.folder, "stop", {"reason": reason, "grace": grace, "signaled": False})
                self.reached("keeper.stopping")
                self._write(e.folder, "stop", {"reason": reason, "grace": grace, "signaled": True})
            e.stop_reason = e.stop_reason or reason
            e.kill_at = now + grace
            if e.process is not None:
                self.machine.terminate(e.process)
        e.kill_at = min(e.kill_at, now + grace)
        self.life.after(max(0.0, e.kill_at - now), lambda: self._kill(e))

    def _kill(self, e: Execution) -> None:
        if e.exit is None and e.process is not None and e.process.ended is None:
            e.killing = True
            self.machine.kill(e.process, 9, with_recorder=False)

    def process_ended(self, p: "Process") -> None:
        for e in list(self.known.values()):
            if e.process is p and e.exit is None:
                self.guarded(lambda e=e: self._finish(e))
                return

    def _finish(self, e: Execution) -> None:
        if e.own:
            exit_ = self._from_parent(e)
        else:
            exit_ = self._from_evidence(
                e, exit_info.KILLED_UNSEEN if e.process is not None else exit_info.NOTHING_LEFT
            )
            if exit_["source"] == "lost" and e.killing and e.stop_reason is not None:
                exit_ = {"source": "keeper", "signal": 9}
        self.reached("keeper.seen")
        exit_["stopReason"] = e.stop_reason
        self._write(e.folder, "exit", exit_)
        self.reached("keeper.ended")
        self._end(e, exit_)
        self._tell_end(e)
        self._end_when_idle()

    def _end(self, e: Execution, exit_: dict[str, Any]) -> None:
        e.exit = exit_ | {"stopReason": e.stop_reason}
        self._limits.pop(e.name, lambda: None)()

    def _never(self, e: Execution, detail: str, *, consumed: bool) -> None:
        e.exit = self._never_began(detail, e.stop_reason)
        if consumed:
            self._write(e.folder, "exit", e.exit)
        self.known[e.name] = e
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

    def _never_began(self, detail: str, stop_reason: str | None) -> dict[str, Any]:
        return {
            "source": "start",
            "detail": detail,
            "stopReason": stop_reason,
            "endedAt": self.time.wall,
        }

    def _from_parent(self, e: Execution) -> dict[str, Any]:
        assert e.process is not None
        p, times = e.process, self._times(e)
        return {
            "source": "keeper",
            **times,
            **({"code": p.code} if p.signal is None else {"signal": p.signal}),
        }

    def _from_evidence(self, e: Execution, otherwise: str) -> dict[str, Any]:
        p = e.process or self.machine.by_token.get(e.token)
        if p is None or p.written is None:
            return {
                "source": "lost",
                "detail": otherwise,
                "startedAt": self._times(e)["startedAt"] if e.process else None,
            }
        self.time.saw("an end was taken from its evidence")
        times = self._times(e) if e.process else {}
        return {
            "source": "keeper",
            **times,
            **({"code": p.written} if p.signal is None else {"signal": p.written - 128}),
        }

    def _times(self, e: Execution) -> dict[str, Any]:
        p = e.process
        assert p is not None
        return {
            "startedAt": p.started + self.time.wall_offset,
            "endedAt": None if p.ended is None else p.ended + self.time.wall_offset,
        }

    # ---- reports

    def said(self, e: Execution) -> dict[str, Any]:
        p = e.process
        return {
            "name": e.name,
            "token": e.token,
            "state": "ended" if e.exit else "running",
            "pid": p.pid if p else None,
            "startTicks": p.pid if p else None,
            "startedAt": p.started + self.time.wall_offset if p else None,
            "elapsed": self.host.mono - e.started_mono
            if e.started_mono is not None and e.exit is None
            else None,
            "exit": e.exit,
            "successor": e.successor,
        }

    def _tell_state(self, e: Execution) -> None:
        self.time.saw("an order changed nothing, and was answered with what is")
        self.tell("ended" if e.exit else "started", e)

    def tell(self, what: str, e: Execution) -> None:
        agent = self.agent
        if agent is not None:
            said = {"is": what, **self.said(e)}
            agent.life.after(WAY_SECS, lambda: agent.keeper_reported(said))
