"""`usage`: the request, a table that marks lower bounds, CSV and JSON."""

import csv
import io
from typing import Any

import pytest

Fake = Any
Run = Any

ROW = {
    "runs": 3,
    "completed": 1,
    "canceled": 1,
    "error": 1,
    "executions": 4,
    "wallSecs": 90.0,
    "coreSecs": 7200.0,
    "cpuSecs": 5.25,
    "gpuSecs": 0.0,
    "memoryGibSecs": 5400.0,
    "peakMemoryBytes": 3 << 20,
    "outputBytes": 17,
    "wallUnknown": 0,
    "cpuUnknown": 2,
    "memoryUnknown": 0,
    "outputUnknown": 0,
}


@pytest.fixture
def asked(fake: Fake) -> list[dict[str, Any]]:
    """Answer with two rows; return the requests."""
    bodies: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        bodies.append(body)
        by = body["by"]
        rows = [
            {**{g: f"{g}-{n}" for g in by}, **ROW, "runs": 3 + n} for n in range(2 if by else 1)
        ]
        return {"state": "ok", "by": by, "rows": rows, "total": {**ROW, "runs": 7}}

    fake._usage = answer
    return bodies


def cells(line: str) -> list[str]:
    return [c.strip() for c in line.split("  ") if c.strip()]


def test_rows_and_their_total_mark_what_is_a_lower_bound(
    run: Run, asked: list[dict[str, Any]]
) -> None:
    ended = run("usage", "--by", "user,queue")
    heads, first, _, total = ended.out.splitlines()
    assert cells(heads)[:4] == ["USER", "QUEUE", "RUNS", "OK"]
    assert cells(first) == [
        "user-0",
        "queue-0",
        "3",
        "1",
        "1",
        "1",
        "1 m 30 s",
        "2.0 h",
        "5.25 s+",
        "0.00 s",
        "1.50 GiB h",
        "3.0 MiB",
        "17 B",
    ]
    assert cells(total)[:2] == ["total", "7"]
    assert (ended.code, ended.err) == (0, "")


def test_the_request_names_user_time_and_groups(run: Run, asked: list[dict[str, Any]]) -> None:
    run("usage")
    run("usage", "--all-users", "--since", "2026-01", "--until", "2026-01-15", "--by", "month, app")
    own, other = asked
    assert own["uid"] and own["by"] == ["user"] and own.get("since") is None
    assert other.get("uid") is None
    assert (other["since"], other["until"], other["by"]) == (
        "2026-01",
        "2026-01-15",
        ["month", "app"],
    )


def test_csv_has_all_values_and_no_total(run: Run, asked: list[dict[str, Any]]) -> None:
    rows = list(csv.DictReader(io.StringIO(run("usage", "--csv").out)))
    assert [r["runs"] for r in rows] == ["3", "4"]
    assert rows[0] == {"user": "user-0", **{k: str(v) for k, v in ROW.items()}}


def test_json_is_the_answer_as_it_is(run: Run, asked: list[dict[str, Any]]) -> None:
    said = run("usage", "--json").json()
    assert said["schema"] == "jobscribe.usage/1" and said["total"]["runs"] == 7


@pytest.mark.parametrize("by", ["nobody", "user,user", "user,,x"])
def test_a_wrong_group_is_refused_with_the_right_ones(
    run: Run, asked: list[dict[str, Any]], by: str
) -> None:
    ended = run("usage", "--by", by)
    assert ended.code == 2 and "user, group, queue, app, driver, kind, month, day" in ended.err
    assert asked == []


def test_a_wrong_time_is_refused_before_it_is_sent(run: Run, asked: list[dict[str, Any]]) -> None:
    ended = run("usage", "--since", "january")
    assert ended.code == 2 and "2026-01" in ended.err and asked == []
    both = run("usage", "--csv", "--json")
    assert both.code == 2 and "--csv or --json" in both.err


DISK = {
    "user": "user0001",
    "state": "soft",
    "usedBytes": 5 << 20,
    "files": 7,
    "softBytes": 4 << 20,
    "hardBytes": None,
    "complete": False,
    "measuredAt": 1.0,
    "largest": [{"name": f"heat/sim{n}", "bytes": (9 - n) << 10} for n in range(5)],
}


def test_disk_usage_names_the_quotas_and_the_largest_folders(run: Run, fake: Fake) -> None:
    other = {**DISK, "user": "user0002", "state": "ok", "complete": True, "largest": []}
    answer = {"users": [DISK, other], "total": {"users": 2, "usedBytes": 10 << 20, "files": 14}}
    bodies: list[dict[str, Any]] = []
    fake._disk_usage = lambda body: bodies.append(body) or answer
    ended = run("usage", "--disk", "--all-users")
    assert bodies[0].get("uid") is None and (ended.code, ended.err) == (0, "")
    lines = [cells(line) for line in ended.out.splitlines()]
    assert lines[1] == [
        "user0001",
        "5.0 MiB+",
        "7",
        "4.0 MiB",
        "-",
        "over soft",
        "heat/sim0 9.0 KiB",
    ]
    assert lines[2:4] == [["heat/sim1 8.0 KiB"], ["heat/sim2 7.0 KiB"]]
    assert lines[4] == ["user0002", "5.0 MiB", "7", "4.0 MiB", "-", "ok", "-"]
    assert lines[5] == ["total", "10.0 MiB", "14"]
    rows = list(csv.DictReader(io.StringIO(run("usage", "--disk", "--csv").out)))
    assert rows[0]["usedBytes"] == str(5 << 20) and rows[0]["hardBytes"] == ""
    assert run("usage", "--disk", "--json").json()["users"][0] == DISK
    wrong = run("usage", "--disk", "--since", "2026-01")
    assert wrong.code == 2 and "takes no time" in wrong.err
