"""An agent: the real session and the real codec on a simulated connection, with a simulated keeper
socket and simulated workers.
"""

import zlib
from typing import TYPE_CHECKING, Any

import msgspec
from sim_batch import BatchSide
from sim_keeper import WAY_SECS, Keeper
from sim_time import Cancel, Life

from jobscribe.agent.session.keeper_reports import decode_report
from jobscribe.agent.session.state_machine import (
    EndHold,
    Fetch,
    Forget,
    Launch,
    Probe,
    Quit,
    Read,
    Release,
    Send,
    Session,
    StartCall,
    Stop,
    StopCall,
)
from jobscribe.protocol.ids import Token
from jobscribe.protocol.wire.codec import Decoder, Encoder
from jobscribe.protocol.wire.messages import (
    Alive,
    Call,
    CallReply,
    FileChunk,
    LogChunk,
    OpError,
    PortsProbed,
    ProbePorts,
    ToAgent,
)

if TYPE_CHECKING:
    from sim_link import Link

TICK_SECS = 2.0
#: Maximum time in seconds until the login profile's environment is known; stops do not wait for it.
LOGIN_SECS = 0.5
#: How long children outlive a job (seconds); the token chooses.
LINGERS = (0.0, 0.0, 0.0, 0.02, 0.3, 2.0)


class Agent:
    """One agent. It ends with its keeper; if it ends alone, the keeper replaces it."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper, self.machine, self.time = keeper, keeper.machine, keeper.time
        self.key, self.config, self.host = keeper.key, keeper.config, keeper.host
        self.life = Life(self.time)
        self.pid = self.machine.new_pid()
        self.session = Session()
        self.since = self.time.now
        self.link: Link | None = None
        self.calls: dict[str, Cancel] = {}
        self._pause = 0.05
        #: the batch scheduler side, if the agent runs on a cluster
        self.batch = (
            BatchSide(self, self.machine.slurms[self.key.host]) if self.machine.slurms else None
        )
        self._login_known_at = self.time.now + LOGIN_SECS * self.time.random.random()

    # ---- lifecycle

    def start(self, executions: list[dict[str, Any]]) -> None:
        def serve() -> None:
            self.do(
                self.session.keeper_hello(
                    [decode_report(e).execution for e in executions], self.host.mono
                )
            )
            if self.batch is not None:
                self.batch.start()
            self.life.after(0.02, self._dial)
            self.life.after(TICK_SECS, self._tick)

        self.life.after(WAY_SECS, serve)

    def die(self) -> None:
        """kill -9; the kernel notifies the keeper."""
        self.vanish()
        self.keeper.life.after(WAY_SECS, lambda: self.keeper.agent_ended(self))

    def vanish(self) -> None:
        self.life.end()
        self.calls.clear()
        if self.batch is not None:
            self.batch.close()
        if self.link is not None:
            self.link.agent_closes()
            self.link = None

    def keeper_gone(self) -> None:
        """Handle the end of the socket, after all earlier messages."""
        self.life.after(2 * WAY_SECS, self.die)

    def _tick(self) -> None:
        self.do(self.session.tick(self.host.mono))
        self.life.after(TICK_SECS, self._tick)

    # ---- the connection

    def hello(self) -> Alive:
        return Alive(
            agent_id=self.config["agentId"],
            agent_key=self.key,
            version="sim",
            host=self.host.name,
            boot_id=self.host.boot_id,
            pid=self.pid,
            keeper_pid=self.keeper.pid,
            runs_ahead=True if self.batch is None else msgspec.UNSET,
            debug_holds=msgspec.UNSET if self.batch is None else True,
        )

    def _dial(self) -> None:
        """Connect after a few rounds of the agent's loop: a thawed agent first sees that its keeper
        is gone.
        """
        if self.link is None:
            self.life.after(0.002, self._dialed)

    def _dialed(self) -> None:
        if self.link is not None:
            return
        self.link = self.machine.connect(self)
        if self.link is None:
            self._pause = min(2.0, self._pause * 2)
            self.life.after(self._pause * (0.5 + self.time.random.random()), self._dial)
            return
        self._pause = 0.05
        self.encoder, self.decoder = (
            Encoder(self.link.max_frame),
            Decoder("to_agent", self.link.max_frame),
        )
        self._send([self.hello()])
        self.do(self.session.connected(self.host.mono))

    def lost(self, link: "Link") -> None:
        """Handle the end of the connection on this side."""
        if self.link is link:
            self.link = None
            self.do(self.session.disconnected())
            self.life.after(0.05 + self.time.random.random() * 0.1, self._dial)

    def frame(self, link: "Link", frame: bytes) -> None:
        if self.link is not link:
            return
        gaps = self.decoder.gaps
        messages: list[ToAgent] = self.decoder.messages(frame)
        for message in messages:
            self.time.say("agent", self.pid, "<-", message)
            self.do(self.session.received(message, self.host.mono))
        if self.decoder.gaps != gaps and self.link is link:
            link.agent_closes()
            self.lost(link)

    def _send(self, messages: list[Any]) -> None:
        if self.link is not None:
            frames = list(self.encoder.frames(messages))
            if len(frames) > 1:
                self.time.saw("a message went in pieces")
            for frame in frames:
                self.link.to_supervisor(frame)

    # ---- operations of the session

    def keeper_reported(self, said: dict[str, Any]) -> None:
        self.time.say("agent", self.pid, "<- keeper", said["is"], said["token"], said["exit"])
        self.do(self.session.record_states([decode_report(said).execution], self.host.mono))

    def do(self, outputs: list[Any]) -> None:
        for output in outputs:
            if self.life.over:
                return
            match output:
                case Send(message=message):
                    self.time.say("agent", self.pid, "->", message)
                    self._send([message])
                case Launch() as launch:
                    wait = max(0.0, self._login_known_at - self.time.now)
                    self.life.after(wait, lambda launch=launch: self._launch(launch))
                case Release(token=token):
                    wait = max(0.0, self._login_known_at - self.time.now)
                    order = {"do": "release", **_named(token)}
                    self.life.after(wait, lambda order=order: self._order(order))
                case Stop(token=token, reason=reason, grace_secs=grace) if self.batch is not None:
                    self.life.after(
                        WAY_SECS, lambda t=token, r=reason, g=grace: self.batch.stop(t, r, g)
                    )
                case EndHold(token=token):
                    if self.batch is not None:
                        self.life.after(WAY_SECS, lambda t=token: self.batch.release(t))
                case Forget(tokens=tokens) if self.batch is not None:
                    self.life.after(WAY_SECS, lambda tokens=tokens: self.batch.forget(tokens))
                case Stop(token=token, reason=reason, grace_secs=grace):
                    self._order({"do": "stop", "reason": reason, "grace": grace, **_named(token)})
                case Forget(tokens=tokens):
                    self._order({"do": "forget", "names": [t.name for t in tokens]})
                case Quit():
                    self._order({"do": "quit"})
                case StartCall(op=op):
                    self._call(op)
                case Probe(op=op):
                    self._probe(op)
                case StopCall(op_id=op_id):
                    self.calls.pop(op_id, lambda: None)()
                case Read(op=op):
                    self._send(
                        [
                            LogChunk(
                                op_id=op.op_id,
                                offset=op.offset,
                                next_offset=op.offset,
                                data=b"",
                                end=self.session.has_ended(op.token),
                            )
                        ]
                    )
                case Fetch(op=Call() as op):
                    self._send([CallReply(op_id=op.op_id, reply=b"{}")])
                case Fetch(op=op):
                    self._send([FileChunk(op_id=op.op_id, data=b"", size=0, mtime_ns=0)])

    def _launch(self, launch: Launch) -> None:
        token, spec = launch.token, launch.spec
        if self.batch is not None:
            order = {
                "command": spec.command,
                "limit": spec.time_limit_secs,
                "grace": spec.grace_secs,
                "ports": (),
                "debug": None if spec.debug_secs is msgspec.UNSET else spec.debug_secs,
            }
            self.batch.launch(token, spec, order)
            return
        if self.time.strikes("the agent could not hand a task to its keeper"):
            self.do(self.session.launch_failed(token, "simulated", self.host.mono))
            return
        busy = self.machine.busy_ports(self.host.name, spec.ports)
        if busy:
            self.time.saw("somebody listened on a port of a task that was to start")
            self.do(self.session.launch_failed(token, "simulated", self.host.mono, "portTaken"))
            return
        self._order(
            {
                "do": "start",
                "command": spec.command,
                "limit": spec.time_limit_secs,
                "grace": spec.grace_secs,
                "ports": spec.ports,
                "slot": launch.slot is not None,
                "ahead": launch.slot == "ahead",
                "lingers": self._lingers(token),
                **_named(token),
            }
        )

    def _lingers(self, token: Token) -> float:
        """Return for how long children of the job outlive it (seconds)."""
        return 0.0 if self.time.calm else LINGERS[zlib.crc32(b"children" + token.name.encode()) % 6]

    def _probe(self, op: ProbePorts) -> None:
        if self.time.strikes("a probe was never answered"):
            return
        busy = self.machine.busy_ports(self.host.name, op.ports)
        if busy:
            self.time.saw("a probe found somebody on a port")
        late = 0.01 * self.time.random.random()
        self.life.after(late, lambda: self._send([PortsProbed(op_id=op.op_id, busy=busy)]))

    def _order(self, order: dict[str, Any]) -> None:
        """Send an order to the keeper. Orders arrive in order, even if the agent dies meanwhile."""
        self.keeper.life.after(WAY_SECS, lambda: self.keeper.order(order))

    def _call(self, op: Call) -> None:
        """Let a worker compute; at the deadline the worker is stopped and the call is answered
        anyway.
        """
        if op.op_id in self.calls:
            return
        secs = self.time.random.expovariate(10.0) * (
            100.0 if self.time.strikes("a call's worker was slow") else 1.0
        )

        def answer(message: Any) -> None:
            if self.calls.pop(op.op_id, None) is not None:
                self._send([message])

        if secs < op.deadline_secs:
            self.calls[op.op_id] = self.life.after(
                secs, lambda: answer(CallReply(op_id=op.op_id, reply=b"{}"))
            )
        else:
            late = OpError(op_id=op.op_id, code="deadline", error="simulated")
            self.calls[op.op_id] = self.life.after(op.deadline_secs, lambda: answer(late))


def _named(token: Token) -> dict[str, str]:
    return {"name": token.name, "token": str(token)}
