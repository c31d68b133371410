"""Samples the resource usage of running tasks from the engines every few seconds. Volatile: only
the newest sample counts, and a lost one is not repeated.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ....protocol.ids import Token
from ....protocol.wire.messages import ContainerSample, Sample
from ..host.engine import EngineError, HostEngine
from .state import TaskState

EVERY_SECS = 5.0
#: Concurrent calls to one host, and the timeout of each in seconds; a slow host is asked less
#: often.
AT_ONCE, CALL_SECS = 2, 4.0


class Sampling:
    """Samples tasks, and remembers the last CPU time of each, to compute the usage since then."""

    def __init__(self) -> None:
        self._last: dict[Token, tuple[float, float]] = {}

    async def sample(
        self, engine: HostEngine, tasks: Sequence[TaskState]
    ) -> list[tuple[TaskState, Sample]]:
        """Return the samples of the tasks that could be read."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(task: TaskState) -> tuple[TaskState, Sample] | None:
            async with turns:
                return await self._one(engine, task)

        return [s for s in await asyncio.gather(*(one(t) for t in tasks)) if s is not None]

    def forget(self, token: Token) -> None:
        self._last.pop(token, None)

    async def _one(self, engine: HostEngine, task: TaskState) -> tuple[TaskState, Sample] | None:
        id_ = task.container
        if id_ is None or not engine.up:
            return None
        try:
            stats = await engine.call(
                "what a task takes",
                lambda c: c.stats(id_, decode=None, stream=False, one_shot=True),
                CALL_SECS,
            )
        except EngineError:
            return None
        if not task.running or not stats.get("cpu_stats", {}).get("cpu_usage"):
            return None
        task.memory_peak = max(task.memory_peak or 0, memory_peak(stats) or 0) or None
        mono, cpu = time.monotonic(), cpu_secs(stats)
        # its usage at the start was 0
        before = self._last.get(task.token) or (
            None if task.life.started_mono is None else (task.life.started_mono, 0.0)
        )
        self._last[task.token] = mono, cpu
        percent = (
            None
            if before is None or mono <= before[0]
            else 100 * max(0.0, cpu - before[1]) / (mono - before[0])
        )
        return task, sample(task.token, stats, percent)


def cpu_secs(stats: Mapping[str, Any]) -> float:
    return float(stats["cpu_stats"]["cpu_usage"].get("total_usage", 0)) / 1e9


def sample(token: Token, stats: Mapping[str, Any], percent: float | None) -> Sample:
    """Convert the engine's `stats`. processes: the number that the kernel counts towards the limit,
    including threads.
    """
    read, written = (_moved(stats, word) for word in ("read", "write"))
    return ContainerSample(
        token=token,
        at=max(0.0, time.time()),
        cpu_percent=None if percent is None else round(percent, 1),
        cpu_secs=round(cpu_secs(stats), 2),
        memory_bytes=_memory(stats.get("memory_stats") or {}),
        read_bytes=read,
        written_bytes=written,
        processes=(stats.get("pids_stats") or {}).get("current"),
        gpu_percent=None,
        gpu_memory_bytes=None,
        received_bytes=_network(stats, "rx_bytes"),
        sent_bytes=_network(stats, "tx_bytes"),
    )


def _memory(stats: Mapping[str, Any]) -> int | None:
    """Return the memory without the reclaimable page cache, as `docker stats` shows it."""
    if "usage" not in stats:
        return None
    details = stats.get("stats") or {}
    # cgroups of version 1 have the first name
    spare = details.get("total_inactive_file", details.get("inactive_file", 0))
    return max(0, int(stats["usage"]) - int(spare))


def memory_peak(stats: Mapping[str, Any]) -> int | None:
    """Return the peak if the engine reports it (cgroups of version 1), otherwise the current
    value.
    """
    memory = stats.get("memory_stats") or {}
    return int(memory["max_usage"]) if memory.get("max_usage") else _memory(memory)


def _network(stats: Mapping[str, Any], name: str) -> int | None:
    """Return the bytes of all networks; None if the container has none, or its host's."""
    networks = stats.get("networks")
    return sum(int(n.get(name, 0)) for n in networks.values()) if networks else None


def _moved(stats: Mapping[str, Any], word: str) -> int | None:
    rows = (stats.get("blkio_stats") or {}).get("io_service_bytes_recursive")
    return (
        None
        if rows is None
        else sum(int(r["value"]) for r in rows if str(r.get("op", "")).lower() == word)
    )
