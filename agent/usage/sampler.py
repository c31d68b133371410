"""Sampler of the resources that live executions use, sent to the supervisor. Volatile: only the
newest counts.

Samples are taken in a thread, one at a time, while an execution runs. They cost at most one percent
of a core: the longer a sample took (many processes, much memory), the longer the pause.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ...protocol.ids import Token
from ...protocol.wire import messages
from ...protocol.wire.messages import Sample
from ...runtime.log.logger import Log
from . import gpu_counters, proc_counters
from .gpu_counters import Card, Gpus
from .proc_counters import Process, Traffic
from .process_membership import Execution, ProcessMembership

#: Pause between two samples (seconds), and between the start of an execution and its first sample,
#: which is also the shortest pause.
EVERY_SECS, FIRST_SECS = 5.0, 1.0
#: The pause after a sample is PAUSE_PER_SEC times the CPU seconds that it used, at most
#: LONGEST_SECS.
PAUSE_PER_SEC, LONGEST_SECS = 100.0, 60.0
#: Executions per message.
TOLD_AT_ONCE = 200


class UsageSampler:
    """Samples executions from `follow` to `unfollow`. folder: parent of their evidence folders. send:
    drops without a connection.
    """

    def __init__(
        self,
        folder: Path,
        keeper_pid: int,
        send: Callable[[messages.Samples], None],
        log: Log,
        *,
        cards: Gpus | None = None,
        record: Callable[[Sequence[Sample]], None] = lambda samples: None,
    ) -> None:
        """record: called with all samples, in the thread."""
        self._folder, self._send, self._log, self._record = folder, send, log, record
        self._members, self._gpus = ProcessMembership(keeper_pid), cards or Gpus()
        self._following: dict[Token, SampledExecution] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: the executions that are being sampled now
        self._sampling: Sequence[SampledExecution] | None = None
        #: loop time before which no other sample is taken
        self._earliest = 0.0

    def follow(
        self, token: Token, pid: int | None, ticks: int | None, elapsed: float | None
    ) -> None:
        """Sample an execution that has run for `elapsed` seconds. No-op if it is followed already
        or its main process is unknown.
        """
        if token in self._following or pid is None or ticks is None:
            return
        execution = Execution(token.name, str(token), str(self._folder / token.name), pid, ticks)
        began = time.monotonic() - elapsed if elapsed is not None and elapsed < EVERY_SECS else None
        self._following[token] = SampledExecution(token, execution, began)
        if self._sampling is None:
            self._schedule(asyncio.get_running_loop().time() + FIRST_SECS)

    def unfollow(self, token: Token) -> None:
        """Stop sampling an ended execution."""
        self._following.pop(token, None)
        if not self._following:
            self._cancel()

    def resend(self) -> None:
        """Sample soon on a new connection: the supervisor has no counts yet."""
        if self._following and self._sampling is None:
            self._schedule(asyncio.get_running_loop().time() + FIRST_SECS)

    def close(self) -> None:
        self._following.clear()
        self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, at: float) -> None:
        """Take a sample at this loop time or earlier."""
        at = max(at, self._earliest)
        if self._timer is None or self._timer.when() > at:
            self._cancel()
            self._timer = asyncio.get_running_loop().call_at(at, self._start_sample)

    def _start_sample(self) -> None:
        self._timer, self._sampling = None, tuple(self._following.values())
        try:
            # no thread pool: a sample that hangs in the kernel must not keep the agent from ending
            threading.Thread(
                target=self._sample_in_thread,
                args=(self._sampling, asyncio.get_running_loop()),
                name="samples",
                daemon=True,
            ).start()
        except RuntimeError as e:  # no thread can be created now
            self._sampled([], e, LONGEST_SECS)

    def _sample_in_thread(
        self, watched: Sequence["SampledExecution"], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Take a sample in the thread."""
        began = time.thread_time()
        found: list[Sample] = []
        error: Exception | None = None
        try:
            found = take_samples(watched, self._members, self._gpus)
            self._record(found)
        except Exception as e:
            error = e
        cost = time.thread_time() - began
        with contextlib.suppress(RuntimeError):  # the loop has ended during the sample
            loop.call_soon_threadsafe(
                self._sampled, found, error, pause_after(cost) if error is None else LONGEST_SECS
            )

    def _sampled(self, found: Sequence[Sample], error: Exception | None, pause: float) -> None:
        if error is not None:
            self._log.exception(
                "cannot sample the resource usage of jobs; retrying in {:g} s",
                pause,
                error=error,
            )
        now = asyncio.get_running_loop().time()
        looked, self._sampling = self._sampling or (), None
        self._earliest = now + (FIRST_SECS if pause <= EVERY_SECS else pause)
        live = [s for s in found if s.token in self._following]
        for n in range(0, len(live), TOLD_AT_ONCE):
            self._send(messages.Samples(samples=tuple(live[n : n + TOLD_AT_ONCE])))
        if self._following:
            met = set(self._following.values()) <= set(looked)
            self._schedule(now + (pause if met else FIRST_SECS))


def pause_after(cost: float) -> float:
    """Return the pause (seconds) after a sample that used `cost` CPU seconds."""
    return min(LONGEST_SECS, max(EVERY_SECS, PAUSE_PER_SEC * cost))


class SampledExecution:
    """One execution with the counts of earlier samples. began: its start on the monotonic clock, if
    recent.
    """

    def __init__(self, token: Token, execution: Execution, began: float | None) -> None:
        self.token, self.execution = token, execution
        #: time of the last sample and CPU seconds until then; none were used at the start
        self.last = None if began is None else (began, 0.0)
        self.traffic: dict[int, Traffic] = {}
        #: counts of ended processes that no live process has inherited
        self.lost_cpu = 0.0
        self.lost_traffic = Traffic(0, 0)


def take_samples(
    watched: Sequence[SampledExecution], members: ProcessMembership, cards: Gpus
) -> list[Sample]:
    """Return one sample of each execution that has processes. Blocks."""
    members.update([w.execution for w in watched])
    there = [w for w in watched if w.execution.seen]
    seen = cards.read_cards() if there else ()
    return [_sample(w, seen) for w in there]


def _sample(w: SampledExecution, cards: tuple[Card, ...]) -> Sample:
    mono, cpu = time.monotonic(), _cpu(w)
    percent = (
        None
        if w.last is None or mono <= w.last[0]
        else 100 * max(0.0, cpu - w.last[1]) / (mono - w.last[0])
    )
    w.last = mono, max(cpu, w.last[1]) if w.last else cpu
    traffic = _traffic(w)
    now = w.execution.seen
    memory = [m for m in map(proc_counters.memory, now.values()) if m is not None]
    used = gpu_counters.use(cards, frozenset(now))
    return Sample(
        token=w.token,
        at=max(0.0, time.time()),
        cpu_percent=None if percent is None else round(percent, 1),
        cpu_secs=round(w.last[1], 2),
        memory_bytes=sum(memory) if memory else None,
        read_bytes=traffic.read if traffic else None,
        written_bytes=traffic.written if traffic else None,
        processes=sum(not p.over for p in now.values()),
        gpu_percent=None if used.percent is None else round(used.percent, 1),
        gpu_memory_bytes=used.memory,
    )


def _cpu(w: SampledExecution) -> float:
    """Return the CPU seconds of the execution since its start, ended processes included."""
    before, now = w.execution.before, w.execution.seen
    handed = {pid: p.waited - before[pid].waited for pid, p in now.items() if pid in before}
    w.lost_cpu += proc_counters.lost(before, now, {pid: p.cpu for pid, p in before.items()}, handed)
    cgroup = w.execution.cgroup
    counted = proc_counters.cgroup_cpu_secs(cgroup.folder) if cgroup is not None else None
    return sum(p.cpu for p in now.values()) + w.lost_cpu if counted is None else counted


def _traffic(w: SampledExecution) -> Traffic | None:
    """Return the bytes that the execution read and wrote since its start; None if a process hides
    its counts.
    """
    before, now, was = w.execution.before, w.execution.seen, w.traffic
    w.traffic = dict(_disk_traffic(now, was))
    both = [pid for pid in w.traffic if pid in was]
    w.lost_traffic = Traffic(
        *(
            w.lost_traffic[i]
            + int(
                proc_counters.lost(
                    before,
                    now,
                    {pid: t[i] for pid, t in was.items()},
                    {pid: w.traffic[pid][i] - was[pid][i] for pid in both},
                )
            )
            for i in (0, 1)
        )
    )
    if len(w.traffic) < len(now):
        return None
    return Traffic(*(sum(t[i] for t in w.traffic.values()) + w.lost_traffic[i] for i in (0, 1)))


def _disk_traffic(
    now: Mapping[int, Process], was: Mapping[int, Traffic]
) -> Iterator[tuple[int, Traffic]]:
    for pid, p in now.items():
        disk_traffic = proc_counters.traffic(pid)
        if disk_traffic is not None:
            yield pid, disk_traffic
        elif (there := proc_counters.process(pid)) is None or there.ticks != p.ticks:
            # it has just ended: the next sample finds which process inherited its counts
            yield pid, was.get(pid, Traffic(0, 0))
