"""Transaction: collects the events and effects of one decision, and advances the world.

No rules live here: the modules of `runs`, `scheduling` and `agents` decide.
"""

import hashlib
from typing import Any

from ....db.events.agent_fold import evolve_agent
from ....db.events.events import AgentEvent, JobEvent, agent_stream, job_stream
from ....db.events.job_fold import evolve
from ....db.events.state import Job
from ....db.store.contract import Receipt, Write
from ....protocol.ids import AgentKey, derived_id
from ....protocol.jobs.status import check_change
from ....protocol.wire.messages import Shared
from ..interface.effects import Effect
from ..interface.inputs import Now
from . import task_counts
from .agent_state import AgentState
from .world import World


class Transaction:
    """One decision in progress: recorded events and requested effects. `world` already includes
    every recorded event.
    """

    def __init__(self, world: World, now: Now) -> None:
        self.world = world
        self.now = now
        self.effects: list[Effect] = []
        self.receipts: list[Receipt] = []
        #: changed jobs with their state after this decision
        self.touched: dict[str, Job] = {}
        #: agents that became needed
        self.needed_agents: dict[AgentKey, None] = {}
        #: agents whose queue became shorter
        self.shortened_queues: dict[AgentKey, None] = {}
        #: (driver, host) where memory of agents was or may have been freed
        self.freed_memory: dict[tuple[str, str], None] = {}
        #: data shared by the tasks of an attempt (computeJid, serial, attempt), where they are
        #: launched
        self.shared: dict[tuple[str, int, int], Shared] = {}
        self._writes: dict[str, tuple[int, list[Any]]] = {}
        self._minted = 0

    def record(self, jid: str, event: JobEvent) -> Job:
        """Record an event of a job and return the job after it.

        Raises IllegalTransition, and records nothing, if the event changes the status illegally.
        """
        before = self.world.jobs.get(jid) or Job(jid=jid)
        job = evolve(before, event)
        check_change(before.status, job.status, type(event).__name__)
        self._write(job_stream(jid), before.version, event)
        task_counts.apply(self.world.task_counts, event)
        self.world.jobs[jid] = self.touched[jid] = job
        return job

    def record_agent(self, key: AgentKey, event: AgentEvent) -> None:
        view = self.world.agent(key)
        self._write(agent_stream(key), view.record.version, event)
        view.record = evolve_agent(view.record, event)

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def set_phase(self, view: AgentState, phase: str) -> None:
        """Change the phase of an agent."""
        if view.phase == phase:
            return
        key, took_memory = view.record.key, view.takes_memory
        view.phase, view.since = phase, self.now.wall
        self.world.host_assignment.update_memory(key, taken=view.takes_memory)
        if took_memory and not view.takes_memory:
            self.freed_memory[key.driver, key.host] = None

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
        self._writes.setdefault(stream, (version, []))[1].append(event)


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
