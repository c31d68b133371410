"""Shells in tasks through a real supervisor and a real agent, from a terminal of the user with an API
token only.
"""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shell_user import ShellUser, check_stranger, client_of
from supervisor_process import PYTHON_PATH, SupervisorProcess, jid_of, shell, until

Make = Callable[..., SupervisorProcess]
ANN, BOB = "ann00001", "bob00001"


class Terminal:
    """A command line in a terminal."""

    def __init__(self, site: SupervisorProcess, uid: str, token: str, *words: str) -> None:
        file = site.place / f"token-{uid}"
        file.write_text(token)
        file.chmod(0o600)
        env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")} | {
            "PYTHONPATH": PYTHON_PATH,
            "TERM": "xterm",
        }
        assert site.url is not None
        argv = [sys.executable, "-P", "-m", "jobscribe.cli", "--url", site.url]
        argv += ["--token-file", str(file), "job", "shell", *words]
        self.master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (30, 100))
        self.mode = termios.tcgetattr(self.slave)
        enter = 'exec <>"$0" >&0 2>&0; exec "$@"'  # its controlling terminal
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", enter, os.ttyname(self.slave), *argv],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=env,
        )
        os.set_blocking(self.master, False)
        self.said = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def read(self) -> str:
        with contextlib.suppress(BlockingIOError):
            self.said += os.read(self.master, 1 << 16).decode(errors="replace")
        return self.said

    def until(self, pattern: str) -> None:
        """Wait for output, and forget the output before its end."""
        found = until(lambda: re.search(pattern, self.read()), f"{pattern} in {self.said!r}")
        self.said = self.said[found.end() :]

    def end(self) -> int:
        """Wait for the end. Return the exit status. The terminal has its mode again."""
        until(lambda: (self.read(), self.process.poll())[1] is not None, "the command ends")
        self.read()
        assert termios.tcgetattr(self.slave) == self.mode
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminals() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_(*args: str | SupervisorProcess) -> Terminal:
        opened.append(Terminal(*args))  # type: ignore[arg-type]
        return opened[-1]

    yield open_
    for terminal in opened:
        terminal.close()


def test_a_shell_from_another_machine(
    make_site: Make, terminals: Callable[..., Terminal], tmp_path: Path
) -> None:
    """Size, resize, Ctrl-C and exit status; strangers; a command that is ended; a killed supervisor.
    Each shell is on record.
    """
    site = make_site().start()
    go = tmp_path / "go"
    run = shell(f"echo begun; while [ ! -e {go} ]; do sleep 0.05; done; echo done", ANN)
    site.post("run-simulation", reqId="request-shell", run=run)
    jid = jid_of(run)
    made = site.post("token-create", uid=ANN, name="t", scopes=["read", "control", "debug"])
    until(lambda: b"begun" in site.output(run).body, "the job runs")
    t, ended, lost = (terminals(site, ANN, made["secret"], jid) for _ in range(3))
    t.until("relayed by the supervisor")
    t.type("stty size; echo of $JOBSCRIBE_ATTEMPT\n")
    t.until("30 100\r\n")
    t.until("of 1\r\n")
    termios.tcsetwinsize(t.slave, (41, 123))
    os.kill(t.process.pid, signal.SIGWINCH)
    t.type("while [ \"$(stty size)\" != '41 123' ]; do sleep 0.05; done; echo re''sized\n")
    t.until("resized\r\n")
    # the process in the foreground says so itself, so that the signal is for it
    t.type("sh -c \"echo sl''eeps; exec sleep 1000\"\n")
    t.until("sleeps\r\n")
    t.type("\x03")
    t.type("echo in''terrupted; exit 7\n")
    t.until("interrupted\r\n")
    assert t.end() == 7, t.said

    check_stranger(site, BOB, jid, f"{ANN}-abcdefgh-command")
    for each in (ended, lost):
        each.until("relayed by the supervisor")
        each.type("echo re''ady\n")
        each.until("ready\r\n")
    ended.process.send_signal(signal.SIGTERM)
    assert ended.end() == 128 + signal.SIGTERM

    site.stop(signal.SIGKILL)
    site.start()
    until(lambda: site.status(run)["state"] == "running", "the job goes on")
    with client_of(site, ANN) as ann:
        again = ShellUser(ann, jid)
        again.type("exit 5\n")
        assert again.end()["code"] == 5
    assert lost.end() not in (0, 7)
    assert "The job goes on" in lost.said
    assert f"Attach again: jobscribe job shell {jid}" in lost.said
    go.touch()
    until(lambda: site.status(run)["state"] == "completed", "the job ends")
    events = [event["event"] for event in site.post("audit")["events"]]
    opened = {e["shell"] for e in events if e["type"] == "ShellOpened"}
    closed = {e["shell"]: e["code"] for e in events if e["type"] == "ShellClosed"}
    assert len(opened) == 4 and {5, 7} <= set(closed.values()) and set(closed) < opened, events
