"""The commands that inspect, cancel and await jobs."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

Fake = Any
Run = Any


@pytest.fixture
def jids(run: Run, fake: Fake) -> list[str]:
    """Create three jobs: one has failed, one waits, one runs."""
    for _ in range(3):
        run("job", "submit", "-q", "--", "x")
    failed, _, running = jids = list(fake.jobs)
    fake.end(failed, code=3)
    fake.change(running, state="running")
    return jids


def test_the_list_has_newest_first_and_nothing_else_on_standard_output(
    run: Run, jids: list[str]
) -> None:
    ended = run("job", "list")
    lines = ended.out.splitlines()
    assert [line.split()[0] for line in lines] == ["JOB", *jids[::-1]]
    assert [line.split()[1] for line in lines[1:]] == ["running", "pending", "error"]
    assert ended.err == ""


def test_a_list_that_goes_on_says_how(run: Run, jids: list[str]) -> None:
    ended = run("job", "list", "--limit", "2")
    assert "--before 2" in ended.err
    assert [
        line.split()[0]
        for line in run("job", "list", "--limit", "2", "--before", "2").out.splitlines()[1:]
    ] == [jids[0]]


@pytest.mark.parametrize(
    "args", [["--json", "job", "list"], ["job", "--json", "list"], ["job", "list", "--json"]]
)
def test_json_is_taken_anywhere(run: Run, jids: list[str], args: list[str]) -> None:
    value = run(*args).json()
    assert value["schema"] == "jobscribe.job.list/1"
    assert [i["jid"] for i in value["items"]] == jids[::-1]
    assert value["next"] is None


def test_the_filters_are_asked_for(run: Run, jids: list[str], fake: Fake) -> None:
    assert [
        i["jid"] for i in run("job", "list", "--json", "--status", "error").json()["items"]
    ] == [jids[0]]
    run("job", "list", "--active", "--all-users")
    assert (fake.requests[-1][1]["active"], fake.requests[-1][1]["uid"]) == (True, None)


def test_a_status_tells_everything_and_succeeds(run: Run, jids: list[str]) -> None:
    ended = run("job", "status", jids[0])
    assert ended.code == 0
    assert ended.out.startswith(jids[0] + "\n")
    assert "exit code 3" in ended.out
    assert [i["computeJid"] for i in run("job", "status", "--json", *jids).json()["items"]] == jids


def test_the_directory_is_named_with_its_cluster_and_only_where_there_is_one(
    run: Run, jids: list[str], fake: Fake
) -> None:
    answer = fake._status
    fake._status = lambda jid: {
        **answer(jid),
        **{jids[0]: {"runDir": "/scratch/x", "runDirOn": "hpc"}, jids[1]: {"runDir": None}}.get(
            jid, {}
        ),
    }
    assert "  directory /scratch/x on hpc\n" in run("job", "status", jids[0]).out
    assert "directory" not in run("job", "status", jids[1]).out
    assert f"  directory /run/{jids[2]}\n" in run("job", "status", jids[2]).out


def test_what_nobody_can_know_is_said(run: Run, jids: list[str], fake: Fake) -> None:
    fake.change(jids[2], known=False)
    assert "current state unknown" in run("job", "status", jids[2]).out


def test_a_job_is_named_by_a_beginning_or_last(run: Run, jids: list[str]) -> None:
    def named(name: str) -> str:
        return str(run("job", "status", "--json", name).json()["items"][0]["computeJid"])

    for jid in jids:
        assert named(jid[:14]) == jid
        assert named(jid[9:14]) == jid
    assert named("last") == jids[2]


@pytest.mark.parametrize("verb", [("job", "submit", "-q"), ("run",)])
def test_last_after_a_refusal_says_that_there_is_no_job_of_it(
    run: Run, jids: list[str], fake: Fake, verb: tuple[str, ...]
) -> None:
    fake.change(jids[2], queuedAt=time.time() - 5)
    assert run("job", "status", "last").err == ""
    assert run(*verb, "--", "refuse-me").code == 125
    ended = run("job", "why", "last")
    assert ended.code == 0 and jids[2] in ended.out.splitlines()[0]
    assert (
        ") was refused and created no job: " in ended.err
        and f"'last' is the previous job: {jids[2]}" in ended.err
    )
    assert "refused" not in run("--uid", "Somebody", "job", "status", "last").err, (
        "somebody else was not refused"
    )
    run("job", "submit", "-q", "--", "x")
    fake.change(sorted(fake.jobs)[-1], queuedAt=time.time() + 5)
    assert run("job", "status", "last").err == "", "the last one was taken"


def test_where_there_is_no_job_a_refusal_is_told_in_its_place(run: Run) -> None:
    run("job", "submit", "-q", "--", "refuse-me")
    assert "was refused and created no job" in run("job", "status", "last").err


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("EPRSqtUW", "several"),
        ("zzzzzz", "no job"),
        ("../../etc", "not a job name"),
        ("ünïcode", "not a job name"),
        ("EPRSqtUW-zzzzzzzz-command", "there is no job"),
        ("zz", "no job"),
    ],
)
def test_a_name_that_is_none_is_an_error_with_a_sentence(
    run: Run, jids: list[str], name: str, code: str
) -> None:
    ended = run("job", "status", name)
    assert (ended.code, ended.out) == (125, "")
    assert code in ended.err.replace("3 jobs begin", "several")


def test_what_is_near_a_name_is_told(run: Run, jids: list[str]) -> None:
    wrong = jids[0][9:15] + "??"
    assert f"near it: job {jids[0]}" in run("job", "why", jids[0][9:15] + "zz").err
    assert f"near it: job {jids[0]}" in run("trace", jids[0][9:15] + "zz").err
    assert "not a job name" in run("job", "why", wrong).err
    assert "not an id" in run("trace", wrong).err


def test_a_user_that_is_none_is_said_in_words(run: Run) -> None:
    ended = run("--uid", "alice", "job", "list")
    assert (
        ended.code == 2
        and "--uid must be eight letters or digits" in ended.err
        and "regex" not in ended.err
    )


def test_a_trace_is_found_by_the_beginning_of_a_simulation_id(run: Run, jids: list[str]) -> None:
    assert run("trace", jids[0][9:]).out == run("trace", jids[0]).out


def test_last_of_nothing_is_an_error(run: Run) -> None:
    assert "you have no jobs yet" in run("job", "status", "last").err


def test_a_job_of_somebody_else_is_asked_for_as_its_owner(run: Run, fake: Fake) -> None:
    run("--uid", "Ab3dEf7h", "job", "submit", "-q", "--", "x")
    jid = next(iter(fake.jobs))
    assert jid.startswith("Ab3dEf7h-")
    assert run("job", "status", jid).code == 0
    assert run("job", "list").out.splitlines()[1:] == []


def test_errors_are_json_too_on_standard_error(run: Run, jids: list[str]) -> None:
    ended = run("--json", "job", "status", "EPRSqtUW-zzzzzzzz-command")
    body = json.loads(ended.err)
    assert (ended.code, ended.out, body["code"], body["retry"]) == (125, "", "notFound", False)


# ---- logs


def test_logs_give_the_newest_bytes_and_say_that_there_is_more(
    run: Run, jids: list[str], fake: Fake
) -> None:
    fake.write(jids[0], "stdout", b"old" + b"x" * 4096)
    ended = run("job", "logs", jids[0])
    assert ended.out == "x" * 4096
    assert "3 earlier bytes omitted" in ended.err
    assert run("job", "logs", "--all", jids[0]).out == "old" + "x" * 4096
    assert run("job", "logs", "--tail", "7", jids[0]).out == "x" * 7


def test_logs_keep_the_two_streams_apart(run: Run, jids: list[str], fake: Fake) -> None:
    fake.write(jids[0], "stdout", b"out")
    fake.write(jids[0], "stderr", b"err")
    both = run("job", "logs", jids[0])
    assert (both.out, both.err) == ("out", "err")
    assert run("job", "logs", "--stdout", jids[0]).err == ""
    only = run("job", "logs", "--stderr", jids[0])
    assert (only.out, only.err) == ("err", "")


def test_followed_logs_go_on_to_the_end(run: Run, jids: list[str], fake: Fake) -> None:
    fake.write(jids[2], "stdout", b"first ")
    threading.Timer(
        0.2, lambda: (fake.write(jids[2], "stdout", b"last"), fake.end(jids[2]))
    ).start()
    assert run("job", "logs", "-f", jids[2]).out == "first last"


def test_logs_in_json_are_lossless(run: Run, jids: list[str], fake: Fake) -> None:
    fake.write(jids[0], "stdout", b"plain")
    fake.write(jids[0], "stderr", b"\xff")
    a, b = run("job", "logs", "--json", jids[0]).lines()
    assert (a["stream"], a["text"], b["stream"], b["base64"]) == (
        "stdout",
        "plain",
        "stderr",
        "/w==",
    )


def test_dropped_output_is_said(run: Run, jids: list[str], fake: Fake) -> None:
    fake.write(jids[0], "stdout", b"tail")
    fake.change(jids[0], dropped=12)
    assert (
        "[jobscribe: 12 bytes of stdout dropped]"
        in run("job", "logs", "--all", "--stdout", jids[0]).err
    )


# ---- cancel, wait


def test_cancel_cancels_with_its_reason(run: Run, jids: list[str], fake: Fake) -> None:
    ended = run("job", "cancel", jids[1], jids[2], "--reason", "enough")
    assert (ended.code, ended.out) == (0, "")
    assert [fake.jobs[j]["state"] for j in jids] == ["error", "canceled", "canceled"]
    assert {b["reason"] for p, b in fake.requests if p == "run-cancel"} == {"enough"}
    assert ended.err.count("canceled") == 2


def test_a_purge_without_a_terminal_needs_yes(run: Run, jids: list[str], fake: Fake) -> None:
    ended = run("job", "purge", jids[0])
    assert ended.code == 2 and jids[0] in ended.err and "--yes" in ended.err
    assert not any(p == "run-purge" for p, _ in fake.requests)
    ended = run("job", "purge", jids[0], jids[0], "--yes")
    assert (ended.code, ended.err) == (0, f"{jids[0]}: its files are removed\n")
    assert [b["computeJid"] for p, b in fake.requests if p == "run-purge"] == [jids[0]]
    (item,) = run("--json", "job", "purge", jids[0], "--yes").json()["items"]
    assert item["state"] == "job_run_purged"


def test_wait_exits_with_the_jobs_code(run: Run, jids: list[str], fake: Fake) -> None:
    assert run("job", "wait", jids[0]).code == 3
    threading.Timer(0.1, lambda: fake.end(jids[1], code=None, signal=11)).start()
    threading.Timer(0.2, lambda: fake.end(jids[2], code=0)).start()
    assert run("job", "wait", jids[2], jids[1], jids[0]).code == 139


def test_wait_gives_up_with_124(run: Run, jids: list[str]) -> None:
    begun = time.monotonic()
    ended = run("job", "wait", jids[0], jids[2], "--timeout", "0.2")
    assert ended.code == 124
    assert jids[2] in ended.err
    assert time.monotonic() - begun >= 0.2
    items = run("--json", "job", "wait", jids[2], "--timeout", "0").json()["items"]
    assert items[0]["exitCode"] is None


# ---- why, trace


def test_why_tells_cause_evidence_and_what_next(run: Run, jids: list[str]) -> None:
    ended = run("job", "why", jids[0])
    assert ended.out.splitlines()[0] == f"job {jids[0]} error (exit): failed with exit code 3"
    for text in (
        "evidence",
        "not      a time limit",
        "last     one",
        "         two",
        "/evidence/stdout.log",
        "jobscribe job logs --stderr",
    ):
        assert text in ended.out
    assert run("job", "why", "--json", jids[0]).json()["cause"] == "exit"


def test_a_job_cannot_repaint_the_terminal(run: Run, jids: list[str]) -> None:
    assert "\x1b" not in run("job", "why", jids[0]).out


def test_trace_tells_the_way_of_any_id(run: Run, jids: list[str]) -> None:
    ended = run("trace", jids[0][:14])
    assert ended.out == f"job/{jids[0]}\n  requested\n"
    assert run("trace", "last").out.split()[0] == "job/" + jids[2]
    assert run("trace", "--json", jids[0]).json()["items"][0]["text"] == "requested"
    assert run("trace", "nothing-known").code == 125


# ---- choice of the supervisor


def test_an_address_needs_a_user_and_a_secret_in_a_file(
    run: Run, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOBSCRIBE_ROOT")
    secret = tmp_path / "secret"
    secret.write_text(fake.token + "\n")
    assert run("--url", fake.url, "job", "list").code == 2
    assert run("--url", fake.url, "--uid", "EPRSqtUW", "job", "list").code == 2
    assert (
        run("--url", fake.url, "--uid", "EPRSqtUW", "job", "list", "--token-file", str(secret)).code
        == 0
    )
    monkeypatch.setenv("JOBSCRIBE_SECRET", fake.token)
    monkeypatch.setenv("JOBSCRIBE_URL", fake.url)
    assert run("--uid", "EPRSqtUW", "job", "list").code == 0
    monkeypatch.setenv("JOBSCRIBE_SECRET", "wrong" * 6)
    assert "Bearer" in run("--uid", "EPRSqtUW", "job", "list").err


def test_the_innermost_option_wins(run: Run, fake: Fake, tmp_path: Path) -> None:
    ended = run("--root", str(tmp_path / "other"), "job", "list", "--root", str(fake.root))
    assert ended.code == 0


def test_no_supervisor_is_told_with_what_to_do(run: Run, tmp_path: Path) -> None:
    ended = run("--root", str(tmp_path / "none"), "--patience", "0", "job", "list")
    assert (ended.code, ended.out) == (125, "")
    assert f"no supervisor has been started with the root {tmp_path / 'none'}" in ended.err
    assert "jobscribe up" in ended.err
    assert not (tmp_path / "none").exists()


@pytest.mark.process
def test_a_narrow_terminal_still_shows_whole_ids(started: Any, jids: list[str]) -> None:
    import os
    import pty

    mine, theirs = pty.openpty()
    process = started("job", "list", stdout=theirs)
    os.close(theirs)
    out = b""
    while True:
        try:
            chunk = os.read(mine, 65536)
        except OSError:  # EIO: the other end of the terminal is closed
            break
        out += chunk
    os.close(mine)
    assert process.wait(60) == 0
    lines = out.decode().splitlines()
    assert [line.split()[0] for line in lines[1:]] == jids[::-1]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, "running"),
        ({"state": "running"}, "running"),
        ({"state": "running", "known": False}, "running"),
        ({"state": "completed"}, "success"),
        ({"state": "error"}, "failed"),
        ({"state": "canceled"}, "failed"),
        ({"state": "missing"}, "failed"),
        ({"state": "job_run_purged"}, "failed"),
        ({"state": "job_run_purged", "exit": {"code": 0, "signal": None}}, "success"),
    ],
)
def test_porcelain_is_one_word_for_scripts(
    run: Run, jids: list[str], fake: Fake, change: dict[str, Any], word: str
) -> None:
    fake.change(jids[1], **change)
    assert (
        run("job", "status", "--porcelain", jids[1]).out,
        run("job", "status", "--porcelain", jids[0], jids[1]).out,
    ) == (
        f"{word}\n",
        f"failed\n{word}\n",
    )


def test_porcelain_and_json_exclude_each_other(run: Run, jids: list[str]) -> None:
    assert run("job", "status", "--porcelain", "--json", jids[0]).code == 2


def test_the_list_has_commands_and_calls_the_state_as_the_status_does(run: Run, fake: Fake) -> None:
    run("job", "submit", "-q", "--name", "mine", "--", "sh", "-c", "y" * 100)
    (row,) = run("job", "list", "--json").json()["items"]
    (status,) = run("job", "status", "--json", "last").json()["items"]
    assert row["state"] == row["status"] == status["state"] == "pending"
    assert (row["command"], row["name"]) == ("sh -c " + "y" * 100, "mine")
    heads, line = run("job", "list").out.splitlines()
    assert heads.split() == ["JOB", "STATE", "QUEUED", "DURATION", "REASON", "KIND", "COMMAND"]
    assert line.endswith("  mine: sh -c " + "y" * 45 + "...")
    assert run("job", "list", "--json", "--state", "error").json()["items"] == []


def test_a_supervisor_that_says_status_only_is_understood(
    run: Run, jids: list[str], fake: Fake
) -> None:
    answer = fake._job_list
    fake._job_list = lambda body: (
        page := answer(body),
        [row.pop("state") for row in page["jobs"]],
    )[0]
    assert [i["state"] for i in run("job", "list", "--json").json()["items"]] == [
        "running",
        "pending",
        "error",
    ]
