"""Reports of accounted usage: times of the calendar, groups, totals, and their limit."""

from datetime import UTC, datetime
from typing import Any

import pytest

from jobscribe.db.events.usage_row import DAY, UsageRow
from jobscribe.protocol.api.requests import UsageGroup
from jobscribe.protocol.errors import Refusal
from jobscribe.supervisor.usage import accounting
from jobscribe.supervisor.usage.accounting import Report, seconds, span_of


def at(*date: int) -> int:
    return int(datetime(*date, tzinfo=UTC).timestamp())  # type: ignore[arg-type,misc]


def row(start: int, **fields: object) -> UsageRow:
    values = {
        "span": "hour",
        "uid": "user0001",
        "queue": "default",
        "driver": "local",
        "kind": "sequential",
        "simulation_type": "command",
        **fields,
    }
    return UsageRow(start=start, **values)  # type: ignore[arg-type]


def report(rows: list[UsageRow], by: tuple[UsageGroup, ...]) -> dict[str, Any]:
    sums = Report(by)
    for one in rows:
        sums.add(one)
    return sums.answer()


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("2024-02", (2024, 2, 1), (2024, 3, 1)),
        ("2023-12", (2023, 12, 1), (2024, 1, 1)),
        ("2024-02-29", (2024, 2, 29), (2024, 3, 1)),
    ],
)
def test_a_month_and_a_day_are_of_utc(
    text: str, start: tuple[int, ...], end: tuple[int, ...]
) -> None:
    assert span_of(text) == (at(*start), at(*end))


def test_a_day_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Refusal, match="2023-02-29 is not a day"):
        span_of("2023-02-29")


ROWS = [
    row(at(2024, 3, 5, 7), completed=1, executions=2, wall_ms=1500, core_ms=3000, peak_bytes=7),
    row(at(2024, 3, 5), span="day", failed=1, wall_ms=500, peak_bytes=9, cpu_unknown=1),
    row(at(2024, 3, 6, 1), uid="user0002", queue="night", canceled=1, gpu_ms=250, output_bytes=4),
    row(at(2024, 1, 1), span="month", simulation_type="x", memory_mib_ms=2_048_000),
]


def test_groups_are_sums_in_the_order_of_their_names() -> None:
    answer = report(ROWS, ("user", "day"))
    assert answer["by"] == ["user", "day"]
    assert [(r["user"], r["day"], r["runs"]) for r in answer["rows"]] == [
        ("user0001", "2024-01", 0),
        ("user0001", "2024-03-05", 2),
        ("user0002", "2024-03-06", 1),
    ]
    second = answer["rows"][1]
    assert second == {
        "user": "user0001",
        "day": "2024-03-05",
        "runs": 2,
        "completed": 1,
        "canceled": 0,
        "error": 1,
        "executions": 2,
        "wallSecs": 2.0,
        "coreSecs": 3.0,
        "cpuSecs": 0.0,
        "gpuSecs": 0.0,
        "memoryGibSecs": 0.0,
        "peakMemoryBytes": 9,
        "outputBytes": 0,
        "wallUnknown": 0,
        "cpuUnknown": 1,
        "memoryUnknown": 0,
        "outputUnknown": 0,
    }
    total = answer["total"]
    assert (total["runs"], total["wallSecs"], total["peakMemoryBytes"]) == (3, 2.0, 9)
    assert (total["gpuSecs"], total["outputBytes"], total["memoryGibSecs"]) == (0.25, 4, 2.0)


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("user", ["user0001", "user0002"]),
        ("queue", ["default", "night"]),
        ("app", ["command", "x"]),
        ("driver", ["local"]),
        ("kind", ["sequential"]),
        ("month", ["2024-01", "2024-03"]),
        ("day", ["2024-01", "2024-03-05", "2024-03-06"]),
    ],
)
def test_each_group_has_its_names(group: str, names: list[str]) -> None:
    answer = report(ROWS, (group,))  # type: ignore[arg-type]
    assert [r[group] for r in answer["rows"]] == names
    assert sum(r["runs"] for r in answer["rows"]) == answer["total"]["runs"] == 3


def test_without_groups_there_is_one_row_and_without_usage_none() -> None:
    assert [r["runs"] for r in report(ROWS, ())["rows"]] == [3]
    nothing = report([], ("user",))
    assert nothing["rows"] == [] and set(nothing["total"].values()) == {0}


def test_a_report_with_too_many_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "MAX_ROWS", 3)
    days = [row(n * DAY) for n in range(4)]
    assert len(report(days[:3], ("day",))["rows"]) == 3
    with pytest.raises(Refusal, match="4 rows, more than 3; choose a shorter time"):
        report(days, ("day",))


def test_totals_for_monitoring_are_in_base_units() -> None:
    used = {("local", "sequential"): row(0, core_ms=1500, memory_mib_ms=1000)}
    totals = seconds(used)
    assert totals["core_seconds"] == {("local", "sequential"): 1.5}
    assert totals["memory_byte_seconds"] == {("local", "sequential"): 2.0**20}


GROUPS = {"user0001": ("lab", "physics"), "user0002": ("physics",)}


def test_a_user_counts_in_each_of_its_groups_and_once_in_the_total() -> None:
    sums = Report(("group", "user"), lambda uid: GROUPS.get(uid, ()))
    for uid, secs in (("user0001", 1), ("user0001", 2), ("user0002", 4), ("user0003", 8)):
        sums.add(row(at(2024, 3, 5), uid=uid, core_ms=secs * 1000))
    answer = sums.answer()
    assert [(r["group"], r["user"], r["coreSecs"]) for r in answer["rows"]] == [
        ("-", "user0003", 8.0),
        ("lab", "user0001", 3.0),
        ("physics", "user0001", 3.0),
        ("physics", "user0002", 4.0),
    ]
    assert answer["total"]["coreSecs"] == 15.0
