"""A connection between an agent and the supervisor that delays, loses, repeats and reorders frames,
ends, or goes dark.

Each end detects the end of the connection by itself; the end that pings first notices a dark one.
The supervisor's end behaves like supervisor/connections/hub.py.
"""

from typing import TYPE_CHECKING, Any

from sim_time import Action

from jobscribe.protocol.wire.codec import Decoder, Encoder
from jobscribe.protocol.wire.messages import (
    Alive,
    CallReply,
    FileChunk,
    LogChunk,
    OpError,
    RunReport,
)
from jobscribe.supervisor.core.interface.inputs import (
    AgentConnected,
    AgentDisconnected,
    AgentMessage,
    FramesLost,
    Input,
)

if TYPE_CHECKING:
    from sim_agent import Agent
    from sim_supervisor import Supervisor

#: As in the hub: an agent that does not send `alive` in time is disconnected.
ALIVE_SECS = 10.0
#: Range of seconds until an end that receives nothing gives up: a ping, and the wait for its
#: answer.
PING_SECS = (10.0, 30.0)


class Link:
    def __init__(
        self, supervisor: "Supervisor", agent: "Agent", epoch: int, max_frame: int
    ) -> None:
        self.supervisor, self.agent, self.epoch, self.max_frame = (
            supervisor,
            agent,
            epoch,
            max_frame,
        )
        self.time, self.life = supervisor.time, supervisor.life
        self.key = agent.key
        #: dark: nothing arrives any more; open: the connection is open for the supervisor's end
        self.dark = False
        self.open = True
        self.alive: Alive | None = None
        self.asked: dict[str, Any] = {}
        self.encoder, self.decoder = Encoder(max_frame), Decoder("to_supervisor", max_frame)
        self._gaps = 0
        self._doubted = False
        self._free_at = {"up": 0.0, "down": 0.0}
        self.life.after(ALIVE_SECS, lambda: self.close() if self.alive is None else None)

    # ---- wire

    def to_supervisor(self, frame: bytes) -> None:
        self._carry("up", lambda: self.life.meet(lambda: self._receive(frame)))

    def to_agent(self, message: Any) -> None:
        if not self.supervisor.sends():
            return
        self.time.say("supervisor ->", self.agent.pid, message)
        frames = list(self.encoder.frames([message]))
        if len(frames) > 1:
            self.time.saw("a message went in pieces")
        for frame in frames:
            self._carry(
                "down",
                lambda frame=frame: self.agent.life.meet(lambda: self.agent.frame(self, frame)),
            )

    def _carry(self, way: str, deliver: Action) -> None:
        if self.dark or self.time.strikes(f"a frame was lost, {way}"):
            return
        delay = self.time.random.expovariate(500.0)
        if self.time.strikes(f"a frame was late, {way}"):
            delay += self.time.random.random() * 3
        at = self.time.now + delay
        if self.time.strikes(f"frames were reordered, {way}"):
            at += 2 * self.time.random.random()
        else:
            at = self._free_at[way] = max(at, self._free_at[way])
        act = lambda: None if self.dark else deliver()
        self.time.after(at - self.time.now, act)
        if self.time.strikes(f"a frame was repeated, {way}"):
            self.time.after(at - self.time.now, act)

    def cut(self, *, told: bool = True) -> None:
        """Break the link for both. Each end is notified after a moment, or (told=False) notices
        only by its pings.
        """
        if self.dark:
            return
        self.dark = True
        r = self.time.random
        for life, act in (
            (self.life, self._gone),
            (self.agent.life, lambda: self.agent.lost(self)),
        ):
            life.after(0.2 * r.random() if told else r.uniform(*PING_SECS), act)

    # ---- agent's end

    def agent_closes(self) -> None:
        """Close after all frames sent before have arrived, however late."""
        self.life.after(self._behind("up"), self._gone)

    def _behind(self, way: str) -> float:
        return max(0.0, self._free_at[way] - self.time.now) + 0.01 + 0.1 * self.time.random.random()

    def agent_gives_up(self) -> None:
        """Close because the pings were not answered."""
        if self.agent.link is self:
            self.agent_closes()
            self.agent.lost(self)

    # ---- supervisor's end

    def close(self) -> None:
        """Close on this end; the agent is notified."""
        if self.open:
            self.agent.life.after(self._behind("down"), lambda: self.agent.lost(self))
            self._gone()

    def _gone(self) -> None:
        if not self.open:
            return
        self._shut()
        if self.supervisor.links.get(self.key) is self:
            del self.supervisor.links[self.key]
            self.supervisor.tell(AgentDisconnected(self.key, self.epoch))

    def _shut(self) -> None:
        """Fail all requests that wait for an answer."""
        self.open = False
        self.supervisor.sockets.pop(self.epoch, None)
        for answer in list(self.asked.values()):
            answer("agentUnavailable")
        self.asked.clear()

    def _receive(self, frame: bytes) -> None:
        if not self.open:
            return
        inputs: list[Input] = []
        messages = self.decoder.messages(frame)
        if self.decoder.gaps != self._gaps:
            self._gaps = self.decoder.gaps
            inputs.append(FramesLost(self.key, self.epoch))
        for message in messages:
            self.time.say("supervisor <-", self.agent.pid, message)
            self._one(message, inputs)
        if inputs and self.supervisor.links.get(self.key) is self:
            self.supervisor.hear(self.key, inputs)
            self._see_doubt()

    def _see_doubt(self) -> None:
        view = self.supervisor.engine.world.agents.get(self.key)
        if (
            view is not None
            and view.doubted
            and not view.synced
            and view.epoch == self.epoch
            and not self._doubted
        ):
            self._doubted = True
            self.time.saw("a first snapshot missed what had started, and was asked for again")

    def _one(self, message: Any, inputs: list[Input]) -> None:
        if isinstance(message, Alive):
            self._said_alive(message, inputs)
        elif self.alive is None:
            self.close()
        elif isinstance(message, LogChunk | CallReply | FileChunk) or (
            isinstance(message, OpError) and message.op_id in self.asked
        ):
            answer = self.asked.pop(message.op_id, None)
            if answer is not None:
                answer(message.code if isinstance(message, OpError) else "answered")
        elif not isinstance(message, RunReport):
            inputs.append(AgentMessage(self.key, self.epoch, message))

    def _said_alive(self, message: Alive, inputs: list[Input]) -> None:
        there = self.supervisor.links.get(self.key)
        if there is not None and there.epoch > self.epoch:
            self.time.saw("an outdated connection said alive, and was ended")
            self.close()
            return
        self.alive = message
        older = self.supervisor.links.get(self.key)
        self.supervisor.links[self.key] = self
        if older is not None and older is not self:
            self.time.saw("a newer connection of an agent ended the older one")
            older._shut()
            older.agent.life.after(0.05, lambda: older.agent.lost(older))
        inputs.append(AgentConnected(self.key, self.epoch, message))
