"""`jobscribe run` behaves as if the command ran locally."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.process

Fake = Any
Run = Any
Started = Any


def until(condition: Callable[[], object], secs: float = 30.0) -> None:
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.005)


def playing(fake: Fake, *, out: bytes = b"", err: bytes = b"", **end: Any) -> None:
    """Make each run write this output and end this way, shortly after its submission."""

    def play(jid: str) -> None:
        fake.change(jid, state="running")
        fake.write(jid, "stdout", out)
        fake.write(jid, "stderr", err)
        fake.end(jid, **end)

    fake.on_submit = lambda jid, spec: threading.Timer(0.05, play, [jid]).start()


def test_output_goes_where_it_belongs_and_the_code_is_the_jobs(run: Run, fake: Fake) -> None:
    playing(fake, out=b"to out\nno newline at the end", err=b"to err\n", code=0)
    ended = run("run", "--", "echo")
    assert (ended.code, ended.out, ended.err) == (0, "to out\nno newline at the end", "to err\n")


def test_with_an_image_it_is_a_run_with_one_task_in_a_container(run: Run, fake: Fake) -> None:
    playing(fake, out=b"hello\n", code=3)
    ended = run(
        "run",
        "--driver",
        "docker",
        "--image",
        "python:3.11",
        "--cpu",
        "2",
        "--memory",
        "1.5GB",
        "--gpu",
        "1",
        "--shm",
        "128",
        "--volume",
        "data",
        "--volume",
        "/users/x",
        "--env",
        "A=b",
        "--",
        "sh",
        "-c",
        "exit 3",
    )
    assert (ended.code, ended.out) == (3, "hello\n")
    spec = fake.submitted()[0]
    assert (spec["driver"], spec["command"], spec["env"]) == ("docker", [], {"A": "b"})
    (main,) = spec["roles"]
    assert (main["name"], main["tasks"], main["command"], main["image"]) == (
        "main",
        1,
        ["sh", "-c", "exit 3"],
        "python:3.11",
    )
    assert (main["cpu"], main["memoryMb"], main["gpu"], main["shmMb"], main["volumes"]) == (
        2,
        1536,
        1,
        128,
        ["data", "/users/x"],
    )


def test_without_any_of_these_it_is_a_plain_run(run: Run, fake: Fake) -> None:
    playing(fake, code=0)
    assert run("run", "--driver", "docker", "--", "true").code == 0
    spec = fake.submitted()[0]
    assert (spec["driver"], spec["command"], spec["roles"]) == ("docker", ["true"], [])


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ({"code": 3}, 3),
        ({"code": 255}, 255),
        ({"code": None, "signal": 9}, 137),
        ({"code": None, "signal": 15}, 143),
        ({"code": 0, "state": "canceled"}, 125),
        ({"code": None, "signal": 15, "state": "canceled"}, 143),
    ],
)
def test_the_exit_code_is_what_a_shell_would_say(
    run: Run, fake: Fake, end: dict[str, Any], code: int
) -> None:
    playing(fake, **end)
    ended = run("run", "--", "x")
    assert ended.code == code
    assert "jobscribe job why " in ended.err


def test_bytes_that_are_no_text_pass_unchanged(started: Started, fake: Fake) -> None:
    data = bytes(range(256)) * 4
    playing(fake, out=data, code=0)
    out, _ = started("run", "--", "x").communicate(timeout=60)
    assert out == data


def test_json_is_a_stream_of_values(run: Run, fake: Fake) -> None:
    playing(fake, out=b"text\xff", code=4)
    ended = run("run", "--json", "--", "x")
    first, *parts, last = ended.lines()
    assert (first["type"], last["type"], last["exitCode"], ended.code) == (
        "submitted",
        "ended",
        4,
        4,
    )
    assert [p.get("base64") for p in parts] == ["dGV4dP8="]


def test_a_supervisor_that_cannot_be_had_is_125(run: Run, fake: Fake) -> None:
    fake.stop()
    ended = run("--patience", "0", "run", "--", "x")
    assert (ended.code, ended.out) == (125, "")
    assert f"jobscribe: no answer from {fake.url}" in ended.err


def test_the_restart_of_the_supervisor_is_survived(started: Started, fake: Fake) -> None:
    process = started("run", "--", "x")
    until(lambda: fake.jobs)
    jid = next(iter(fake.jobs))
    fake.stop()
    fake.write(jid, "stdout", b"while away\n")
    fake.start()
    fake.end(jid, code=6)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (6, b"while away\n")


def test_why_it_waits_is_said_once_it_takes_long(started: Started, fake: Fake) -> None:
    process = started("run", "--", "x")
    assert b"waits for a CPU slot" in process.stderr.readline()
    fake.end(next(iter(fake.jobs)))
    assert process.wait(60) == 0


def test_the_first_interrupt_cancels_and_waits(started: Started, fake: Fake) -> None:
    process = started("run", "--", "x")
    until(lambda: any(p == "run-status" for p, _ in fake.requests))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert b"canceling" in err
    assert [j["state"] for j in fake.jobs.values()] == ["canceled"]
    assert b"Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_sighup_cancel_as_the_first_interrupt_does(
    started: Started, fake: Fake, number: signal.Signals
) -> None:
    process = started("run", "--", "x")
    until(lambda: any(p == "run-status" for p, _ in fake.requests))
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert (
        f"canceling {next(iter(fake.jobs))}; {number.name} again".encode() in err
        and b"Traceback" not in err
    )
    assert [(body["reason"]) for p, body in fake.requests if p == "run-cancel"] == [
        f"{number.name} at jobscribe run"
    ]


def test_a_signal_that_was_ignored_before_the_start_stays_ignored(
    started: Started, fake: Fake
) -> None:
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    process = started("run", "--", "x")
    signal.signal(signal.SIGHUP, ignored)
    until(lambda: any(p == "run-status" for p, _ in fake.requests))
    process.send_signal(signal.SIGHUP)
    fake.end(next(iter(fake.jobs)), code=4)
    assert process.wait(60) == 4
    assert not any(p == "run-cancel" for p, _ in fake.requests)


def test_a_signal_before_the_answer_says_where_to_look(started: Started, fake: Fake) -> None:
    fake.stop()
    process = started("run", "--", "x")
    assert b"retrying" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"shows whether the run was submitted" in err


def test_the_second_interrupt_leaves(started: Started, fake: Fake) -> None:
    fake.on_submit = lambda jid, spec: fake.change(jid, deaf=True)
    process = started("run", "--", "x")
    until(lambda: any(p == "run-status" for p, _ in fake.requests))
    process.send_signal(signal.SIGINT)
    until(lambda: any(p == "run-cancel" for p, _ in fake.requests))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"end of the run; see: jobscribe job status" in err
    assert b"Traceback" not in err


def test_a_reader_that_goes_away_ends_the_run(started: Started, fake: Fake) -> None:
    reader, writer = os.pipe()
    # Shells start background commands with interrupts ignored; a pipeline must still end.
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = started("run", "--", "yes", stdout=writer)
    signal.signal(signal.SIGINT, ignored)
    os.close(writer)
    until(lambda: fake.jobs)
    jid = next(iter(fake.jobs))
    os.close(reader)
    fake.write(jid, "stdout", b"y\n" * 1000)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    assert process.returncode == 141
    assert fake.jobs[jid]["state"] == "canceled"
    assert b"Traceback" not in process.stderr.read()


def test_logs_that_cannot_be_read_are_no_success(run: Run, fake: Fake) -> None:
    playing(fake, out=b"x", code=0)
    fake.fail("job-log", "notFound", "the logs are gone", times=2)
    ended = run("run", "--", "x")
    assert ended.code == 125
    assert "the logs are gone" in ended.err


def test_a_command_in_this_process_needs_no_supervisor(run: Run, fake: Fake) -> None:
    fake.requests.clear()
    text = "import os, sys; sys.stderr.write(str(os.getpid())); sys.exit(3)"
    ended = run("run", "--in-process", "--", sys.executable, "-c", text)
    assert ended.code == 3 and str(os.getpid()) in ended.err
    assert "error: failed with exit code 3" in ended.err and fake.requests == []
    ended = run("run", "--in-process", "--json", "--", sys.executable, "-c", "pass")
    assert (ended.code, ended.json()["type"], ended.json()["exitCode"]) == (0, "ended", 0)
    ended = run("run", "--in-process", "--image", "x", "--", "true")
    assert ended.code == 125 and "without containers" in ended.err
