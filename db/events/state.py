"""Folded state as frozen values: a job with its runs, and an agent. The folds are in `job_fold` and
`agent_fold`.

The module lies below `events`, because a checkpoint event contains one of these values. A change
here, even of a default (checkpoints leave out defaults), changes stored data.
"""

from typing import Any

import msgspec

from ...diagnosis.exit_table import Behavior, Diagnosis
from ...protocol.api.requests import RunSpec
from ...protocol.clusters.batch import BatchRequest, BatchState
from ...protocol.ids import AgentKey, Token
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.jobs.notices import Notices
from ...protocol.jobs.roles import After, TaskPlace, TaskRole
from ...protocol.jobs.status import ACTIVE, MISSING, Status


class DebugHold(msgspec.Struct, frozen=True, kw_only=True):
    """A failed task that is kept for debugging: no process runs, but the task keeps its resources.
    secs: length of the hold.
    """

    at: float
    secs: float
    mono: float | None = None
    boot_id: str | None = None


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of (role, index). It is placed, may start, and ends. ended_at is None while any
    of its processes may live.

    A held task has its exit already, but has not ended.
    """

    token: Token
    agent_key: AgentKey
    op_id: str
    placed_at: float
    pid: int | None = None
    start_ticks: int | None = None
    started_at: float | None = None
    host: str | None = None
    boot_id: str | None = None
    ended_at: float | None = None
    exit: ExitInfo | None = None
    diagnosis: Diagnosis | None = None
    #: address for its peers, and the ports and GPUs that it has on the host
    address: str = ""
    ports: dict[str, tuple[int, ...]] = {}
    gpus: tuple[str, ...] = ()
    #: it was placed before it had a slot; and when it got the slot (set only if `ahead`)
    ahead: bool = False
    slot_at: float | None = None
    held: DebugHold | None = None
    #: exit of its command while other processes of the execution are alive
    exited: ExitInfo | None = None
    #: as accepted by its batch scheduler
    batch: BatchState | None = None
    notices: Notices | msgspec.UnsetType = msgspec.UNSET

    @property
    def live(self) -> bool:
        return self.ended_at is None

    @property
    def waits_for_slot(self) -> bool:
        """Return whether it waits with its agent for a slot."""
        return self.ahead and self.slot_at is None and self.live

    @property
    def batch_said(self) -> BatchState | None:
        """Return the task's last recorded state in its batch scheduler."""
        if self.exit is not None and isinstance(self.exit.batch, BatchState):
            return self.exit.batch
        return self.batch

    @property
    def place(self) -> TaskPlace:
        token = self.token
        return TaskPlace(
            role=token.role,
            index=token.index,
            host=self.agent_key.host,
            address=self.address,
            ports=self.ports,
            gpus=self.gpus,
        )


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the attempt, independent of its remaining tasks. role, index: the task that
    decided, if any.
    """

    at: float
    succeeded: bool
    reason: str
    role: str | None = None
    index: int | None = None


class Retrying(msgspec.Struct, frozen=True, kw_only=True):
    """Another attempt follows `delay_secs` seconds after `at`. mono, boot_id: as in RunRequested."""

    at: float
    delay_secs: float
    behavior: Behavior
    reason: str
    mono: float | None = None
    boot_id: str | None = None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a run. retry: another attempt follows. not_retried: why no attempt follows
    although a retry policy exists.
    """

    number: int
    tasks: tuple[Task, ...] = ()
    ended_at: float | None = None
    reason: str | None = None
    decided: Decided | None = None
    retry: Retrying | None = None
    not_retried: str | None = None

    @property
    def telling(self) -> Task | None:
        """Return the task whose exit represents the attempt: the task that decided, else the first
        failed task, else the last task.
        """
        decided = self.decided
        if decided is None and len(self.tasks) == 1:
            return self.tasks[0] if self.tasks[0].exit is not None else None
        ended = [t for t in self.tasks if t.exit is not None]
        if decided is not None and decided.role is not None:
            return next(
                (
                    t
                    for t in ended
                    if (t.token.role, t.token.index) == (decided.role, decided.index)
                ),
                None,
            )
        wanted = [
            t
            for t in ended
            if t.exit is not None
            and t.exit.succeeded == (decided is not None and decided.succeeded)
        ]
        if decided is not None and decided.succeeded:
            return wanted[-1] if wanted else None
        return wanted[0] if wanted else (ended[-1] if ended else None)


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    reason: str
    by: str
    grace_secs: float
    note: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    serial: int
    status: Status
    spec: RunSpec
    run_dir: str
    req_id: str
    queued_at: float
    queued_mono: float | None = None
    queued_boot_id: str | None = None
    #: when the first process started
    started_at: float | None = None
    #: when the status became final
    ended_at: float | None = None
    reason: str | None = None
    error: str | None = None
    attempts: tuple[Attempt, ...] = ()
    stop: Stop | None = None
    #: a stop requested after all live tasks had exited; without effect
    late_stop: Stop | None = None
    #: runs that must end first
    waits_for: tuple[After, ...] = ()

    @property
    def active(self) -> bool:
        return self.status in ACTIVE

    @property
    def live_tasks(self) -> tuple[Task, ...]:
        return tuple(t for a in self.attempts for t in a.tasks if t.live)

    @property
    def ending(self) -> tuple[Task, ...]:
        """Return the live tasks if the exit of every live task is known, else ()."""
        live = self.live_tasks
        return (
            live
            if all(t.exited is not None or t.held is not None for t in live)
            and any(t.exited is not None for t in live)
            else ()
        )

    @property
    def busy(self) -> bool:
        """Return whether the run still needs a status or has a live process."""
        return self.active or any(t.live for a in self.attempts for t in a.tasks)

    @property
    def attempt(self) -> int:
        """Return the number of the latest attempt; 0 before the first."""
        return self.attempts[-1].number if self.attempts else 0

    @property
    def retry(self) -> Retrying | None:
        """Return the planned retry while the run waits between two attempts."""
        return self.attempts[-1].retry if self.attempts and self.active else None

    @property
    def telling(self) -> Task | None:
        """Return the task whose exit represents the run, from the latest attempt with an exit."""
        for attempt in reversed(self.attempts):
            if any(t.exit is not None for t in attempt.tasks):
                return attempt.telling
        return None

    @property
    def exit(self) -> ExitInfo | None:
        """Return the exit that represents the run."""
        task = self.telling
        return None if task is None else task.exit

    def find(self, token: Token) -> Task | None:
        """Return the task with this token, or None if it is no longer kept."""
        for attempt in reversed(self.attempts):
            if attempt.number == token.attempt:
                at = self.seat(attempt, token)
                return None if at is None else attempt.tasks[at]
        return None

    def seat(self, attempt: Attempt, token: Token) -> int | None:
        """Return the index of the task in the attempt, or None. Tasks are placed role by role, so
        the index follows from role and task number without a search.
        """
        tasks, at = attempt.tasks, 0
        for role in self.spec.roles:
            if role.name == token.role:
                at += token.index
                break
            at += role.tasks
        if at < len(tasks) and tasks[at].token == token:
            return at
        return next((n for n, t in enumerate(tasks) if t.token == token), None)

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Return the diagnosis of the run's exit, or None for a success."""
        task = self.telling
        return None if task is None else task.diagnosis


class PastRun(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of an earlier run. Its live tasks are tracked until they end."""

    serial: int
    status: Status
    queued_at: float
    started_at: float | None = None
    ended_at: float | None = None
    reason: str | None = None
    error: str | None = None
    compute_job_hash: str | None = None
    compute_model: str
    job_run_mode: str
    exit_code: int | None = None
    exit_signal: int | None = None
    live_tasks: tuple[Task, ...] = ()
    #: resources that its live tasks requested and still hold; empty without live tasks
    roles: tuple[TaskRole, ...] = ()
    at_once: int | None = None
    batch: BatchRequest | msgspec.UnsetType = msgspec.UNSET
    #: for their accounting; empty without live tasks
    queue: str = ""
    simulation_type: str = ""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A compute job, identified by its computeJid. `version` counts its events.

    tags: of the user, sorted. They stay when the job runs again, unless it was purged before.
    """

    jid: str
    version: int = 0
    run: Run | None = None
    history: tuple[PastRun, ...] = ()
    history_dropped: int = 0
    tags: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        return MISSING if self.run is None else self.run.status

    @property
    def busy(self) -> bool:
        return (self.run is not None and self.run.busy) or any(p.live_tasks for p in self.history)

    def live_tasks(self) -> tuple[Task, ...]:
        own = self.run.live_tasks if self.run else ()
        return own + tuple(t for p in self.history for t in p.live_tasks)

    def task(self, token: Token) -> Task | None:
        """Return the live or ended task with this token, or None if the job no longer keeps it."""
        if self.run and self.run.serial == token.serial:
            return self.run.find(token)
        return next((t for p in self.history for t in p.live_tasks if t.token == token), None)


class AgentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """State of one agent key. `version` counts events. handle: finds the agent again; None if no
    agent runs as far as the log knows.
    """

    key: AgentKey
    version: int = 0
    attempt: int = 0
    token_hashes: tuple[str, ...] = ()
    handle: dict[str, Any] | None = None
    #: a start was requested, and its outcome is unknown
    starting: bool = False
    last_failure: str | None = None
