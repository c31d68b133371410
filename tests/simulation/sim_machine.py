"""The machine where jobs run: keepers (a model of the real one: what survives is what lies on disk), agents (the real session
and codec), and jobs that end by themselves. Kept by itself, so that it can be the witness against the supervisor's books."""

from collections.abc import Callable
from typing import Any

import msgspec
from sim_time import Time

from jobscribe.agent.session import Forget, Launch, Quit, Read, Send, Session, Stop
from jobscribe.protocol.codec import Decoder, Encoder
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.protocol.messages import Alive


class Process(msgspec.Struct):
    """One real execution, as the machine itself knows it."""

    token: str
    pid: int
    started: float
    ends_at: float
    code: int
    ended: float | None = None
    signal: int | None = None
    #: somebody's keeper waited for it
    reaped: bool = False


class Evidence(msgspec.Struct):
    """A token's folder on disk: its existence is the token's consumption."""

    name: str
    token: str
    pid: int | None = None
    exit: dict[str, Any] | None = None
    forgotten: bool = False
    stop_reason: str | None = None


class Machine:
    """Disk, processes and the one keeper and agent a key."""

    def __init__(self, time: Time, connect: "Callable[[Agent], Any]") -> None:
        self.time = time
        self.connect = connect
        self.disk: dict[AgentKey, dict[str, Evidence]] = {}
        self.processes: dict[int, Process] = {}
        self.starts: dict[str, int] = {}
        self.keepers: dict[AgentKey, Keeper] = {}
        self._pid = 100

    def start_keeper(self, key: AgentKey, config: dict[str, str]) -> dict[str, Any]:
        keeper = self.keepers.get(key)
        if keeper is None or not keeper.alive:
            self._pid += 1
            keeper = self.keepers[key] = Keeper(self, key, self._pid, config)
            keeper.start()
        return {"pid": keeper.pid}

    def keeper_alive(self, key: AgentKey, handle: dict[str, Any]) -> bool:
        keeper = self.keepers.get(key)
        return keeper is not None and keeper.alive and keeper.pid == handle["pid"]

    def spawn(self, token: str, code: int, secs: float) -> Process:
        self._pid += 1
        self.starts[token] = self.starts.get(token, 0) + 1
        p = self.processes[self._pid] = Process(token=token, pid=self._pid, started=self.time.now, ends_at=self.time.now + secs, code=code)
        self.time.after(secs, lambda: self._exit(p, None))
        return p

    def kill(self, p: Process, signal: int) -> None:
        self._exit(p, signal)

    def _exit(self, p: Process, signal: int | None) -> None:
        if p.ended is not None:
            return
        p.ended, p.signal = self.time.now, signal
        for keeper in self.keepers.values():
            if keeper.alive:
                keeper.process_ended(p)


class Keeper:
    """Parent of agent and jobs. When it dies its jobs run on, and the next one reads the disk."""

    def __init__(self, machine: Machine, key: AgentKey, pid: int, config: dict[str, str]) -> None:
        self.machine, self.key, self.pid, self.config = machine, key, pid, config
        self.alive = True
        self.agent: Agent | None = None
        self.disk = machine.disk.setdefault(key, {})

    def start(self) -> None:
        for e in self.disk.values():
            if not e.forgotten and e.exit is None:
                p = self.machine.processes.get(e.pid or 0)
                if p is None:
                    e.exit = {"source": "lost", "detail": "it never started, or nobody knows"}
                elif p.ended is not None:
                    self._finish(e, p, source="script")
        self.start_agent()

    def start_agent(self) -> None:
        if self.alive:
            self.agent = Agent(self)
            self.agent.start()

    def die(self) -> None:
        self.alive = False
        if self.agent is not None:
            self.agent.die()

    def agent_died(self) -> None:
        self.agent = None
        self.machine.time.after(0.1, lambda: self.start_agent() if self.agent is None else None)

    def order(self, order: dict[str, Any]) -> None:
        """From the agent, over the socket pair; answered the same way."""
        match order["do"]:
            case "start":
                self._start(order)
            case "stop":
                self._stop(order)
            case "forget":
                for name in order["names"]:
                    self.disk[name].forgotten = True

    def _start(self, order: dict[str, Any]) -> None:
        e = self.disk.get(order["name"])
        if e is None:
            e = self.disk[order["name"]] = Evidence(name=order["name"], token=order["token"])
            if self.machine.time.sometimes("the keeper died between taking the token and the spawn", 0.01):
                self.die()
                return
            command = order["spec"].command
            p = self.machine.spawn(order["token"], int(command[1]), float(command[2]))
            e.pid = p.pid
            self._say({"is": "started", **self.describe(e)})
        else:
            e.forgotten = False
            self._say({"is": "ended" if e.exit else "started", **self.describe(e)})

    def _stop(self, order: dict[str, Any]) -> None:
        e = self.disk.get(order["name"])
        if e is None:
            e = self.disk[order["name"]] = Evidence(name=order["name"], token=order["token"])
            e.exit = {"source": "start", "detail": "stopped before it started", "stopReason": order["reason"]}
        elif e.exit is None:
            e.stop_reason = e.stop_reason or order["reason"]
            p = self.machine.processes[e.pid or 0]
            self.machine.time.after(order["grace"] * self.machine.time.random.random(), lambda: self.machine.kill(p, 15))
            return
        self._say({"is": "ended", **self.describe(e)})

    def process_ended(self, p: Process) -> None:
        for e in self.disk.values():
            if e.pid == p.pid and e.exit is None:
                self._finish(e, p, source="keeper")
                self._say({"is": "ended", **self.describe(e)})

    def _finish(self, e: Evidence, p: Process, source: str) -> None:
        p.reaped = True
        e.exit = {"source": source, "stopReason": e.stop_reason, "startedAt": p.started, "endedAt": p.ended}
        e.exit |= {"code": p.code} if p.signal is None else {"signal": p.signal}

    def describe(self, e: Evidence) -> dict[str, Any]:
        p = self.machine.processes.get(e.pid or 0)
        return {
            "name": e.name, "token": e.token, "state": "ended" if e.exit else "running", "pid": e.pid, "startTicks": e.pid,
            "startedAt": p.started if p else None, "elapsed": self.machine.time.now - p.started if p else None, "exit": e.exit,
        }

    def executions(self) -> list[dict[str, Any]]:
        return [self.describe(e) for e in self.disk.values() if not e.forgotten]

    def _say(self, said: dict[str, Any]) -> None:
        if self.agent is not None:
            self.agent.keeper_said(said)


class Agent:
    """The real session and the real codec, on a simulated connection."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper, self.time = keeper, keeper.machine.time
        self.key, self.config = keeper.key, keeper.config
        self.session = Session()
        self.alive = True
        self.link: Any = None
        self._pause = 0.05

    def start(self) -> None:
        self._do(self.session.keeper_hello(self.keeper.executions(), self.time.now))
        self.time.after(0.02, self.dial)
        self.time.after(2.0, self._tick)

    def hello(self) -> Alive:
        return Alive(agent_id=self.config["agentId"], agent_key=self.key, version="sim", host="sim", boot_id="sim", pid=1, keeper_pid=self.keeper.pid)

    def dial(self) -> None:
        if not self.alive or self.link is not None:
            return
        self.link = self.keeper.machine.connect(self)
        if self.link is None:
            self._pause = min(2.0, self._pause * 2)
            self.time.after(self._pause * (0.5 + self.time.random.random()), self.dial)
            return
        self._pause = 0.05
        self.encoder, self.decoder = Encoder(), Decoder("to_agent")
        self._send([self.hello()])
        self._do(self.session.connected(self.time.now))

    def cut(self) -> None:
        """The connection is gone, as this end sees it."""
        if self.link is not None and self.alive:
            self.link = None
            self._do(self.session.disconnected())
            self.time.after(0.05 + self.time.random.random() * 0.1, self.dial)

    def frame(self, frame: bytes) -> None:
        gaps = self.decoder.gaps
        for message in self.decoder.messages(frame):
            self._do(self.session.received(message, self.time.now))
        if self.decoder.gaps != gaps and self.link is not None:
            self.link.cut()

    def keeper_said(self, said: dict[str, Any]) -> None:
        if self.alive:
            self._do(self.session.keeper_said(said, self.time.now))

    def die(self) -> None:
        self.alive = False
        if self.link is not None:
            self.link.cut()
            self.link = None

    def _tick(self) -> None:
        if self.alive:
            self._do(self.session.tick(self.time.now))
            self.time.after(2.0, self._tick)

    def _send(self, messages: list[Any]) -> None:
        if self.link is not None:
            for frame in self.encoder.frames(messages):
                self.link.to_supervisor(frame)

    def _do(self, outputs: list[Any]) -> None:
        for output in outputs:
            if not self.alive:
                return
            match output:
                case Send(message=message):
                    self._send([message])
                case Launch(token=token, spec=spec):
                    self._order({"do": "start", "spec": spec, **_named(token)})
                case Stop(token=token, reason=reason, grace_secs=grace):
                    self._order({"do": "stop", "reason": reason, "grace": grace, **_named(token)})
                case Forget(tokens=tokens):
                    self._order({"do": "forget", "names": [t.name for t in tokens]})
                case Read() | Quit():
                    raise AssertionError(f"nobody asked for {output}")

    def _order(self, order: dict[str, Any]) -> None:
        """Orders reach the keeper in order; the agent may die before they do."""
        self.time.after(0.0, lambda: self.keeper.order(order) if self.keeper.alive else None)


def _named(token: Token) -> dict[str, str]:
    return {"name": token.name, "token": str(token)}
