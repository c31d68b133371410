"""State of one agent: its durable record, its phase, and the runs that wait for it or run there.

Data and simple queries only. `agents.lifecycle` and `agents.idle_eviction` change the phase
(`agent_phase`).
"""

import msgspec

from ....db.events.state import AgentRecord
from ....protocol.ids import Token
from ....protocol.wire.messages import Execution, KeeperReport
from ..resources.concurrency_limits import RunKey
from .agent_phase import WITHOUT_PROCESS, AgentPhase


class AgentState(msgspec.Struct, kw_only=True):
    """One agent: its durable record and its current phase (a notice).

    Only the reports of an agent that is UP with a complete first snapshot (`synced`) are trusted,
    and only such an agent gets work.
    """

    record: AgentRecord
    phase: AgentPhase = AgentPhase.ABSENT
    #: wall time at which the phase began
    since: float | None = None
    epoch: int = 0
    synced: bool = False
    #: the first snapshot lacked a running task, and a second one was requested
    doubted: bool = False
    #: wall time since when the state of its executions is unknown
    unknown_since: float | None = None
    failures: int = 0
    boot_id: str = ""
    host: str = ""
    #: the driver's last report while it is away
    away: str = ""
    #: the agent's report that its keeper does not answer (unset while it answers); and the keeper's
    #: pid
    keeper: KeeperReport | None = None
    keeper_pid: int = 0
    #: snapshot in progress: its number and the executions received so far
    snapshot_number: int | None = None
    snapshot_pages: int = 0
    #: highest number of a complete snapshot of this connection
    snapshot_done: int = 0
    snapshot: dict[Token, Execution] = msgspec.field(default_factory=dict)
    #: Jobs changed by the first snapshot of this connection, with the new version. Until it is
    #: durable, status answers show the older state, unknown since `news_since`.
    news: dict[str, int] = msgspec.field(default_factory=dict)
    news_since: float | None = None
    #: queued runs: submission number by ticket, in queue order
    queued: dict[RunKey, int] = msgspec.field(default_factory=dict)
    #: queued runs with roles, in the same order
    gangs: dict[RunKey, int] = msgspec.field(default_factory=dict)
    #: queued runs that request slots: the first ones up to a limit (see `placement`)
    asking: set[RunKey] = msgspec.field(default_factory=set)
    #: placed tasks that have not ended
    placed: set[Token] = msgspec.field(default_factory=set)
    #: of these, runs without slots that wait with the agent: submission number by ticket, in order
    ahead: dict[RunKey, int] = msgspec.field(default_factory=dict)
    #: the agent keeps runs until a slot is free; and how long its plain runs take (mean in seconds)
    runs_ahead: bool = False
    run_secs: float | None = None
    #: handles of calls that wait for this agent
    wanted: list[int] = msgspec.field(default_factory=list)
    #: gangs that hold resources here and are not placed yet
    holding: set[RunKey] = msgspec.field(default_factory=set)
    #: idle: up and not needed, with a timer; and the monotonic time of the last need or call
    idle: bool = False
    used: float = 0.0
    #: eviction refused because of a pending answer: not asked again for a short time
    busy: bool = False

    #: why its user must sign in; and whether the user signed in since the last lookup
    sign_in: str = ""
    signed_in: bool = False

    @property
    def takes_memory(self) -> bool:
        """Return whether the agent takes memory, as far as known."""
        return self.phase not in WITHOUT_PROCESS

    @property
    def known(self) -> bool:
        """Return whether the agent is up and its reports are current. Only then it gets work."""
        return self.phase == AgentPhase.UP and self.synced and self.keeper is None

    @property
    def needed(self) -> bool:
        return bool(self.queued or self.placed or self.wanted or self.holding)

    @property
    def only_waits(self) -> bool:
        """Return whether runs wait for this agent, and nothing else needs it."""
        return bool(self.queued) and not (self.placed or self.wanted or self.holding)
