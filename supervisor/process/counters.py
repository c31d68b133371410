"""Counters of refusals and other notable events, and gauges that are read on request. Both have
names from closed sets.
"""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, Protocol

from ...protocol.ids import AgentKey

#: Why the connection of an agent ended.
DisconnectReason = Literal[
    "closed",
    "silent",
    "stoodStill",
    "replaced",
    "ended",
    "queueFull",
    "notWritten",
    "badFrame",
    "refused",
]


class Counters:
    """Counters and gauges. Names have the form `<topic>` or `<topic>.<code>`, from closed sets."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._measured: dict[str, Callable[[], Any]] = {}

    def add(self, what: str, n: int = 1) -> None:
        self._counts[what] += n

    def all(self) -> dict[str, int]:
        return dict(sorted(self._counts.items()))

    def measure(self, **readings: Callable[[], Any]) -> None:
        """Register functions that return a current value (sizes, times) as plain data."""
        self._measured |= readings

    def measured(self) -> dict[str, Any]:
        return {what: reading() for what, reading in self._measured.items()}


class ConnectionMetrics(Protocol):
    """Receives measurements of agents' connections. Methods are fast and never raise."""

    def connected(self, key: AgentKey) -> None:
        """An agent is connected and has sent its first message."""

    def lost(self, key: AgentKey, why: DisconnectReason) -> None:
        """An established connection has ended."""

    def messages(self, direction: Literal["in", "out"], n: int) -> None:
        """Messages were received (in) or sent (out)."""

    def frame(self, direction: Literal["in", "out"], size: int) -> None:
        """A frame of this size in bytes was received or sent."""

    def op(self, name: str, status: str, secs: float) -> None:
        """A request to an agent ended, with or without an answer."""


class NullMetrics:
    """Discards all measurements."""

    def connected(self, key: AgentKey) -> None:
        return

    def lost(self, key: AgentKey, why: DisconnectReason) -> None:
        return

    def messages(self, direction: Literal["in", "out"], n: int) -> None:
        return

    def frame(self, direction: Literal["in", "out"], size: int) -> None:
        return

    def op(self, name: str, status: str, secs: float) -> None:
        return


def process() -> dict[str, int]:
    """Return the resource usage of this process. rss: bytes."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return {
        "rss": pages * os.sysconf("SC_PAGESIZE"),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
    }
