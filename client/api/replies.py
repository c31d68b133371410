"""Answers of the supervisor as values. Unknown fields are accepted and kept in `raw`."""

from typing import Any

import msgspec

from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.jobs.status import COMPLETED

#: States of runs that do not exist any more, so there is nothing to wait for.
_NOT_THERE = frozenset({"missing", "job_run_purged"})
#: Exit code of a jobscribe command that failed, or of a run with unknown exit code.
NOT_KNOWN = 125


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """The copy of one file to or from a run directory.

    name: relative to the run directory. path: the local file. note: a sentence about a copy that is
    correct but special (the file was there already, or grows). code, error: why there is no copy;
    empty for a correct one.
    """

    name: str
    path: str
    size: int = 0
    note: str = ""
    code: str = ""
    error: str = ""


class RunState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The status reply. Times are unix seconds.

    over: the status is final and all processes have ended. known: False while the state cannot be
    determined, since `since`. queue_state, job_status_message: why the run waits, as an identifier
    and as a sentence. attempt: the latest; 0 before the first. roles: task counts by state for each
    role; None for a run without roles. diagnosis: meaning of the exit. waits_for: computeJids of
    its dependencies. run_dir: None if there is none. run_dir_on: the cluster with the run
    directory; None if the supervisor sees it. raw: the whole reply.
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
        """True if a wait would return at once: the run is over or does not exist any more."""
        return self.over or self.state in _NOT_THERE

    @property
    def shell_code(self) -> int:
        """The exit code as a shell reports it: the job's code, or 128+n for a signal.

        125 if it is unknown; 0 only if the run completed.
        """
        if self.exit is None:
            return 0 if self.state == COMPLETED else NOT_KNOWN
        code = self.exit.shell_code
        return NOT_KNOWN if code == 0 and self.state != COMPLETED else code

    def sentence(self) -> str:
        """Return the state and its cause in one line for a person."""
        if not self.known:
            return f"{self.state}, current state unknown" + (
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
    """One page of jobs, newest change first. jobs: rows as db.store.contract.IndexRow, in camelCase.
    next: `before` of the next page; None at the end. cursor: the same as a text; unset by supervisors of
    the previous version.

    `state` of a row is that of RunState. `status` is its deprecated name.
    """

    jobs: list[dict[str, Any]]
    next: int | None = None
    cursor: str | msgspec.UnsetType | None = msgspec.UNSET


class GroupState(msgspec.Struct, frozen=True, rename="camel"):
    """The runs of one simulation. counts: number of runs by state. busy: number of runs with live
    processes or pending; over: no run is busy.

    exits: [{"state", "reason", "code", "signal", "count"}] of ended runs, the most frequent first;
    None if only counts were requested. runs: a page of runs. next: `after` of the next page; None
    at the end. raw: the whole reply.
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
        """Number of runs in a final state."""
        return self.total - self.counts.get("pending", 0) - self.counts.get("running", 0)

    @property
    def failed(self) -> int:
        """Number of ended runs that did not complete."""
        return self.counts.get("error", 0) + self.counts.get("canceled", 0)


class GroupRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One run of a group. index: None if it is not part of an array. exit: {"code", "signal"} if it
    is known.
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
        """The exit code as a shell reports it: see `RunState.shell_code`."""
        if self.state == COMPLETED:
            return 0
        exit_ = self.exit or {}
        code, number = exit_.get("code"), exit_.get("signal")
        return 128 + number if number is not None else code or NOT_KNOWN


class LogPart(msgspec.Struct, frozen=True):
    """Bytes of a stream from `offset`. dropped: number of discarded bytes before them. end: no more
    output can follow.

    attempt, role, index: the task that wrote them; role is None before the first placement. note,
    sentence: why there is no output, as an identifier and as a sentence.
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
