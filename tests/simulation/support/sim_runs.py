"""One run as the second book-keeping (`sim_ledger`) has it."""

import msgspec

from jobscribe.db.events.events import AttemptDecided, LateStopRequested, StopRequested, TaskPlaced
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.jobs.roles import TaskRole


class Kept(msgspec.Struct):
    """A task that is kept for debugging: since when, for how long, in which boot and life of the
    supervisor.
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
    #: it was told that one of these is over
    waited: bool = False
    attempt: int = 0
    placed: dict[Token, TaskPlaced] = {}
    started: set[Token] = set()
    #: given to a batch scheduler, by the books
    submitted: set[Token] = set()
    ended: dict[Token, ExitInfo] = {}
    #: of its latest attempt, in order
    ends: list[tuple[Token, ExitInfo]] = []
    decided: AttemptDecided | None = None
    #: kinds of its retries so far
    retries: list[str] = []
    #: it is between two attempts: why, and since which boot not before when
    retry: str | None = None
    retry_boot: int = 0
    not_before: float = 0.0
    stop: StopRequested | None = None
    #: a stop that came when all its live tasks had exited; exits of tasks that live
    late: LateStopRequested | None = None
    exited: dict[Token, ExitInfo] = msgspec.field(default_factory=dict)
    status: str | None = None

    @property
    def placed_now(self) -> dict[Token, TaskPlaced]:
        """Of its latest attempt."""
        return {t: e for t, e in self.placed.items() if t.attempt == self.attempt}

    @property
    def seats(self) -> set[tuple[str, int]]:
        """What an attempt of it consists of."""
        return {(r.name, i) for r in self.spec.roles for i in range(r.tasks)} or {("main", 0)}

    @property
    def over(self) -> bool:
        return self.status is not None and self.placed.keys() == self.ended.keys()

    def role(self, token: Token) -> TaskRole | None:
        return next((r for r in self.spec.roles if r.name == token.role), None)

    def fits(self, on: str) -> bool:
        """Is it over, and in the way that was waited for?"""
        return self.over and (on == "any" or (self.status == "completed") == (on == "ok"))
