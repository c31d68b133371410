"""State of one run in the reference model (`sim_reference_model`)."""

import msgspec

from jobscribe.db.events.events import AttemptDecided, LateStopRequested, StopRequested, TaskPlaced
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.jobs.roles import TaskRole


class Kept(msgspec.Struct):
    """A held task: start and length of the hold, and the boot and the supervisor's life in which it
    began.
    """

    exit: ExitInfo
    secs: float
    since: float
    boot: int
    session: int


class Run(msgspec.Struct):
    jid: str
    serial: int
    spec: RunSpec
    #: (computeJid, serial, on)
    waits: list[tuple[str, int, str]] = []
    #: one of the runs in `waits` has ended and this run was notified
    waited: bool = False
    attempt: int = 0
    placed: dict[Token, TaskPlaced] = {}
    started: set[Token] = set()
    #: submitted to a batch scheduler, by the event log
    submitted: set[Token] = set()
    ended: dict[Token, ExitInfo] = {}
    #: ends of the latest attempt's tasks, in order
    ends: list[tuple[Token, ExitInfo]] = []
    decided: AttemptDecided | None = None
    #: kinds of the retries so far
    retries: list[str] = []
    #: between two attempts: reason of the retry, boot in which it was decided, and earliest start
    retry: str | None = None
    retry_boot: int = 0
    not_before: float = 0.0
    stop: StopRequested | None = None
    #: a stop that came when all live tasks had exited; exits of live tasks
    late: LateStopRequested | None = None
    exited: dict[Token, ExitInfo] = msgspec.field(default_factory=dict)
    status: str | None = None

    @property
    def placed_now(self) -> dict[Token, TaskPlaced]:
        """Return the placements of the latest attempt."""
        return {t: e for t, e in self.placed.items() if t.attempt == self.attempt}

    @property
    def seats(self) -> set[tuple[str, int]]:
        """Return (role, index) of each task of an attempt."""
        return {(r.name, i) for r in self.spec.roles for i in range(r.tasks)} or {("main", 0)}

    @property
    def over(self) -> bool:
        return self.status is not None and self.placed.keys() == self.ended.keys()

    def role(self, token: Token) -> TaskRole | None:
        return next((r for r in self.spec.roles if r.name == token.role), None)

    def fits(self, on: str) -> bool:
        """Return whether the run is over in the way that a dependency requires."""
        return self.over and (on == "any" or (self.status == "completed") == (on == "ok"))
