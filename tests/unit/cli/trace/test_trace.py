"""Output and exports of `trace`: the order of events and lines, wait reasons, phase bars, and
Chrome's trace format.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from jobscribe.cli.trace.command import _lines, ordered
from jobscribe.cli.trace.perfetto import chrome_trace
from jobscribe.cli.trace.phase_bars import MAX_BARS, WIDTH, picture

T = 1_700_000_000.0


def item(
    position: int, secs: float, cause: int | None = None, component: str = "supervisor"
) -> dict[str, Any]:
    return {
        "at": T + secs,
        "position": position,
        "source": "job/j",
        "component": component,
        "text": f"{'':36}event {position}",
        "cause": None if cause is None else {"position": cause},
        "event": {},
    }


def line(secs: float, text: str, source: str = "log/supervisor.log", **more: Any) -> dict[str, Any]:
    return {
        "at": T + secs,
        "source": source,
        "text": text,
        "component": "supervisor",
        "exact": False,
        "orderAt": T + secs,
        **more,
    }


def phase(
    name: str,
    since: float,
    until: float | None,
    track: str = "run 1",
    component: str = "supervisor",
) -> dict[str, Any]:
    return {
        "name": name,
        "component": component,
        "track": track,
        "since": T + since,
        "until": None if until is None else T + until,
        "position": 1,
    }


def answer(**more: Any) -> dict[str, Any]:
    return {
        "id": "j",
        "items": [],
        "lines": [],
        "phases": [],
        "waits": [],
        "matches": [],
        "others": [],
        **more,
    }


# ---- order


def texts(items: list[dict[str, Any]], lines: list[dict[str, Any]]) -> list[str]:
    return [str(i["text"]).strip() for i in ordered(items, lines)]


def test_within_a_second_of_text_lines_the_front_end_comes_first_and_then_the_events() -> None:
    lines = [
        line(0, "agent", "agent/k/agent.log"),
        line(0, "supervisor"),
        line(0, "front", "log/server.log"),
        line(1, "later"),
    ]
    assert texts([item(1, 0.9), item(2, 1.1)], lines) == [
        "front",
        "event 1",
        "supervisor",
        "agent",
        "event 2",
        "later",
    ]


def test_lines_that_say_more_than_the_second_stand_where_they_were_written() -> None:
    lines = [
        line(0.5, "agent", "agent/k/agent.log", exact=True),
        line(0.95, "front", "log/server.log", exact=True),
    ]
    assert texts([item(1, 0.2), item(2, 0.9)], lines) == ["event 1", "agent", "event 2", "front"]


def test_a_line_of_a_clock_that_is_ahead_stands_where_it_must_have_been() -> None:
    assert texts(
        [item(1, 5), item(2, 8)], [line(9, "started", "agent/k/agent.log", orderAt=T + 6)]
    ) == ["event 1", "started", "event 2"]


def test_a_clock_that_was_set_back_does_not_change_the_order_of_a_log() -> None:
    assert texts([], [line(9, "a"), line(3, "b"), line(10, "c")]) == ["a", "b", "c"]


# ---- text


def test_what_was_waited_for_stands_between_the_events() -> None:
    waits = [{"before": 2, "text": "4.2 s queued: op_slot of user"}]
    assert list(_lines("j", answer(items=[item(1, 0), item(2, 4.2)], waits=waits))) == [
        "job/j",
        f"  {'':36}event 1",
        "    ... 4.2 s queued: op_slot of user",
        f"  {'':36}event 2",
    ]


def test_the_cause_of_an_effect_follows_its_log_line() -> None:
    lines = [
        line(0.1, "sent", cause={"op": "o", "name": "TaskPlaced", "version": 2, "position": 1}),
        line(0.2, "started", cause={"name": "AgentStartRequested", "version": 4}),
        line(0.3, "found", cause={"name": "AgentDisconnected"}),
        line(0.4, "about an op", cause={"op": "o"}),
        line(0.5, "about nothing", cause=None),
    ]
    assert list(_lines("j", answer(items=[item(1, 0)], lines=lines))) == [
        "job/j",
        f"  {'':36}event 1",
        "log/supervisor.log",
        "  sent",
        "    cause: TaskPlaced@2, event 1",
        "  started",
        "    cause: AgentStartRequested@4",
        "  found",
        "    cause: AgentDisconnected",
        "  about an op",
        "  about nothing",
    ]


def test_several_matches_are_told_with_what_each_is() -> None:
    matches = [
        {"what": "slurm", "name": "77", "jid": "u-s-b", "status": "running"},
        {"what": "slurm", "name": "77", "jid": "u-s-a", "status": "error"},
    ]
    told = list(
        _lines(
            "77", answer(matches=matches, items=[item(2, 0)], others=[answer(items=[item(1, 0)])])
        )
    )
    assert told[:3] == [
        "2 ids match 77, newest first:",
        "  Slurm job 77 of u-s-b, running",
        "  Slurm job 77 of u-s-a, error",
    ]
    assert [t.strip() for t in told[3:] if "event" in t] == ["event 2", "event 1"]
    told = list(_lines("77", answer(matches=matches * 3, moreMatches=True)))
    assert told[0].startswith("6 and more ids match 77") and "give more" in told[-1]
    assert list(_lines("77", answer(matches=matches[:1]))) == ["  Slurm job 77 of u-s-b, running"]
    assert (
        list(_lines("u-s-a", answer(matches=[{"what": "job", "name": "u-s-a", "jid": "u-s-a"}])))
        == []
    )


def test_phases_are_bars_on_one_scale() -> None:
    drawn = picture(
        [
            phase("queued", 0, 5),
            phase("execution", 5, 10, "run 1 attempt 1 main/0"),
            phase("end", 10, 10),
            phase("in Slurm's queue", 10, None),
        ]
    )
    assert drawn[0] == "phases, 10.000 s in total"
    bars = [d.split("|")[1] for d in drawn[1:]]
    half = WIDTH // 2
    assert bars[0] == "#" * half + " " * half and bars[1] == " " * half + "#" * half
    assert all(len(b) == WIDTH and "#" in b for b in bars), (
        "nothing is too short to be seen, and nothing is drawn beside the scale"
    )
    assert [d.split("|")[2].strip() for d in drawn[1:]] == [
        "5.000 s",
        "5.000 s",
        "0.000 s",
        "unfinished",
    ]
    assert drawn[2].lstrip().startswith("execution main/0") and picture([]) == []


def test_of_very_many_phases_the_longest_are_drawn() -> None:
    drawn = picture([phase(f"p{n}", n, n + 1 + n % 7) for n in range(200)])
    assert (
        len(drawn) == MAX_BARS + 1
        and drawn[0].endswith(f"(the {MAX_BARS} longest of 200)")
        and all("7.000 s" in d for d in drawn[1:])
    )


# ---- Chrome's trace format


def check_format(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Check the rules by which Perfetto and chrome://tracing read the file; return the events."""
    events = json.loads(json.dumps(made))["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    slices: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for e in events:
        assert e["ph"] in ("M", "X", "i", "s", "f") and isinstance(e["name"], str) and e["name"]
        assert (
            type(e["pid"]) is int
            and type(e["tid"]) is int
            and type(e["ts"]) is int
            and e["ts"] >= 0
        )
        if e["ph"] == "M":
            assert e["name"] in ("process_name", "process_sort_index", "thread_name") and set(
                e["args"]
            ) <= {"name", "sort_index"}
            continue
        assert e["pid"] in processes and (e["pid"], e["tid"]) in named
        if e["ph"] == "X":
            assert type(e["dur"]) is int and e["dur"] > 0
            slices.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
        if e["ph"] == "i":
            assert e["s"] == "t"
    for those in slices.values():
        those.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(those)), (
            "slices of one track neither overlap nor cross"
        )
    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert begins.keys() == ends.keys() and len(begins) == sum(e["ph"] == "s" for e in events)
    for id_, begin in begins.items():
        end = ends[id_]
        assert (
            end["bp"] == "e"
            and begin["ts"] <= end["ts"]
            and (begin["name"], begin["cat"]) == (end["name"], end["cat"])
        )
        for e in (begin, end):
            assert any(since <= e["ts"] <= until for since, until in slices[e["pid"], e["tid"]]), (
                "an arrow begins and ends at a slice"
            )
    return events


def test_a_trace_is_slices_points_and_arrows() -> None:
    made = chrome_trace(
        answer(
            items=[
                item(1, 0),
                item(2, 1, cause=1),
                item(3, 2, cause=2, component="command"),
                item(4, 2.5),
            ],
            lines=[line(0.5, "a line")],
            phases=[
                phase("queued", 0, 1),
                phase("execution", 1, None, "run 1 attempt 1 main/0", "command"),
            ],
        )
    )
    events = check_format(made)
    assert made["otherData"] == {"id": "j", "origin": T}
    slices = {e["name"]: (e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert slices["queued"] == (0, 1_000_000) and slices["execution"] == (1_000_000, 1_500_000)
    assert [e["name"] for e in events if e["ph"] == "i"] == ["event 4", "a line"] and sum(
        e["ph"] == "s" for e in events
    ) == 2
    assert {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"} == {
        "supervisor": 2,
        "command": 4,
    }


def test_events_of_one_moment_and_of_a_clock_that_was_set_back_keep_the_rules() -> None:
    check_format(
        chrome_trace(
            answer(
                items=[
                    item(1, 5),
                    item(2, 5, cause=1),
                    item(3, 1, cause=2),
                    item(4, 5, cause=99),
                    item(5, 5, cause=4),
                ],
                phases=[phase("a", 0, 3), phase("b", 2, 1), phase("c", 0, 0), phase("d", 9, None)],
                others=[answer(items=[item(6, 5), item(7, 5, cause=6)], phases=[phase("a", 0, 3)])],
            )
        )
    )
    check_format(chrome_trace(answer()))


def test_it_is_written_into_the_file_that_was_named(run: Any, fake: Any, tmp_path: Path) -> None:
    run("job", "submit", "-q", "--", "x")
    (jid,) = fake.jobs
    file = tmp_path / "x.json"
    ended = run("trace", "--perfetto", str(file), jid)
    assert ended.code == 0 and "ui.perfetto.dev" in ended.err and ended.out.startswith("job/")
    check_format(json.loads(file.read_text()))
    refused = run("trace", "--perfetto", str(tmp_path / "no" / "x.json"), jid)
    assert refused.code != 0 and "cannot be written" in refused.err


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_beginning_of_several_jobs_is_refused_where_one_is_wanted(name: str) -> None:
    from jobscribe.cli.session.job_names import _jid
    from jobscribe.protocol.errors import Refusal

    matches = [{"what": "job", "name": f"u-s-{n}", "jid": f"u-s-{n}"} for n in "xy"]
    with pytest.raises(Refusal, match=f"several jobs begin with {name}: u-s-x, u-s-y"):
        _jid(name, {"matches": matches, "job": {"jid": "u-s-x"}})
    assert (
        _jid(name, {"matches": matches[:1], "job": {"jid": "u-s-x"}}) == "u-s-x"
        and _jid(name, {"job": None}) is None
    )
