"""Counters of events: follows the log, and reads each job in its state at the durable event.

All counting is in this module. Events from before the start of this process are not counted.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from prometheus_client import Counter, Histogram

from ...db.events.events import (
    AgentGone,
    AgentSignInNeeded,
    AgentStartFailed,
    AgentStartRequested,
    AttemptEnded,
    Event,
    RunEnded,
    RunRequested,
    TaskEnded,
    TaskPlaced,
    TaskSlotGranted,
    TaskStarted,
    job_stream,
)
from ...db.events.state import Job, PastRun, Run
from ...db.store.contract import Stored
from ...protocol.ids import AgentKey, Token
from ...protocol.jobs.exit_info import ExitInfo
from .cause_labels import attempt_cause, cause
from .instruments import Instruments

_COUNTED = frozenset(
    (RunRequested, TaskPlaced, TaskSlotGranted, TaskStarted, TaskEnded, AttemptEnded, RunEnded)
)
#: Maximum number of jobs with events to be counted, which wait only briefly. Above it, events are
#: dropped uncounted.
MAX_WAITING = 100_000

M = TypeVar("M", Counter, Histogram)


class EventCounters:
    """Counts durable events. Call `heard` first with all events that became durable together, then
    `projected` for each changed job.
    """

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._waiting: dict[str, deque[tuple[int, Event]]] = {}
        #: Cache: the library looks each series up again. There are few.
        self._rows: dict[tuple[Any, ...], Any] = {}
        #: Requested agents, and the wall time of the request.
        self._starting: dict[AgentKey, float] = {}

    def sizes(self) -> dict[str, int]:
        """Return the number of entries in memory."""
        return {"waiting": len(self._waiting), "starting": len(self._starting)}

    def heard(self, events: Sequence[Stored]) -> None:
        for stored in events:
            event = stored.event
            if type(event) in _COUNTED:
                waiting = self._waiting.get(stored.stream)
                if waiting is None:
                    if len(self._waiting) >= MAX_WAITING:
                        self._waiting.clear()
                    waiting = self._waiting[stored.stream] = deque()
                waiting.append((stored.position, event))
            elif isinstance(event, AgentStartRequested):
                self._starting[event.agent_key] = event.at
            elif isinstance(event, AgentStartFailed):
                self._agent(event.agent_key, "failed", event.at)
            elif isinstance(event, AgentSignInNeeded):
                self._agent(event.agent_key, "signIn", event.at)
            elif isinstance(event, AgentGone):
                self._starting.pop(event.agent_key, None)

    def connected(self, key: AgentKey, now: float) -> None:
        self._agent(key, "up", now)

    def _agent(self, key: AgentKey, status: str, at: float) -> None:
        since = self._starting.pop(key, None)
        if since is not None and key.driver in self._instruments.drivers:
            self._row(self._instruments.agent_starts, key.driver, status).observe(
                max(0.0, at - since)
            )

    def _row(self, metric: M, *labels: str) -> M:
        """Return one series of a metric."""
        found = self._rows.get((metric, *labels))
        if found is None:
            found = self._rows[(metric, *labels)] = metric.labels(*labels)
        return cast(M, found)

    def projected(self, job: Job, position: int) -> None:
        """Count the events of a job up to this position, with the job as of this position."""
        stream = job_stream(job.jid)
        waiting = self._waiting.get(stream)
        if waiting is None:
            return
        while waiting and waiting[0][0] <= position:
            self._count(job, waiting.popleft()[1])
        if not waiting:
            del self._waiting[stream]

    def _count(self, job: Job, event: Event) -> None:
        run = job.run
        if run is None or run.spec.driver not in self._instruments.drivers:
            return  # the driver is not in use any more
        driver = run.spec.driver
        match event:
            case RunRequested():
                self._row(self._instruments.submitted, driver, event.spec.job_run_mode).inc()
            case RunEnded():
                self._ended(job, driver, event)
            case TaskEnded():
                self._exit(driver, event.exit)
            case TaskPlaced(ahead=False) | TaskSlotGranted():
                self._slot_wait(run, driver, event)
            case TaskStarted() if (
                event.token.serial == run.serial and event.started_at == run.started_at
            ):
                self._row(self._instruments.queued, driver, run.spec.job_run_mode).observe(
                    max(0.0, event.started_at - run.queued_at)
                )
                task = run.find(event.token)
                if task is not None and task.slot_at == event.at:
                    self._slot_wait(run, driver, event)
            case AttemptEnded() if event.serial == run.serial:
                why = attempt_cause(run, event.attempt, event.reason)
                self._row(
                    self._instruments.attempts, driver, why, "no" if event.retry is None else "yes"
                ).inc()
            case _:
                pass

    def _slot_wait(
        self, run: Run, driver: str, event: TaskPlaced | TaskSlotGranted | TaskStarted
    ) -> None:
        """Record how long a run waited for its slots, at the first task of its first attempt."""
        token = event.token
        if token.serial == run.serial and token.attempt == 1 and _first(run, token):
            self._row(self._instruments.slot_wait, driver, run.spec.job_run_mode).observe(
                max(0.0, event.at - run.queued_at)
            )

    def _ended(self, job: Job, driver: str, event: RunEnded) -> None:
        """Count a finished run. Another run may have followed at once, so look in the history too."""
        found: Run | PastRun | None = job.run
        if found is None or found.serial != event.serial:
            found = next((p for p in job.history if p.serial == event.serial), None)
        if found is None:
            return
        kind, exit_ = (
            (found.spec.job_run_mode, found.exit)
            if isinstance(found, Run)
            else (found.job_run_mode, None)
        )
        self._row(
            self._instruments.finished,
            driver,
            kind,
            event.status,
            cause(event.status, event.reason, exit_),
        ).inc()
        if found.started_at is not None:
            self._row(self._instruments.ran, driver, kind).observe(
                max(0.0, event.at - found.started_at)
            )

    def _exit(self, driver: str, exit_: ExitInfo) -> None:
        slurm = exit_.ended_by_scheduler == "OUT_OF_MEMORY"
        if slurm or exit_.out_of_memory:
            self._row(self._instruments.oom, driver, "slurm" if slurm else "cgroup").inc()
        self._row(self._instruments.log_bytes, driver).inc(
            (exit_.stdout_bytes or 0) + (exit_.stderr_bytes or 0)
        )
        self._row(self._instruments.log_dropped, driver).inc(exit_.dropped_bytes)


def _first(run: Run, token: Token) -> bool:
    """Return whether this is the first task of its attempt."""
    attempt = next((a for a in run.attempts if a.number == token.attempt), None)
    return attempt is not None and bool(attempt.tasks) and attempt.tasks[0].token == token
