"""Job arrays on the command line: one name for all runs, one line for runs with the same outcome,
and ids for pipes.
"""

import threading
from typing import Any

import pytest

Fake = Any
Run = Any


@pytest.fixture
def sid(run: Run, fake: Fake) -> str:
    """Create an array of six runs and return its simulation id: 0 completed, 1 and 2 exited with
    code 3, 3 was killed by a signal, 4 was canceled, 5 waits.
    """
    group = run("job", "submit", "-q", "--array", "0-5", "--", "work").out.strip()
    for n, code in ((0, 0), (1, 3), (2, 3)):
        fake.end(f"{group}-command_{n}", code=code)
    fake.end(f"{group}-command_3", code=None, signal=9)
    fake.end(f"{group}-command_4", code=None, state="canceled")
    fake.change(f"{group}-command_4", reason="cancel", exit=None)
    return str(group.split("-")[1])


def asked(fake: Fake, path: str) -> list[dict[str, Any]]:
    return [body for p, body in fake.requests if p == path]


# ---- submit


def test_one_request_submits_all_and_its_name_is_data(run: Run, fake: Fake) -> None:
    ended = run(
        "job", "submit", "--array", "0-9%4", "--time-limit", "9", "--", "work", "$ARRAY_INDEX"
    )
    group = ended.out.strip()
    assert (ended.code, len(fake.jobs), len(asked(fake, "run-array"))) == (0, 10, 1)
    assert set(fake.jobs) == {f"{group}-command_{n}" for n in range(10)}
    assert (
        "10 of 10 submitted (10 pending)" in ended.err
        and f"jobscribe job wait --group {group}" in ended.err
    )
    (body,) = asked(fake, "run-array")
    assert (body["indices"], body["run"]["timeLimitSecs"], body["run"]["command"]) == (
        "0-9%4",
        9.0,
        ["work", "$ARRAY_INDEX"],
    )


def test_quiet_prints_the_group_alone(run: Run) -> None:
    ended = run("job", "submit", "-q", "--array", "0-2", "--", "work")
    assert (ended.code, ended.err) == (0, "")
    assert len(ended.out.split()) == 1


def test_the_same_group_is_named_to_run_again_what_failed(run: Run, fake: Fake, sid: str) -> None:
    run("job", "submit", "-q", "--array", "0-5", "--group", sid, "--", "work")
    assert [b["run"]["simulationId"] for b in asked(fake, "run-array")] == [sid, sid]


def test_refused_indices_are_named_and_the_others_submitted(run: Run, fake: Fake) -> None:
    fake.refused_indices = {1, 2, 3}
    ended = run("job", "submit", "--array", "0-5", "--", "work")
    assert ended.code == 125
    assert (
        "index 1: not 1" in ended.err
        and "index 2: not 2" in ended.err
        and "and 1 more" in ended.err
    )
    assert "3 of 6 submitted" in ended.err and len(fake.jobs) == 3
    assert run("job", "submit", "--json", "--array", "1", "--", "work").json()["refusedCount"] == 1


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--array", "9-0", "--", "x"], 125, "is reversed"),
        (["--array", "0-9"], 2, "COMMAND"),
        (["--array", "0-9", "--from", "/dev/null"], 2, "--array"),
        (["--group", "i9btqxdR", "--", "x"], 2, "--array"),
        (["--array", "0", "--group", "no such name", "--", "x"], 125, "8 letters or digits"),
    ],
)
def test_what_is_no_array_is_refused_and_submits_nothing(
    run: Run, fake: Fake, args: list[str], code: int, said: str
) -> None:
    ended = run("job", "submit", *args)
    assert (ended.code, said in ended.err, "Traceback" in ended.err) == (code, True, False)
    assert asked(fake, "run-array") == [] and fake.jobs == {}


# ---- group


def test_a_group_is_counted_and_those_that_failed_alike_are_one_line(
    run: Run, fake: Fake, sid: str
) -> None:
    ended = run("job", "group", sid)
    lines = [line.split() for line in ended.out.splitlines()]
    assert lines[0] == ["GROUP", "TOTAL", "PENDING", "RUNNING", "COMPLETED", "CANCELED", "ERROR"]
    assert lines[1][1:] == ["6", "1", "0", "1", "1", "3"] and lines[1][0].endswith(sid)
    assert lines[3:] == [
        ["STATUS", "EXIT", "RUNS", "INDICES"],
        ["error", "code", "3", "2", "1-2"],
        ["error", "signal", "9", "1", "3"],
        ["canceled", "cancel", "1", "4"],
    ]
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize("form", ["{sid}", "{group}", "{group}-command_3", "last"])
def test_a_group_has_several_names(run: Run, fake: Fake, sid: str, form: str) -> None:
    group = next(iter(fake.jobs)).rsplit("-", 1)[0]
    ended = run("job", "group", "--json", form.format(sid=sid, group=group))
    assert ended.json()["items"][0]["group"] == group


def test_ids_of_failed_runs_are_printed_for_pipes_over_all_pages(
    run: Run, fake: Fake, sid: str
) -> None:
    group = next(iter(fake.jobs)).rsplit("-", 1)[0]
    ended = run("job", "group", sid, "--failed", "-q")
    assert ended.out.split() == [f"{group}-command_{n}" for n in (1, 2, 3, 4)]
    assert len(run("job", "group", sid, "-q").out.split()) == 6
    assert run("job", "group", sid, "--status", "pending", "-q").out.split() == [
        f"{group}-command_5"
    ]


def test_listed_runs_have_a_line_each(run: Run, sid: str) -> None:
    lines = [line.split() for line in run("job", "group", "--failed", sid).out.splitlines()[3:]]
    assert lines[0] == ["JOB", "INDEX", "STATUS", "EXIT", "ERROR"]
    assert [line[1:5] for line in lines[1:3]] == [
        ["1", "error", "code", "3"],
        ["2", "error", "code", "3"],
    ]


def test_json_has_the_counts_and_the_failed_runs(run: Run, sid: str) -> None:
    (item,) = run("job", "group", "--json", sid).json()["items"]
    assert (item["total"], item["counts"]["error"], item["over"]) == (6, 3, False)
    assert [r["index"] for r in item["runs"]] == [1, 2, 3, 4]


def test_a_group_that_is_not_there_is_said_so(run: Run, fake: Fake) -> None:
    for args in (["group"], ["wait", "--group"], ["cancel", "--group"]):
        ended = run("job", *args, "nobodyhs")
        assert (ended.code, "no runs of simulation nobodyhs" in ended.err) == (125, True)
    assert run("job", "group", "--failed", "--status", "error", "x").code == 2


# ---- wait


def test_waiting_ends_with_the_code_of_the_first_that_failed(
    run: Run, fake: Fake, sid: str
) -> None:
    group = next(iter(fake.jobs)).rsplit("-", 1)[0]
    threading.Timer(0.3, lambda: fake.end(f"{group}-command_5")).start()
    ended = run("job", "wait", "--group", sid)
    assert ended.code == 3
    assert "6 of 6 over, 4 of them not completed" in ended.err
    assert (
        all(b["limit"] == 0 for b in asked(fake, "job-group")[:-1])
        and asked(fake, "job-group")[0]["waitSecs"] > 0
    )


def test_waiting_for_what_completed_is_0(run: Run, fake: Fake) -> None:
    group = run("job", "submit", "-q", "--array", "0-1", "--", "work").out.strip()
    for jid in list(fake.jobs):
        fake.end(jid)
    ended = run("job", "wait", "--group", group)
    assert (ended.code, ended.err) == (0, "")


def test_waiting_no_longer_than_it_was_told(run: Run, sid: str) -> None:
    ended = run("job", "wait", "--group", "--timeout", "0.2", sid, "--json")
    assert ended.code == 124
    assert [(i["over"], i["exitCode"]) for i in ended.json()["items"]] == [(False, None)]


# ---- cancel


def test_all_or_some_are_canceled_by_one_request(run: Run, fake: Fake) -> None:
    group = run("job", "submit", "-q", "--array", "0-9", "--", "work").out.strip()
    ended = run("job", "cancel", "--group", group, "--indices", "3-5,20", "--reason", "enough")
    assert (ended.code, f"{group}: 3 canceled, 1 do not exist" in ended.err) == (0, True)
    fake.change(f"{group}-command_0", state="running")
    assert "6 canceled" in run("job", "cancel", "--group", group, "--status", "pending").err
    assert run("job", "cancel", "--group", "--json", group).json()["items"][0]["canceled"] == 1
    assert [(b["indices"], b["status"], b["reason"]) for b in asked(fake, "group-cancel")] == [
        ("3-5,20", None, "enough"),
        (None, "pending", ""),
        (None, None, ""),
    ]
    assert len({b["reqId"] for b in asked(fake, "group-cancel")}) == 3


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--indices", "3", "x"], 2),
        (["--status", "pending", "x"], 2),
        (["--group", "i9btqxdR", "--indices", "3%2"], 125),
        (["--group", "i9btqxdR", "--indices", "z"], 125),
    ],
)
def test_a_cancel_that_says_too_much_cancels_nothing(
    run: Run, fake: Fake, args: list[str], code: int
) -> None:
    assert run("job", "cancel", *args).code == code
    assert fake.requests == []


# ---- slow answers


def test_how_far_a_long_submission_has_come_is_said(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobscribe.cli.session import request_progress
    from jobscribe.cli.terminal import screen

    monkeypatch.setattr(screen, "QUIET_SECS", 0.01)
    monkeypatch.setattr(request_progress, "QUIET_SECS", 0.02)
    monkeypatch.setattr(request_progress, "INTERVAL_SECS", 0.02)
    fake.held = lambda path: path == "run-array" and len(asked(fake, "job-group")) < 2
    ended = run("job", "submit", "--array", "0-9", "--", "work")
    assert ended.code == 0
    assert "10 of 10 submitted" in ended.err.splitlines()[0]
