"""Counters of what was refused or noticed, and readings of what there is, by name. What reads them
comes and goes; these stay.
"""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, Protocol

from ...protocol.ids import AgentKey

#: Why a connection of an agent is no more.
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
    """Names are `<topic>` or `<topic>.<code>`, out of closed sets."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._measured: dict[str, Callable[[], Any]] = {}

    def add(self, what: str, n: int = 1) -> None:
        self._counts[what] += n

    def all(self) -> dict[str, int]:
        return dict(sorted(self._counts.items()))

    def measure(self, **readings: Callable[[], Any]) -> None:
        """What there is at a moment (sizes, times) is read when somebody asks; as plain data."""
        self._measured |= readings

    def measured(self) -> dict[str, Any]:
        return {what: reading() for what, reading in self._measured.items()}


class ConnectionMetrics(Protocol):
    """Who measures the connections of agents. Cheap, and never raises."""

    def connected(self, key: AgentKey) -> None:
        """Its agent has said that it is alive."""

    def lost(self, key: AgentKey, why: DisconnectReason) -> None:
        """A connection that was connected is no more."""

    def messages(self, direction: Literal["in", "out"], n: int) -> None:
        """So many, as seen from here."""

    def frame(self, direction: Literal["in", "out"], size: int) -> None:
        """One, of so many bytes."""

    def op(self, name: str, status: str, secs: float) -> None:
        """A question had its answer, or had none."""


class NullMetrics:
    """Nobody measures."""

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
    """What this process has of its machine. rss: bytes."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return {
        "rss": pages * os.sysconf("SC_PAGESIZE"),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
    }
