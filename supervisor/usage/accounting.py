"""Reports of accounted usage: rows of the store summed by user, queue, app and time. Pure."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ...db.events.usage_row import UsageRow, add, day_of, month_of
from ...protocol.api.requests import UsageGroup
from ...protocol.errors import Refusal

#: The group of users who are in none; no group has this name.
NO_GROUP = "-"
#: Maximum number of rows of a report.
MAX_ROWS = 10_000
_DAY = 86_400
_MONTH = len("2026-01")


def span_of(text: str) -> tuple[int, int]:
    """Return start and end (unix seconds) of a UTC month or day, such as 2026-01 or 2026-01-15.
    Raises Refusal for a day that does not exist.
    """
    month = len(text) == _MONTH
    try:
        start = datetime.fromisoformat(f"{text}-01" if month else text).replace(tzinfo=UTC)
    except ValueError:
        raise Refusal("badRequest", f"{text} is not a day of the calendar") from None
    begin = int(start.timestamp())
    return begin, month_of(begin + 32 * _DAY) if month else begin + _DAY


class Report:
    """The sums of one report. by: one row for each combination of these. groups_of: returns the
    groups of a user; the user counts in each of them, and once in the total.
    """

    def __init__(
        self,
        by: Sequence[UsageGroup],
        groups_of: Callable[[str], Sequence[str]] = lambda uid: (),
    ) -> None:
        self._by, self._groups_of = by, groups_of
        self._groups: dict[tuple[str, ...], UsageRow] = {}
        self._total = _NOTHING

    def add(self, row: UsageRow) -> None:
        self._total = add(self._total, row)
        groups = (self._groups_of(row.uid) or (NO_GROUP,)) if "group" in self._by else ("",)
        for group in groups:
            names = tuple(group if by == "group" else _name(row, by) for by in self._by)
            known = self._groups.get(names)
            self._groups[names] = row if known is None else add(known, row)

    def answer(self) -> dict[str, Any]:
        """Return {"by", "rows", "total"}, the rows in the order of their names. Raises Refusal if
        there are too many.
        """
        if len(self._groups) > MAX_ROWS:
            raise Refusal(
                "badRequest",
                f"this report has {len(self._groups)} rows, more than {MAX_ROWS}; choose a shorter time or fewer groups",
            )
        return {
            "by": list(self._by),
            "rows": [
                {**dict(zip(self._by, names, strict=True)), **_values(row)}
                for names, row in sorted(self._groups.items())
            ],
            "total": _values(self._total),
        }


def seconds(used: Mapping[tuple[str, str], UsageRow]) -> dict[str, dict[tuple[str, str], float]]:
    """Return totals in base units, by name, of usage by driver and kind."""
    return {
        "core_seconds": {of: row.core_ms / 1000 for of, row in used.items()},
        "cpu_seconds": {of: row.cpu_ms / 1000 for of, row in used.items()},
        "gpu_seconds": {of: row.gpu_ms / 1000 for of, row in used.items()},
        "memory_byte_seconds": {of: row.memory_mib_ms * 2**20 / 1000 for of, row in used.items()},
    }


def _name(row: UsageRow, group: UsageGroup) -> str:
    match group:
        case "user" | "group":
            return row.uid
        case "queue":
            return row.queue
        case "driver":
            return row.driver
        case "kind":
            return row.kind
        case "app":
            return row.simulation_type
        case "month":
            return _date(month_of(row.start))[:_MONTH]
        case "day":
            # of older usage only the month is known
            return _date(day_of(row.start))[: _MONTH if row.span == "month" else None]


def _date(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def _values(row: UsageRow) -> dict[str, Any]:
    return {
        "runs": row.completed + row.canceled + row.failed,
        "completed": row.completed,
        "canceled": row.canceled,
        "error": row.failed,
        "executions": row.executions,
        "wallSecs": row.wall_ms / 1000,
        "coreSecs": row.core_ms / 1000,
        "cpuSecs": row.cpu_ms / 1000,
        "gpuSecs": row.gpu_ms / 1000,
        "memoryGibSecs": round(row.memory_mib_ms / 1024 / 1000, 6),
        "peakMemoryBytes": row.peak_bytes,
        "outputBytes": row.output_bytes,
        "wallUnknown": row.wall_unknown,
        "cpuUnknown": row.cpu_unknown,
        "memoryUnknown": row.memory_unknown,
        "outputUnknown": row.output_unknown,
    }


_NOTHING = UsageRow(start=0, span="hour", uid="", queue="", driver="", kind="", simulation_type="")
