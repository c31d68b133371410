"""Transaction: collects the events and effects of one decision, and advances the world.

No rules live here: the modules of `runs`, `scheduling` and `agents` decide.
"""

import hashlib
from typing import Any

from ....db.events.agent_fold import evolve_agent
from ....db.events.events import AgentEvent, JobEvent, agent_stream, job_stream
from ....db.events.job_fold import evolve
from ....db.events.state import Job
from ....db.events.usage import increment
from ....db.events.usage_row import UsageRow
from ....db.store.contract import Receipt, Write
from ....protocol.ids import AgentKey, Token, derived_id, split_jid
from ....protocol.jobs.status import check_change
from ....protocol.wire.messages import Shared
from ..interface.causes import Cause, EventId
from ..interface.effects import CausedEffect, Effect, stream_of
from ..interface.inputs import Input, Now, cause
from . import task_counts
from .agent_phase import PhaseTrigger, next_phase
from .agent_state import AgentState
from .world import World


class Transaction:
    """One decision in progress: recorded events and requested effects. `world` already includes
    every recorded event.
    """

    def __init__(self, world: World, now: Now) -> None:
        self.world = world
        self.now = now
        world.slots.fair.now = now.mono
        #: requested effects with their causes, in order
        self.caused: list[CausedEffect] = []
        self.receipts: list[Receipt] = []
        #: what the recorded events add to the usage
        self.usage: list[UsageRow] = []
        #: changed jobs with their state after this decision
        self.touched: dict[str, Job] = {}
        #: agents that became needed
        self.needed_agents: dict[AgentKey, None] = {}
        #: agents whose queue became shorter
        self.shortened_queues: dict[AgentKey, None] = {}
        #: agents that may need runs placed ahead
        self.shortened_windows: dict[AgentKey, None] = {}
        #: (driver, host) where memory of agents was taken or freed, or may be freed now
        self.changed_memory: dict[tuple[str, str], None] = {}
        #: data shared by the tasks of an attempt (computeJid, serial, attempt), where they are
        #: launched
        self.shared: dict[tuple[str, int, int], Shared] = {}
        #: executions that their agent started in the slot of an ended one, by the token of that one
        self.successors: dict[Token, Token] = {}
        #: those of them whose start may not be recorded yet
        self.started_ahead: dict[Token, None] = {}
        self._writes: dict[str, tuple[int, list[Any]]] = {}
        self._minted = 0
        #: the cause of an effect that is about no recorded job or agent; the latest event that the
        #: current input recorded in each stream; and the same for earlier inputs
        self._cause = Cause(None, "")
        self._latest: dict[str, Cause] = {}
        self._before: dict[str, Cause] = {}
        #: whether the cause of an effect depends on its job or agent
        self._several_causes = False

    def begin_input(self, input_: Input) -> None:
        """Attribute the following effects to this input."""
        self._before |= self._latest
        self._latest, self._several_causes = {}, False
        self._cause = cause(input_)

    def end_inputs(self) -> None:
        """Attribute the following effects to the latest events of all inputs."""
        self._latest = {**self._before, **self._latest}
        self._several_causes = True

    def record(self, jid: str, event: JobEvent) -> Job:
        """Record an event of a job and return the job after it.

        Raises IllegalTransition, and records nothing, if the event changes the status illegally.
        """
        before = self.world.jobs.get(jid) or Job(jid=jid)
        job = evolve(before, event)
        check_change(before.status, job.status, type(event).__name__)
        self._write(job_stream(jid), before.version, event)
        used = increment(before, event)
        if used is not None:
            self.usage.append(used)
            if self.world.limits_hours:
                self.world.hours.add((used,))
        task_counts.apply(self.world.task_counts, event)
        if _active(job) != _active(before):
            self.world.active_runs[split_jid(jid)[0]] += 1 if _active(job) else -1
        self.world.jobs[jid] = self.touched[jid] = job
        return job

    def record_agent(self, key: AgentKey, event: AgentEvent) -> None:
        view = self.world.agent(key)
        self._write(agent_stream(key), view.record.version, event)
        view.record = evolve_agent(view.record, event)

    def emit(self, effect: Effect) -> None:
        """Request an effect. Its cause is the latest event that this input recorded about the same
        job or agent, else the latest event of this input, else the input.
        """
        found = self._cause
        if self._several_causes and (stream := stream_of(effect)) is not None:
            found = self._latest.get(stream, found)
        self.caused.append(CausedEffect(effect, found))

    def change_phase(self, view: AgentState, trigger: PhaseTrigger) -> None:
        """Change the phase of an agent as `TRANSITIONS` says. Raise IllegalTransition, and change
        nothing, if the agent has no such transition now.
        """
        phase = next_phase(view.phase, trigger)
        if view.phase == phase:
            return
        key, took_memory = view.record.key, view.takes_memory
        view.phase, view.since = phase, self.now.wall
        self.world.host_assignment.update_memory(key, taken=view.takes_memory)
        if took_memory != view.takes_memory:
            # also if it was taken: another agent that waits may need one more idle agent to leave
            self.changed_memory[key.driver, key.host] = None

    def require_agent(self, key: AgentKey) -> None:
        """Ensure before the end of this decision that the agent is up or on its way."""
        self.needed_agents[key] = None

    def random(self) -> float:
        """Return a pseudo-random number in [0, 1), different at each call."""
        self._minted += 1
        digest = hashlib.blake2b(
            self.now.entropy + self._minted.to_bytes(4, "big"), digest_size=8, person=b"chance"
        ).digest()
        return int.from_bytes(digest, "big") / 2**64

    def secs_since(self, at: float, mono: float | None, boot_id: str | None) -> float:
        """Return the seconds since a recorded time: by the monotonic clock within one boot, by the
        wall clock after a reboot.
        """
        if mono is not None and boot_id == self.now.boot_id:
            return max(0.0, self.now.mono - mono)
        return max(0.0, self.now.wall - at)

    def new_token(self) -> tuple[str, str]:
        """Return a fresh token and its hash."""
        self._minted += 1
        token = derived_id(
            self.now.entropy + self._minted.to_bytes(4, "big"), key=b"jobscribe token"
        )
        return token, token_hash(token)

    def writes(self) -> tuple[Write, ...]:
        return tuple(
            Write(stream, version, tuple(events))
            for stream, (version, events) in self._writes.items()
        )

    def _write(self, stream: str, version: int, event: Any) -> None:
        """version: of the stream before this event."""
        self._writes.setdefault(stream, (version, []))[1].append(event)
        self._cause = Cause(EventId(stream, version + 1), type(event).__name__)
        self._latest[stream] = self._cause
        self._several_causes = len(self._latest) > 1


def _active(job: Job) -> bool:
    return job.run is not None and job.run.active


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
