"""`Client(in_process=True)`: supervisor, agent and jobs in this process and thread."""

import asyncio
import concurrent.futures
import io
import os
import pdb
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.sync_client import Client


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(in_process=True) as client:
        yield client


def test_a_script_runs_in_this_thread_with_its_directory_arguments_and_variables(
    client: Client, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, threading, neighbour\n"
        "neighbour.seen.append((sys.argv[1:], os.environ['A'], os.environ['JOBSCRIBE_SERIAL'],"
        " threading.get_ident(), os.getpid(), os.getcwd(), __name__))\n"
        "with open('out.txt', 'w') as f: f.write('result')\n"
        "raise SystemExit(3)\n"
    )
    (tmp_path / "neighbour.py").write_text("seen = []\n")
    before = (os.getcwd(), dict(os.environ), sys.argv[:], sys.path[:])
    threads = threading.active_count()
    job = client.run([sys.executable, "-u", str(script), "x"], env={"A": "b"})
    state = job.wait()
    assert (os.getcwd(), dict(os.environ), sys.argv[:], sys.path[:]) == before
    assert (state.state, state.shell_code, job.why()["cause"]) == ("error", 3, "exit")
    (seen,) = sys.modules.pop("neighbour").seen
    assert seen[:2] == (["x"], "b") and seen[2] == str(job.serial)
    assert seen[3:5] == (threading.get_ident(), os.getpid()) and seen[6] == "__main__"
    assert seen[5] == state.run_dir
    assert client.open_file(job.jid, "out.txt").read() == b"result"
    with pytest.raises(ClientError, match="notFound"):
        client.open_file(job.jid, os.path.relpath(__file__, seen[5]))
    assert list(job.logs()) == []
    assert threading.active_count() == threads
    kinds = [e["event"]["type"] for e in job.story()["events"]]
    assert kinds == [
        "RunRequested",
        "TaskPlaced",
        "TaskStarted",
        "TaskEnded",
        "AttemptEnded",
        "RunEnded",
    ]


def test_a_debugger_stops_in_a_function_and_its_result_is_the_value(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def area(width: int, height: int) -> int:
        breakpoint()
        return width * height

    stdin, stdout = io.StringIO("p width + 41\nheight = 9\nc\n"), io.StringIO()
    debugger = pdb.Pdb(stdin=stdin, stdout=stdout, nosigint=True)
    hook = lambda: debugger.set_trace(sys._getframe(1))
    monkeypatch.setattr(sys, "breakpointhook", hook)
    future = client.submit(area, 1, height=3)
    assert future.done() and future.result() in (3, 9)
    assert "42" in stdout.getvalue()
    assert client.job(future.jid).status().state == "completed"


def test_functions_may_use_asyncio_raise_and_have_large_arguments(client: Client) -> None:
    async def later(value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    def awaited(value: Any) -> Any:
        return asyncio.run(later(value))

    def broken(value: Any) -> Any:
        raise KeyError(value)

    assert client.submit(awaited, b"x" * 300_000).result() == b"x" * 300_000
    with pytest.raises(KeyError) as e:
        client.submit(broken, "k").result()
    assert "in broken" in str(e.value.__cause__)
    with client.executor() as executor:
        assert list(executor.map(awaited, [1, 2, 3])) == [1, 2, 3]
        assert concurrent.futures.wait([executor.submit(awaited, 4)]).not_done == set()
    assert client.group(executor.sid).counts["completed"] == 4


def test_retries_dependencies_and_names_are_those_of_a_site(client: Client) -> None:
    failing = [sys.executable, "-c", "import sys; sys.exit(5)"]
    job = client.run(failing, retry={"count": 2})
    assert job.wait().attempt == 3
    jobs = client.submit_description(
        {"jobs": [
            {"name": "a", "command": failing},
            {"name": "b", "command": [sys.executable, "-c", "pass"], "after": [{"job": "a", "on": "failed"}]},
        ]}
    )  # fmt: skip
    states = [
        run.wait().state
        for runs in jobs.values()
        for run in runs
        if not isinstance(run, ClientError)
    ]
    assert states == ["error", "completed"]
    clone = client.clone(job.jid, changes={"command.2": "import sys; sys.exit(6)"})
    assert clone.wait().shell_code == 6
    assert len(client.jobs().jobs) == 4


def test_errors_of_a_script_have_its_own_frames_only(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.py").write_text("def f():\n    raise KeyError(5)\nf()\n")
    assert client.run(["python3", str(tmp_path / "wrong.py")]).wait().shell_code == 1
    said = capsys.readouterr().err
    assert said.count('File "') == 2 and said.endswith("KeyError: 5\n") and "runpy" not in said
    job = client.run(["python", "no.py"])
    assert job.wait().shell_code == 2
    assert capsys.readouterr().err.startswith("python: there is no file no.py in /")
    assert client.run(["python", "-c", "raise SystemExit('bye')"]).wait().shell_code == 1
    assert capsys.readouterr().err == "bye\n"


def test_nobody_stops_a_job_that_is_debugged_for_longer_than_its_limit(client: Client) -> None:
    text = "import time; time.sleep(0.3)"
    job = client.run([sys.executable, "-c", text], time_limit_secs=0.01, grace_secs=0)
    assert job.wait().state == "completed"


def test_an_interrupt_ends_the_job_and_reaches_the_caller(client: Client) -> None:
    with pytest.raises(KeyboardInterrupt):
        client.run([sys.executable, "-c", "raise KeyboardInterrupt"])
    (row,) = client.jobs().jobs
    state = client.status(row["jid"])
    assert state.over and state.exit is not None and state.exit.signal == 2


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda c: c.run(["true"], driver="docker"), "badRequest"),
        (lambda c: c.run([sys.executable, "-c", "pass"], task={"memory_mb": 5}), "notHere"),
        (lambda c: c.copy(), "notHere"),
        (lambda c: next(c.events()), "notHere"),
        (lambda c: c.clusters(), "notHere"),
        (lambda c: c.status("inproces-nosuch00-command"), "notFound"),
    ],
)
def test_what_one_process_does_not_have_is_refused(client: Client, act: Any, code: str) -> None:
    with pytest.raises(ClientError) as e:
        act(client)
    assert e.value.code == code


def test_a_job_cannot_use_its_own_client(client: Client) -> None:
    seen: list[str] = []
    sys.modules["in_process_test_client"] = client  # type: ignore[assignment]
    text = "import sys; sys.modules['in_process_test_client'].jobs()"
    try:
        job = client.run([sys.executable, "-c", text])
    finally:
        del sys.modules["in_process_test_client"]
    assert job.wait().shell_code == 1 and seen == []


@pytest.mark.asyncio
async def test_a_running_event_loop_is_named() -> None:
    with pytest.raises(ClientError, match="an event loop runs in this thread"):
        Client(in_process=True)


def test_the_files_are_gone_after_close_and_wrong_arguments_are_named() -> None:
    client = Client(in_process=True, uid="someone1")
    job = client.run([sys.executable, "-c", "open('x', 'w').close()"])
    run_dir = job.status().run_dir
    assert (
        run_dir is not None and os.path.exists(f"{run_dir}/x") and job.jid.startswith("someone1-")
    )
    client.close()
    client.close()
    assert not os.path.exists(run_dir)
    with pytest.raises(TypeError, match="in_process=True"):
        Client()


@pytest.mark.process
def test_other_programs_are_child_processes(
    client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    assert client.run(["/bin/sh", "-c", "echo $A; exit 4"], env={"A": "b"}).wait().shell_code == 4
    assert capfd.readouterr().out == "b\n"
    assert client.run(["/bin/sh", "-c", "kill -9 $$"]).wait().shell_code == 137
    assert client.run(["no-such-program"]).wait().shell_code == 127


def test_decorated_functions_and_workers_are_called_here(client: Client) -> None:
    @client.function(workers=2)
    def double(value: int) -> int:
        return 2 * value

    assert double.submit(4).result() == 8 and list(double.map([1, 2])) == [2, 4]


def test_jobs_leave_nothing_behind_that_breaks_the_process_of_their_client(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, shutil, sys\n"
        "sys.argv, sys.path = ['x'], ()\n"
        "sys.stdin = sys.stderr = None\n"
        "sys.stdout = open(os.devnull, 'w')\n"
        "sys.stdout.close()\n"
        "os.umask(0)\n"
        "shutil.rmtree(os.getcwd())\n"
    )
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    argv, path, streams = sys.argv, sys.path, (sys.stdin, sys.stdout, sys.stderr)
    copies = argv[:], path[:]
    assert client.run([sys.executable, str(script)]).wait().shell_code == 0
    assert sys.argv is argv and sys.path is path and (argv, path) == copies
    assert (sys.stdin, sys.stdout, sys.stderr) == streams
    mask = os.umask(0o077)
    os.umask(mask)
    assert mask != 0 and os.getcwd() == str(tmp_path / "here")


@pytest.mark.process
def test_a_child_that_a_script_forks_does_not_go_on_with_the_client(
    client: Client, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "pid = os.fork()\n"
        "if not pid: sys.exit(7)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    process = os.getpid()
    try:
        state = client.run([sys.executable, str(script)]).wait()
    finally:
        if os.getpid() != process:  # else this child would run the rest of the tests
            os._exit(99)
    assert state.shell_code == 7


def test_users_of_clients_in_one_process_are_ids_and_jobs_cannot_close_the_client(
    client: Client,
) -> None:
    with pytest.raises(ClientError, match="uid must be 8 letters"):
        Client(in_process=True, uid="../../x")
    sys.modules["_closed_client"] = client  # type: ignore[assignment]
    try:
        job = client.run([sys.executable, "-c", "import _closed_client as c; c.close()"])
    finally:
        del sys.modules["_closed_client"]
    assert job.wait().shell_code == 1
