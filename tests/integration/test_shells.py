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
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
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


def new_token(site: SupervisorProcess, uid: str) -> str:
    scopes = ("--scope", "read", "--scope", "control", "--scope", "debug")
    return operator(site, "auth", "token", "create", "t", "--for", uid, *scopes).strip()


def operator(site: SupervisorProcess, *words: str) -> str:
    """Return the output of a command with access to the root."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "jobscribe.cli", "--root", str(site.root), *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
    ).stdout


def test_a_shell_from_another_machine(
    make_site: Make, terminals: Callable[..., Terminal], tmp_path: Path
) -> None:
    site = make_site().start()
    go = tmp_path / "go"
    run = shell(f"echo begun; while [ ! -e {go} ]; do sleep 0.05; done; echo done", ANN)
    site.post("run-simulation", reqId="request-shell", run=run)
    jid = jid_of(run)
    until(lambda: b"begun" in site.output(run).body, "the job runs")
    ann, bob = new_token(site, ANN), new_token(site, BOB)

    # output, size, resize, Ctrl-C, exit status
    t = terminals(site, ANN, ann, jid)
    t.until("through its agent")
    t.type("stty size; echo of $JOBSCRIBE_ATTEMPT\n")
    t.until("30 100\r\n")
    t.until("of 1\r\n")
    termios.tcsetwinsize(t.slave, (41, 123))
    os.kill(t.process.pid, signal.SIGWINCH)
    t.type("while [ \"$(stty size)\" != '41 123' ]; do sleep 0.05; done; echo re''sized\n")
    t.until("resized\r\n")
    t.type("echo sl''eeps; sleep 1000\n")
    t.until("sleeps\r\n")
    t.type("\x03")
    t.type("echo in''terrupted; exit 7\n")
    t.until("interrupted\r\n")
    assert t.end() == 7, t.said

    # another user
    said = []
    for name in (jid, f"{ANN}-abcdefgh-command"):
        b = terminals(site, BOB, bob, name)
        assert b.end() != 0
        said.append(b.said.replace(name, "JID"))
    assert said[0] == said[1], said

    # the command is ended by a signal
    t = terminals(site, ANN, ann, jid)
    t.until("through its agent")
    t.type("echo re''ady\n")
    t.until("ready\r\n")
    t.process.send_signal(signal.SIGTERM)
    assert t.end() == 128 + signal.SIGTERM

    # the supervisor is killed
    t = terminals(site, ANN, ann, jid)
    t.until("through its agent")
    t.type("echo re''ady\n")
    t.until("ready\r\n")
    site.stop(signal.SIGKILL)
    assert t.end() not in (0, 7)
    assert "The job goes on" in t.said and f"Attach again: jobscribe job shell {jid}" in t.said
    site.start()
    until(lambda: site.status(run)["state"] == "running", "the job goes on")
    deadline = time.monotonic() + 30
    while True:  # its agent connects again
        t = terminals(site, ANN, ann, jid)
        until(
            lambda t=t: "through its agent" in t.read() or t.process.poll() is not None,
            "the command answers",
        )
        if "through its agent" in t.said or time.monotonic() > deadline:
            break
    t.type("exit 5\n")
    assert t.end() == 5, t.said
    go.touch()
    until(lambda: site.status(run)["state"] == "completed", "the job ends")

    kinds = [e for e in operator(site, "audit", "--json").splitlines() if "shell" in e]
    assert sum('"shellOpened"' in k for k in kinds) >= 4, kinds
    closed = [k for k in kinds if '"shellClosed"' in k]
    assert any('"code":7,' in k for k in closed) and any('"code":5,' in k for k in closed), closed
