"""The executions of one executor, and the rules for their tokens: a token that was ever used, or
whose start failed for good, starts nothing again.
"""

from __future__ import annotations

import enum

from .lifecycle import Lifecycle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, Protocol

    class HasLifecycle(Protocol):
        """An execution of an executor."""

        @property
        def life(self) -> Lifecycle: ...


#: Number of remembered executions whose start failed without a trace on disk.
REFUSED_KEPT = 10_000
#: Detail of the exit of an order that repeats a failed one.
REFUSED_BEFORE = "an earlier start failed; it is not tried again"
#: Detail of the exit of an order whose token was used before.
STARTED_BEFORE = "the task was started before"
#: Detail of the exit of an execution that was stopped before its start.
STOPPED_BEFORE = "stopped before it started"


class Use(enum.Enum):
    """Use of the token of an order. KNOWN: its execution is in the table. USED: there
    is a trace on disk only, so the executor recovers it. REFUSED: its start failed for good. FREE:
    it was never used.
    """

    KNOWN = "known"
    USED = "used"
    REFUSED = "refused"
    FREE = "free"


class ExecutionTable:
    """Executions that were not settled, by key: a name or token."""

    __slots__ = ("_refused", "known")

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}
        self._refused: dict[Any, None] = {}

    def use_of(self, key: Any, has_trace: Callable[[], bool]) -> Use:
        """Return how a token was used. has_trace: whether the disk shows that it was used."""
        if key in self.known:
            return Use.KNOWN
        if has_trace():
            return Use.USED
        return Use.REFUSED if key in self._refused else Use.FREE

    def refuse(self, key: Any) -> None:
        """Remember that a start failed for good, although no trace of it could be written."""
        self._refused[key] = None
        if len(self._refused) > REFUSED_KEPT:
            del self._refused[next(iter(self._refused))]

    def ended(self, keys: Iterable[Any]) -> list[Any]:
        """Return the keys of those of these executions that have ended."""
        return [key for key in keys if key in self.known and self.known[key].life.ended]

    def settle(self, keys: Iterable[Any]) -> list[Any]:
        """Forget those of these executions that have ended: their ends are durable elsewhere.
        Return their keys.
        """
        ended = self.ended(keys)
        for key in ended:
            del self.known[key]
        return ended

    def live(self) -> Iterator[Any]:
        """Return the executions that have not ended."""
        return (e for e in list(self.known.values()) if not e.life.ended)


def pages(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Return the pages of a snapshot, at least one."""
    return [items[i : i + size] for i in range(0, len(items), size)] or [[]]


def never_started(
    detail: str, ended_at: float, stop_reason: str | None = None, fault: str | None = None
) -> dict[str, Any]:
    """Return the exit of an execution that never started, with the field names of ExitInfo. fault:
    a key of exit_info.FAULTS.
    """
    return {
        "source": "start",
        "detail": detail,
        "stopReason": stop_reason,
        "endedAt": ended_at,
        "fault": fault,
    }
