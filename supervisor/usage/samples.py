"""Resource usage of executions: newest sample, peaks and a bounded time series. Volatile, never an
event.

Values are kept for every live task, and for the most recently finished runs within a memory limit.
Permanent values are in the exits.
"""

from collections import ChainMap
from collections.abc import Callable
from typing import Any

from ...db.events.state import Job
from ...db.records.resource_usage import largest
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, Token, split_jid
from ...protocol.wire.messages import Sample, Samples
from ..engine.decision_loop import Engine
from ..process.counters import Counters
from .summary import TaskUsage, job_metrics
from .time_series import MAX_POINTS, Series

#: Maximum points (72 bytes each) of all live tasks, and minimum points of each: with many tasks
#: each has fewer points.
LIVE_POINTS, FEWEST_POINTS = 400_000, 16
#: Maximum points of tasks of finished attempts, and the fixed cost of a task in points.
OVER_POINTS, TASK_POINTS = 200_000, 16
#: Older samples are not current. Agents with much to sample report once a minute.
STALE_SECS = 90.0


class UsageSamples:
    """Resource usage of all tasks. mono: returns monotonic seconds."""

    def __init__(self, engine: Engine, counters: Counters, mono: Callable[[], float]) -> None:
        self._engine, self._counters, self._mono = engine, counters, mono
        self._live: dict[str, dict[Token, TaskUsage]] = {}
        #: Finished attempts of current runs by their numbers, for each job, in the order of ends.
        self._over: dict[str, dict[int, dict[Token, TaskUsage]]] = {}
        #: Serial and attempt of each live job for which old tasks were removed last.
        self._pruned_at: dict[str, tuple[int, int]] = {}
        self._live_tasks = self._over_points = 0

    def take(self, key: AgentKey, message: Samples) -> None:
        """Record an agent's samples. Raises Refusal("foreignToken") if one is of another user's
        task; then nothing is recorded.
        """
        for sample in message.samples:
            if split_jid(sample.token.jid)[0] != key.uid:
                raise Refusal(
                    "foreignToken", f"the agent reported another user's task, {sample.token}"
                )
        for sample in message.samples:
            task = self._engine.world.task(sample.token)
            if task is None or not task.live or task.agent_key != key:
                self._counters.add("sampleOfNothing")
            else:
                self._add(sample)

    def _add(self, sample: Sample) -> None:
        token, mono = sample.token, self._mono()
        usages = self._live.setdefault(token.jid, {})
        usage = usages.get(token)
        if usage is None:
            usage = usages[token] = TaskUsage(newest=sample, heard=mono, series=Series())
            self._live_tasks += 1
        else:
            _rates(usage, sample, mono)
        _grow(usage, sample)
        usage.newest, usage.heard = sample, mono
        usage.series.add(
            mono, sample, max(FEWEST_POINTS, min(MAX_POINTS, LIVE_POINTS // self._live_tasks))
        )

    def settle(self, job: Job) -> None:
        """Handle a durable change of a job: tasks of finished attempts are kept as long as there is
        room, tasks of earlier runs are forgotten.
        """
        run, jid = job.run, job.jid
        if run is None or (jid not in self._live and jid not in self._over):
            return
        now, busy = (run.serial, len(run.attempts)), job.busy
        if busy and self._pruned_at.get(jid) == now:
            return  # same run and attempt: nothing to move yet
        last = {t.token for t in (run.attempts[-1].tasks if busy and run.attempts else ())}
        wanted = last | {t.token for t in job.live_tasks()}
        usages = self._forget_live(jid)
        if kept := {token: usage for token, usage in usages.items() if token in wanted}:
            self._live[jid], self._pruned_at[jid] = kept, now
            self._live_tasks += len(kept)
        ended = {t: u for t, u in usages.items() if t not in wanted and t.serial == run.serial}
        self._keep(jid, run.serial, ended)

    def _keep(self, jid: str, serial: int, ended: dict[Token, TaskUsage]) -> None:
        """Keep these tasks of the run, and forget those of another run."""
        attempts = self._forget_over(jid)
        attempts = {n: found for n, found in attempts.items() if next(iter(found)).serial == serial}
        for token, usage in ended.items():
            attempts.setdefault(token.attempt, {})[token] = usage
        if attempts:
            self._over[jid] = attempts
            self._over_points += sum(map(_points, attempts.values()))
        while self._over_points > OVER_POINTS:
            self._forget_attempt(next(iter(self._over)))

    def _forget_attempt(self, jid: str) -> None:
        """Forget the oldest attempt that is kept of this job."""
        attempts = self._over[jid]
        self._over_points -= _points(attempts.pop(min(attempts)))
        if not attempts:
            del self._over[jid]

    def _forget_live(self, jid: str) -> dict[Token, TaskUsage]:
        self._pruned_at.pop(jid, None)
        usages = self._live.pop(jid, {})
        self._live_tasks -= len(usages)
        return usages

    def _forget_over(self, jid: str) -> dict[int, dict[Token, TaskUsage]]:
        attempts = self._over.pop(jid, {})
        self._over_points -= sum(map(_points, attempts.values()))
        return attempts

    def metrics_of(
        self,
        job: Job,
        series: Callable[[Token], bool] = lambda token: False,
        attempt: int = 0,
    ) -> dict[str, Any]:
        """See `job_metrics`."""
        number = attempt or (job.run.attempt if job.run is not None else 0)
        over = self._over.get(job.jid, {}).get(number, {})
        usage = ChainMap(self._live.get(job.jid, {}), over)
        return job_metrics(job, usage, self._mono() - STALE_SECS, series, attempt)

    def sizes(self) -> dict[str, int]:
        """Return the number of entries in memory."""
        return {
            "jobs": len(self._live),
            "tasks": self._live_tasks,
            "jobsOver": len(self._over),
            "pointsOver": self._over_points,
        }


def _points(usage: dict[Token, TaskUsage]) -> int:
    return sum(TASK_POINTS + len(t.series) for t in usage.values())


def _rates(usage: TaskUsage, sample: Sample, mono: float) -> None:
    """Update the rates in bytes per second since the previous sample. Samples that were delayed and
    arrived together do not change them.
    """
    secs, before = sample.at - usage.newest.at, usage.newest
    if secs <= 0 or mono <= usage.heard:
        return
    usage.read_rate = _rate(before.read_bytes, sample.read_bytes, secs)
    usage.write_rate = _rate(before.written_bytes, sample.written_bytes, secs)


def _rate(before: int | None, now: int | None, secs: float) -> float | None:
    return None if before is None or now is None else max(0.0, now - before) / secs


def _grow(usage: TaskUsage, sample: Sample) -> None:
    """Update cumulative values and peaks. They only grow: a replaced agent may know less than its
    predecessor.
    """
    usage.cpu_secs = largest(usage.cpu_secs, sample.cpu_secs)
    usage.read_bytes = largest(usage.read_bytes, sample.read_bytes)
    usage.written_bytes = largest(usage.written_bytes, sample.written_bytes)
    usage.received_bytes = largest(usage.received_bytes, getattr(sample, "received_bytes", None))
    usage.sent_bytes = largest(usage.sent_bytes, getattr(sample, "sent_bytes", None))
    usage.peak_cpu = largest(usage.peak_cpu, sample.cpu_percent)
    usage.peak_memory = largest(usage.peak_memory, sample.memory_bytes)
    usage.peak_processes = largest(usage.peak_processes, sample.processes)
    usage.peak_gpu_memory = largest(usage.peak_gpu_memory, sample.gpu_memory_bytes)
