"""The program that inspects executions, beside real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobscribe.agent.breakpoints.environment import STAGED
from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs.inspection import ProcessStacks, Program
from jobscribe.runtime.inspection.command_line import command_line
from jobscribe.runtime.inspection.program import processes, stacks, tools
from jobscribe.runtime.inspection.program.processes import Process

pytestmark = pytest.mark.process

Start = Callable[..., "subprocess.Popen[bytes]"]
DEADLINE_SECS = 30.0


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process with these additional variables. It is killed at the end, with its children."""
    begun: list[subprocess.Popen[bytes]] = []

    def start_(*argv: str, **env: str) -> "subprocess.Popen[bytes]":
        begun.append(
            subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env={"PATH": "/usr/bin:/bin", **env},
                start_new_session=True,
            )
        )
        return begun[-1]

    yield start_
    for process in begun:
        with process:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def until(check: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECS
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def seen(process: "subprocess.Popen[bytes]") -> Process:
    found = processes.find(process.pid)
    assert found is not None
    return found


def begun(process: "subprocess.Popen[bytes]") -> Process:
    """Wait for the first line of a process."""
    assert process.stdout is not None and process.stdout.readline()
    return seen(process)


def state(process: "subprocess.Popen[bytes]") -> str:
    return seen(process).state


def test_the_program_needs_no_jobscribe_and_finds_the_execution_alone(start: Start) -> None:
    """Its processes are those with its mark and their descendants, also without the mark."""
    token = Token("ann00001-sim00001-command", os.getpid(), 1, "main", 0)
    inner = "env -i /bin/sleep 1000 & echo on; wait"
    job = start("/bin/sh", "-c", inner, JOBSCRIBE_TOKEN=str(token))
    begun(job)
    start("/bin/sh", "-c", "sleep 1000; :", JOBSCRIBE_TOKEN=f"{token}0")
    until(lambda: b"sleep" in sleeper(job.pid), "the sleeper has its program")
    done = subprocess.run(
        command_line(Program(name="stacks"), token, here=False),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin"},
        start_new_session=True,
        timeout=100,
    )
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["type"] for r in records] == ["process", "process", "end"], (records, done.stderr)
    assert [r["name"] for r in records[:2]] == ["sh", "sleep"] and done.returncode == 0
    import msgspec

    shown = msgspec.convert(records[1], ProcessStacks)
    assert shown.parent == job.pid and not shown.python and "nanosleep" in shown.waits_in


def sleeper(parent: int) -> bytes:
    child = processes.read(f"/proc/{parent}/task/{parent}/children").split()
    return processes.read(f"/proc/{int(child[0])}/comm") if child else b""


def test_a_faulthandler_of_the_job_is_asked_and_harms_no_other_program(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "HANDLER_SECS", DEADLINE_SECS)
    text = "import os, sys, time\ndef waits():\n    print('on', flush=True)\n    time.sleep(1000)\nwaits()"
    env = {"JOBSCRIBE_DEBUG_DIR": str(tmp_path), "PYTHONPATH": f"{STAGED / 'on_error'}:{STAGED}"}
    job = start(sys.executable, "-c", text, **env)
    process = begun(job)
    for _ in range(2):
        got = stacks._faulthandler(process, [], None)
        assert isinstance(got, dict) and got["text"].count("in waits") == 1, got
    path = stacks.handler_file(process)
    assert path is not None and os.stat(path).st_mode & 0o777 == 0o600
    assert job.poll() is None

    os.kill(job.pid, signal.SIGSTOP)
    until(lambda: state(job) == "T", "it is stopped")
    assert stacks._faulthandler(seen(job), [], None) == stacks._STOPPED

    other = text.replace("time.sleep(1000)", "os.execv('/bin/sleep', ['sleep', '1000'])")
    changed = start(sys.executable, "-c", other, **env)
    process = begun(changed)
    until(lambda: seen(changed).name == "sleep", "another program")
    assert list(tmp_path.glob(f"stacks-{process.pid}-*")), "the file of the earlier program is left"
    assert stacks._faulthandler(process, [], None) == stacks._NO_HANDLER
    os.kill(changed.pid, signal.SIGURG)  # as in a race
    assert changed.poll() is None


#: A tool that stops the process as ptrace does, and is killed then with its parent.
_KILLED = """
import os, signal, subprocess, sys
from jobscribe.runtime.inspection.program import processes, tools
target = processes.find(int(sys.argv[1]))
with tools.Guard([target]) as guard:
    tool = subprocess.Popen(["/bin/sleep", "1000"])
    guard.started(tool.pid)
    os.kill(target.pid, signal.SIGSTOP)
    print(tool.pid, flush=True)
    signal.pause()
"""


def test_a_killed_tool_leaves_no_process_stopped(start: Start) -> None:
    job = start("/bin/sleep", "1000")
    until(lambda: seen(job).name == "sleep", "it has its program")
    path = ":".join(p for p in sys.path if p)
    program = start(sys.executable, "-c", _KILLED, str(job.pid), PYTHONPATH=path)
    assert program.stdout is not None
    tool = int(program.stdout.readline())
    until(lambda: state(job) == "T", "it is stopped")
    program.kill()
    until(lambda: state(job) == "S", "it goes on")
    until(lambda: (p := processes.find(tool)) is None or p.state == "Z", "the tool is gone")


def test_a_recording_that_is_hung_up_leaves_nothing(start: Start, tmp_path: Path) -> None:
    token = Token("ann00001-sim00001-command", os.getpid(), 1, "hup", 0)
    wait = "print('on', flush=True)\nimport time; time.sleep(1000)"
    job = start(sys.executable, "-c", wait, JOBSCRIBE_TOKEN=str(token))
    begun(job)
    program = Program(name="profile", secs=600.0)
    recorder = start(*command_line(program, token, here=True), TMPDIR=str(tmp_path))
    begun(recorder)

    def tools_() -> list[Process]:
        known = (p for p in map(processes.find, processes._pids()) if p is not None)
        return [p for p in known if p.parent == recorder.pid and p.name == "py-spy"]

    until(lambda: tools_() and list(tmp_path.iterdir()), "py-spy records")
    tool = (*tools_(), None)[0]
    recorder.send_signal(signal.SIGHUP)
    assert recorder.wait(DEADLINE_SECS) == 128 + signal.SIGHUP
    assert list(tmp_path.iterdir()) == []
    until(lambda: tool is None or not processes.is_same(tool), "py-spy is gone")
    assert job.poll() is None


def test_why_a_process_cannot_be_read(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = start("/bin/sleep", "1000")
    process = seen(job)
    refused = tools.Result(1, "", "Error: Permission Denied: Try running again with sudo")
    real = processes.read
    scope = "/proc/sys/kernel/yama/ptrace_scope"
    monkeypatch.setattr(processes, "read", lambda p: b"1\n" if p == scope else real(p))
    why = tools.failure("py-spy", process, refused)
    assert "ptrace_scope = 1" in why.reason and "sysctl" in why.remedy
    slow = tools.run(["/bin/sleep", "1000"], 0.1)
    assert slow.code is None and "no answer" in tools.failure("py-spy", process, slow).reason
    assert tools.run([str(tmp_path / "none")], 1.0).code == -1
    for text in ("", "[]", "{}", '[{"frames": [{}]}]', "[1]", "null"):
        assert stacks._threads(text) is None
    job.kill()
    job.wait()
    assert tools.failure("py-spy", process, refused).reason == "the process has ended"
