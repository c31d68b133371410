"""Commands for runs with roles: tasks, attempts, logs of one task, tasks held for debugging, and a
shell in a task.
"""

import os
import shlex
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

Fake = Any
Run = Any

ENDED = {"code": 0, "signal": None, "source": "keeper", "startedAt": 10.0, "endedAt": 12.5}
FAILED = {**ENDED, "code": 3}
STOPPED = {**ENDED, "code": None, "signal": 15, "stopReason": "decided"}


@pytest.fixture
def jid(run: Run, fake: Fake) -> str:
    """Create a run of two servers and two workers; one worker has failed and is held for debugging."""
    run("job", "submit", "-q", "--", "x")
    jid = next(iter(fake.jobs))
    fake.gang(
        jid,
        [
            {
                "role": "ps",
                "index": 0,
                "state": "running",
                "pid": 41,
                "ports": {"http": [30000], "ssh": [30001]},
                "startedAt": 10.0,
            },
            {"role": "ps", "index": 1, "state": "stopped", "exit": STOPPED},
            {"role": "worker", "index": 0, "state": "succeeded", "exit": ENDED, "stdout": b"zero"},
            {
                "role": "worker",
                "index": 1,
                "state": "held",
                "exit": FAILED,
                "heldUntil": 3600.0,
                "stdout": b"one",
                "gpus": ["0", "1"],
            },
        ],
        policy={"count": 2, "platform": 3, "conflictSecs": 600.0},
    )
    fake.change(
        jid,
        state="running",
        queue="debug_hold",
        message="worker/1 failed (exit code 3) and can be inspected",
    )
    return str(jid)


def ended(fake: Fake, jid: str, **fields: Any) -> None:
    """End the latest attempt."""
    fake.jobs[jid]["attempts"][-1].update(endedAt=20.0, reason="exit", **fields)


# ---- tasks


def test_tasks_are_a_table_with_state_exit_place_time_and_pid(run: Run, jid: str) -> None:
    lines = run("job", "tasks", jid).out.splitlines()
    assert lines[0] == f"{jid} running, attempt 1 of at most 6"
    rows = [" ".join(line.split()) for line in lines[2:]]
    assert rows[0].startswith("ps/0 running - 127.0.0.1 http:30000 ssh:30001 ") and rows[
        0
    ].endswith(" 41")
    assert rows[1:] == [
        "ps/1 stopped SIGTERM (decided) 127.0.0.1 2.50 s -",
        "worker/0 succeeded 0 127.0.0.1 2.50 s -",
        "worker/1 held 3 127.0.0.1 gpu:0,1 2.50 s -",
    ]


def test_tasks_in_containers_tell_host_address_image_and_container(run: Run, fake: Fake) -> None:
    run("job", "submit", "-q", "--", "x")
    jid = next(iter(fake.jobs))
    fake.gang(
        jid,
        [
            {
                "role": "ps",
                "state": "running",
                "pid": 41,
                "host": "h1",
                "address": "10.208.0.2",
                "ports": {"http": [30000]},
                "image": "python:3.11",
                "container": "srj-t-user0001-0123456789ab",
            },
            {
                "role": "worker",
                "host": "h2",
                "address": "10.208.0.3",
                "image": None,
                "container": "srj-t-user0001-ab0123456789",
            },
            {"role": "other", "host": "h3", "address": "10.0.0.3"},
        ],
    )
    rows = [" ".join(line.split()) for line in run("job", "tasks", jid).out.splitlines()[2:]]
    assert rows[0].startswith(
        "ps/0 running - h1 10.208.0.2 http:30000 image:python:3.11 container:srj-t-user0001-0123456789ab "
    )
    assert rows[1:] == [
        "worker/0 placed - h2 10.208.0.3 container:srj-t-user0001-ab0123456789 - -",
        "other/0 placed - 10.0.0.3 - -",
    ]
    assert [t.get("image", "-") for t in run("--json", "job", "tasks", jid).json()["tasks"]] == [
        "python:3.11",
        None,
        "-",
    ]


def test_only_those_that_failed(run: Run, jid: str, fake: Fake) -> None:
    assert [
        line.split()[0] for line in run("job", "tasks", jid, "--failed").out.splitlines()[2:]
    ] == ["worker/1"]
    assert [t["index"] for t in run("--json", "job", "tasks", jid, "--failed").json()["tasks"]] == [
        1
    ]
    fake.gang(jid, [{"state": "running"}])
    assert "no task of this attempt has failed" in run("job", "tasks", jid, "--failed").err


def test_attempts_are_told_with_why_they_were_tried_again_or_not(
    run: Run, jid: str, fake: Fake
) -> None:
    decided = {"succeeded": False, "reason": "[worker]: enough.", "role": "worker", "index": 1}
    ended(
        fake,
        jid,
        decided=decided,
        retry={"behavior": "unknown", "delaySecs": 0.0, "reason": "retry 1 of 1, at once"},
    )
    fake.gang(jid, [{"role": "worker", "index": 1, "state": "failed", "exit": FAILED}], attempt=2)
    ended(fake, jid, notRetried="each was used")
    out = run("job", "tasks", jid).out.splitlines()
    assert out[0] == f"{jid} running, attempt 2"
    assert out[1].split(None, 2)[1:] == [
        "1",
        "failed by worker/1 ([worker]: enough); retried: retry 1 of 1, at once",
    ]
    assert out[2].split(None, 2)[1:] == ["2", "ended (exit); not retried: each was used"]
    assert len(out) == 5
    assert len(run("job", "tasks", jid, "--attempt", "1").out.splitlines()) == 8
    assert run("job", "tasks", jid, "--attempt", "7").code == 125
    assert (
        run("--json", "job", "tasks", jid, "--attempt", "1").json()["schema"]
        == "jobscribe.job.tasks/1"
    )


def test_a_run_of_which_nothing_was_placed_says_so(run: Run, fake: Fake) -> None:
    run("job", "submit", "-q", "--", "x")
    jid = next(iter(fake.jobs))
    fake.change(jid, attempt=0)
    assert "no task is placed yet" in run("job", "tasks", jid).err
    fake.change(jid, state="canceled", over=True)
    assert "was ever placed" in run("job", "tasks", jid).err


# ---- status, cancel


def test_a_status_tells_roles_attempts_and_how_to_enter_and_release_what_is_kept(
    run: Run, jid: str, fake: Fake
) -> None:
    ended(
        fake,
        jid,
        retry={"behavior": "unknown", "delaySecs": 0.0, "reason": "retry 1 of 2, at once"},
    )
    gang = [{k: v for k, v in t.items() if k != "attempt"} for t in fake.jobs[jid]["gang"]]
    fake.gang(jid, gang, attempt=2, policy={"count": 2, "platform": 3, "conflictSecs": 600.0})
    told = run("job", "status", jid)
    lines = [" ".join(line.split()) for line in told.out.splitlines()]
    for line in (
        "state running: worker/1 failed (exit code 3) and can be inspected",
        "waiting debug_hold",
        "attempt 2 of at most 6",
        "1 ended (exit); retried: retry 1 of 2, at once",
        "roles ps: 2 tasks, 1 running, 1 stopped",
        "worker: 2 tasks, 1 held, 1 succeeded",
    ):
        assert line in lines, lines
    for text in (
        "worker/1 is held for debugging until 1970-01-01T01:00:00Z",
        f"job shell {jid} --role worker --index 1",
        f"job release {jid}",
    ):
        assert text in told.err


def test_a_status_of_a_run_that_waits_for_others_names_them_and_a_plain_one_is_as_it_was(
    run: Run, fake: Fake
) -> None:
    run("job", "submit", "-q", "--", "x")
    jid = next(iter(fake.jobs))
    fake.change(
        jid,
        queue="dependency",
        message="waiting for the end of 1 run",
        after=["EPRSqtUW-i9btqxdR-command"],
    )
    out = [" ".join(line.split()) for line in run("job", "status", jid).out.splitlines()]
    assert "after EPRSqtUW-i9btqxdR-command" in out and not [
        line for line in out if line.startswith(("roles", "attempt"))
    ]
    assert [p for p, _ in fake.requests if p == "job-tasks"] == [], (
        "nothing more is asked for a plain run"
    )


def test_a_canceled_run_that_was_only_kept_is_said_to_have_ended_before(
    run: Run, jid: str, fake: Fake
) -> None:
    fake.change(jid, state="error", over=True, exit=FAILED, reason="exit")
    assert (
        "it had failed before the cancel request; it keeps its exit"
        in run("job", "cancel", jid).err
    )
    fake.change(jid, state="canceled", reason="cancel")
    assert "before" not in run("job", "cancel", jid).err


# ---- release


def test_release_gives_back_what_is_kept_and_says_what_that_was(
    run: Run, jid: str, fake: Fake
) -> None:
    assert (
        "no task worker/0 is held for debugging; nothing was changed"
        in run("job", "release", jid, "--role", "worker", "--index", "0").err
    )
    assert fake.jobs[jid]["gang"][3]["state"] == "held"
    assert "released worker/1" in run("job", "release", jid).err
    assert fake.jobs[jid]["gang"][3]["state"] == "failed"
    again = run("job", "release", jid)
    assert (again.code, "no task is held" in again.err) == (0, True)
    assert run("job", "release", jid, "--index", "0").code == 2


def test_release_of_one_task_leaves_the_others(run: Run, jid: str, fake: Fake) -> None:
    fake.gang(
        jid,
        [
            {"role": "a", "index": i, "state": "held", "exit": FAILED, "heldUntil": 60.0}
            for i in range(3)
        ],
    )
    assert run("--json", "job", "release", jid, "--role", "a", "--index", "1").json()[
        "released"
    ] == ["a/1"]
    assert [t["state"] for t in fake.jobs[jid]["gang"]] == ["held", "failed", "held"]


# ---- logs


def test_logs_are_those_of_the_task_that_is_named(run: Run, jid: str, fake: Fake) -> None:
    fake.change(jid, telling=("worker", 1))
    assert run("job", "logs", jid, "--role", "worker", "--index", "0").out == "zero"
    told = run("job", "logs", jid)
    assert told.out == "one"
    assert told.err.count("[task worker/1, attempt 1;") == 1
    assert "[task" not in run("job", "logs", jid, "--role", "worker", "--index", "1").err
    assert run("job", "logs", jid, "--role", "worker", "--index", "9").code == 125
    assert run("job", "logs", jid, "--index", "1").code == 2


def test_who_follows_one_task_reads_it_to_its_end_while_the_others_and_later_attempts_go_on(
    run: Run, jid: str, fake: Fake
) -> None:
    fake.change(jid, telling=("ps", 0))
    fake.jobs[jid]["gang"][0]["stdout"] = b"first of ps "

    def goes_on() -> None:
        # another task now stands for the run, and another attempt begins: the client must follow
        # neither
        fake.gang(
            jid,
            [
                {
                    "role": "ps",
                    "index": 0,
                    "state": "running",
                    "stdout": b"second attempt, of ps, and long",
                }
            ],
            attempt=2,
        )
        with fake._lock:
            first = next(
                t
                for t in fake.jobs[jid]["gang"]
                if (t["attempt"], t["role"], t["index"]) == (1, "ps", 0)
            )
            first["stdout"] += b"and its end"
            first["state"] = "failed"

    timer = threading.Timer(0.3, goes_on)
    timer.start()
    told = run("job", "logs", "-f", jid)
    timer.join()
    assert (told.code, told.out) == (0, "first of ps and its end")


def test_who_follows_a_task_that_is_kept_ends_at_once(run: Run, jid: str) -> None:
    assert run("job", "logs", "-f", jid, "--role", "worker", "--index", "1").out == "one"


# ---- shell


@pytest.fixture
def script(tmp_path: Path, fake: Fake, jid: str) -> Path:
    """Create evidence of worker/1 on this host, with a minimal script."""
    folder = tmp_path / "evi'dence"
    folder.mkdir()
    (folder / "script.sh").write_text(
        '[ "$1" = --shell ] || exit 9\nexport WHO=worker1\ncd /\nexec /bin/sh\n'
    )
    fake.jobs[jid]["gang"][3].update(evidence=str(folder), host=socket.gethostname())
    return folder / "script.sh"


@pytest.mark.process
def test_the_command_line_that_enters_a_task_is_printed_for_a_shell(
    run: Run, jid: str, script: Path
) -> None:
    told = run("job", "shell", jid, "--print")
    assert shlex.split(told.out) == ["/bin/sh", str(script), "--shell"]
    done = subprocess.run(
        ["/bin/sh", "-c", told.out],
        input="echo $WHO; pwd",
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.stdout.split() == ["worker1", "/"]
    value = run("--json", "job", "shell", jid, "--print").json()
    assert (value["role"], value["index"], value["argv"]) == (
        "worker",
        1,
        ["/bin/sh", str(script), "--shell"],
    )
    assert run("--json", "job", "shell", jid).code == 2


@pytest.mark.process
def test_entering_becomes_the_shell_with_its_exit_code(
    started: Any, jid: str, script: Path
) -> None:
    process = started("job", "shell", jid, stdin=subprocess.PIPE)
    out, err = process.communicate(b"echo $WHO\nexit 7\n", timeout=60)
    assert (process.returncode, out) == (7, b"worker1\n")
    assert b"task worker/1" in err and b"held for debugging" in err


@pytest.mark.parametrize(
    ("tasks", "args", "said"),
    [
        ([], [], "placed yet"),
        ([("a", 0, "running"), ("a", 1, "running")], [], "choose one"),
        ([("a", 0, "running")], ["--role", "b"], "its tasks: a/0"),
        ([("a", 0, "running"), ("a", 1, "running")], ["--role", "a"], "a/0, a/1"),
        ([("a", 0, "placed")], [], "the task has not started yet"),
    ],
)
def test_a_task_that_cannot_be_told_or_is_not_there(
    run: Run, jid: str, fake: Fake, tasks: Any, args: list[str], said: str
) -> None:
    fake.gang(
        jid,
        [{"role": r, "index": i, "state": s, "host": socket.gethostname()} for r, i, s in tasks],
    )
    fake.change(jid, attempt=1 if tasks else 0)
    told = run("job", "shell", jid, *args)
    assert told.code == 125 and said in told.err, told


@pytest.mark.parametrize(
    ("tasks", "meant"),
    [
        ([("a", 0, "running"), ("a", 1, "held"), ("a", 2, "failed")], 1),
        ([("a", 0, "running"), ("a", 1, "failed")], 1),
        ([("a", 0, "running")], 0),
    ],
)
def test_without_a_name_the_task_that_is_kept_or_failed_or_the_only_one_is_meant(
    run: Run,
    jid: str,
    fake: Fake,
    tasks: Any,
    meant: int,
) -> None:
    fake.gang(
        jid,
        [
            {"role": r, "index": i, "state": s, "exit": FAILED if s == "held" else None}
            for r, i, s in tasks
        ],
    )
    assert run("--json", "job", "shell", jid, "--print").json()["index"] == meant


def test_on_another_machine_it_is_said_where_to_go(run: Run, jid: str, fake: Fake) -> None:
    fake.jobs[jid]["gang"][3].update(host="node7", evidence="/far/away")
    told = run("job", "shell", jid)
    assert told.code == 125
    assert "is on node7" in told.err and "/bin/sh /far/away/script.sh --shell" in told.err


@pytest.mark.parametrize(
    ("key", "state", "how"),
    [
        (
            "docker.sequential.LoIEQ6fa@h1",
            "running",
            "on h1: docker exec -it srj-s-LoIEQ6fa /bin/sh /far/away/script.sh --shell",
        ),
        (
            "docker.sequential.LoIEQ6fa@h1",
            "failed",
            "while the agent is up (see 'jobscribe agent list'), run on h1: docker exec -it srj-s-LoIEQ6fa ",
        ),
        (
            "docker.container.LoIEQ6fa@h1",
            "failed",
            "srj-t-1 on h1, has stopped; create a similar one from its `docker run`",
        ),
        (
            "docker.container.LoIEQ6fa@h1",
            "running",
            "on h1: docker exec -it srj-t-1 /bin/sh /far/away/script.sh --shell",
        ),
        (
            "docker.container.LoIEQ6fa@h1",
            "held",
            "srj-t-1 on h1, has stopped; create a similar one from its `docker run`",
        ),
    ],
)
def test_a_task_in_a_container_is_entered_there(
    run: Run, jid: str, fake: Fake, key: str, state: str, how: str
) -> None:
    fake.jobs[jid]["gang"][3].update(
        agentKey=key, state=state, container="srj-t-1", evidence="/far/away"
    )
    told = run("job", "shell", jid, "--role", "worker", "--index", "1")
    assert told.code == 125 and how in told.err, told.err


def test_another_unix_user_is_told_who_may(
    run: Run, jid: str, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root is refused as well: files it wrote there would not belong to the job's user."""
    import pwd

    me = os.geteuid()
    owner = pwd.getpwuid(me).pw_name
    for other, how in (
        (me + 4711, f"sudo -u {owner} /bin/sh"),
        (0, f"runuser -u {owner} -- /bin/sh"),
    ):
        if other == me:
            os.chown(script, 65534, 65534)
            owner, how = (name := pwd.getpwuid(65534).pw_name), f"runuser -u {name} -- /bin/sh"
        monkeypatch.setattr(os, "geteuid", lambda other=other: other)
        monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("it was entered"))
        told = run("job", "shell", jid)
        assert told.code == 125
        assert f"only unix user {owner} can enter task" in told.err
        assert how in told.err


# ---- tags


def test_tags_are_shown_added_removed_and_filter_the_list(run: Run, jid: str) -> None:
    assert run("job", "tag", jid).err.strip() == f"{jid}: no tags"
    assert run("job", "tag", jid, "add", "best", "lr=0.01").err.endswith("tags: best, lr=0.01\n")
    assert run("job", "tag", jid, "remove", "best", "--json").out.count("lr=0.01") == 1
    assert jid in run("job", "list", "--tag", "other", "--tag", "lr=0.01").out
    assert jid not in run("job", "list", "--tag", "best").out
    refused = run("job", "tag", jid, "add", "a b")
    assert refused.code != 0 and "letters, digits" in refused.err
    lacks = run("job", "tag", jid, "add")
    assert lacks.code == 2 and "requires at least one TAG" in lacks.err
