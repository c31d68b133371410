"""docs/site-setup.md: its commands make a site, from nothing, and a user of it works with a token."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import supervisor_process
import tornado.testing
from supervisor_process import texts_below, until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "site-setup.md"
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def free_port() -> int:
    socket, port = tornado.testing.bind_unused_port()
    socket.close()
    return port


class Walk:
    """A shell that runs the blocks of the page. place: stands for /srv/jobscribe."""

    def __init__(self, place: Path) -> None:
        self.place, self.port, http = place, free_port(), free_port()
        self._names = {
            "/srv/jobscribe": str(place),
            "8443": str(self.port),
            "[supervisor]\n": f"[supervisor]\nport = {http}\n",
        }
        (place / "bin").mkdir()
        command = place / "bin" / "jobscribe"
        python = supervisor_process.PYTHON_PATH
        command.write_text(
            f'#!/bin/sh\nPYTHONPATH={python} exec {sys.executable} -m jobscribe.cli "$@"\n'
        )
        command.chmod(0o755)
        self._state = place / "state"
        self._state.write_text(f"cd {place}\n")

    def run(self, block: str) -> str:
        for name, real in self._names.items():
            block = block.replace(name, real)
        script = f'. {self._state}\n{block}\n{{ export -p; echo cd "$PWD"; }} > {self._state}\n'
        env = {k: v for k, v in os.environ.items() if not k.startswith(("JOBSCRIBE_", "XDG_"))}
        path = f"{self.place}/bin:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", script],
            env=env | {"HOME": str(self.place), "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout

    def stop(self) -> None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            os.kill(int((self.place / "etc" / "supervisor.pid").read_text()), signal.SIGTERM)


@pytest.fixture
def walk() -> Iterator[Walk]:
    place = Path(tempfile.mkdtemp(prefix="site-"))
    made = Walk(place)
    yield made
    made.stop()
    until(lambda: not processes_below(place), "nothing runs any more", 20)
    shutil.rmtree(place)


def processes_below(place: Path) -> list[str]:
    """Return the command lines that name the folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(place) in line:
                found.append(line)
    return found


def test_the_commands_make_a_site(walk: Walk) -> None:
    _, _, _, started, token, user, operator = map(walk.run, _BLOCK.findall(PAGE.read_text()))
    assert started == "ok\n" and token == ""
    me, *_, hello, ended, counted, why = user.splitlines()
    assert me.startswith(f"annUser1 at https://127.0.0.1:{walk.port}, role user"), user
    assert [hello, ended, counted] == ["hello from the site", "exit 3", "counting"]
    assert why.endswith("failed with exit code 3")
    audit, *tokens = operator.splitlines()
    assert "acted for annUser1: token-create" in audit and "laptop" in tokens[-1]
    etc = walk.place / "etc"
    usage = json.loads((etc / "usage.json").read_text())
    assert "annUser1" in json.dumps(usage) and "annUser1" in (etc / "disk.txt").read_text()
    secrets = ((etc / "secret").read_bytes().strip(), (etc / "ann.token").read_bytes().strip())
    left = texts_below(*(walk.place / "data" / f for f in ("log", "db", "agent", "supervisor-job")))
    assert left and not [name for name, text in left.items() if any(s in text for s in secrets)]
