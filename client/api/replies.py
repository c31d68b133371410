"""What the supervisor answers, as values. Fields that this version does not know are let through
(in `raw`), never refused.
"""

from typing import Any

import msgspec

from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.jobs.status import COMPLETED

#: What is left of a run that is not there (any more): nothing to wait for.
_NOT_THERE = frozenset({"missing", "job_run_purged"})
#: Exit code of a command of ours that failed itself, or of a run whose own code is not known.
NOT_KNOWN = 125


class RunState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The status reply. Times are unix seconds.

    over: the status is final and nothing of the run is left. known: False while nobody can know
    now, since `since`. queue_state, job_status_message: what it waits for, in a word and in one
    sentence. attempt: the latest; 0 before the first. roles: of each role how many of its tasks are
    in which state; None for a run without roles. diagnosis: what its exit means. waits_for:
    computeJids of runs whose end it waits for. run_dir: None where there is none; run_dir_on: the
    cluster where it is, None where the supervisor sees it. raw: the whole reply.
    """

    state: str
    compute_jid: str = ""
    compute_job_hash: str | None = None
    compute_job_serial: int | None = None
    compute_job_queued: float | None = None
    compute_job_start: float | None = None
    compute_job_end: float | None = None
    elapsed_time: float | None = None
    reason: str | None = None
    error: str | None = None
    queue_state: str | None = None
    job_status_message: str | None = None
    known: bool = True
    since: float | None = None
    exit: ExitInfo | None = None
    diagnosis: dict[str, Any] | None = None
    roles: dict[str, dict[str, int]] | None = None
    waits_for: list[str] = []
    over: bool = False
    attempt: int | None = None
    run_dir: str | None = None
    run_dir_on: str | None = None
    position: int | None = None
    next_request_seconds: float | None = None
    raw: dict[str, Any] = {}

    @property
    def finished(self) -> bool:
        """Is there nothing to wait for any more?"""
        return self.over or self.state in _NOT_THERE

    @property
    def shell_code(self) -> int:
        """What a shell would report: the job's code, 128+n for a signal; 125 where there is none,
        and never 0 unless it completed.
        """
        if self.exit is None:
            return 0 if self.state == COMPLETED else NOT_KNOWN
        code = self.exit.shell_code
        return NOT_KNOWN if code == 0 and self.state != COMPLETED else code

    def sentence(self) -> str:
        """One line for a person: the state, and why it is so."""
        if not self.known:
            return f"{self.state}, not known at the moment" + (
                f": {self.job_status_message}" if self.job_status_message else ""
            )
        if self.error:
            return f"{self.state}: {self.error}"
        if self.job_status_message:
            return f"{self.state}: {self.job_status_message}"
        if self.exit is not None and (self.state != COMPLETED or not self.exit.ok):
            reason = f" ({self.reason})" if self.reason not in (None, "exit", "signal") else ""
            return f"{self.state}{reason}: {self.exit.sentence()}"
        return (
            f"{self.state}: {self.reason}"
            if self.reason and self.state != COMPLETED
            else self.state
        )


class JobPage(msgspec.Struct, frozen=True):
    """Rows of the index (camelCase, as in db.store.IndexRow), newest change first. next: `before`
    of the next page, None at the end.

    Of a row `state` is the state of the job, as in RunState; `status`, the same, is its old name
    and goes away.
    """

    jobs: list[dict[str, Any]]
    next: int | None = None


class GroupState(msgspec.Struct, frozen=True, rename="camel"):
    """How the runs of one simulation stand: `total` in `counts` by their states. busy: of so many
    something is left; over: of none.

    exits: [{"state", "reason", "code", "signal", "count"}], how those ended that did, the most
    frequent first; None where only counts were asked for. runs: a page of them. next: `after` of
    the next page, None at the end. raw: the whole reply.
    """

    group: str
    simulation_id: str
    total: int
    counts: dict[str, int]
    over: bool
    busy: int
    exits: list[dict[str, Any]] | None = None
    runs: list["GroupRun"] = []
    next: str | None = None
    raw: dict[str, Any] = {}

    @property
    def ended(self) -> int:
        """How many have their last state."""
        return self.total - self.counts.get("pending", 0) - self.counts.get("running", 0)

    @property
    def failed(self) -> int:
        """How many of these did not complete."""
        return self.counts.get("error", 0) + self.counts.get("canceled", 0)


class GroupRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One run of a group. index: None where it is no array's. exit: {"code", "signal"} where it has
    one.
    """

    compute_jid: str
    compute_job_serial: int
    index: int | None
    state: str
    over: bool
    reason: str | None = None
    error: str | None = None
    exit: dict[str, int | None] | None = None
    compute_job_queued: float | None = None
    compute_job_start: float | None = None
    compute_job_end: float | None = None

    @property
    def shell_code(self) -> int:
        """What a shell would report: see `RunState.shell_code`."""
        if self.state == COMPLETED:
            return 0
        exit_ = self.exit or {}
        code, number = exit_.get("code"), exit_.get("signal")
        return 128 + number if number is not None else code or NOT_KNOWN


class LogPart(msgspec.Struct, frozen=True):
    """Bytes of a stream from `offset`. `dropped`: how many that stood before them are not there.
    end: nothing follows, ever.

    attempt, role, index: whose they are; no role while nothing has been placed. note, sentence: why
    there is nothing at all, in a word and for people.
    """

    stream: str
    offset: int
    next_offset: int
    data: bytes
    dropped: int = 0
    end: bool = False
    attempt: int = 0
    role: str | None = None
    index: int = 0
    note: str = ""
    sentence: str = ""


class LoggedEvent(msgspec.Struct, frozen=True):
    """One event of the log. event: its JSON object, with `type`."""

    position: int
    stream: str
    version: int
    event: dict[str, Any]
