"""docs/site-setup.md: its commands make a site, from nothing, and a user of it works with a token.

As root, site and user are in two network namespaces: two machines with a cable between them.
Otherwise both are here, on loopback.
"""

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


class Machines:
    """Two network namespaces with a cable, for root; else both are this machine. site: address of
    the site's machine. one: why there is only one.
    """

    def __init__(self) -> None:
        self.site, self.one, self._names = "127.0.0.1", "", dict[str, str]()
        try:
            self._connect()
        except (OSError, subprocess.CalledProcessError) as e:
            self.close()
            self.site, self.one, self._names = "127.0.0.1", str(e), {}

    def _connect(self) -> None:
        for which in ("site", "user"):
            name = f"js-{which}-{os.getpid()}"
            ip("netns", "add", name)
            self._names[which] = name
            ip("-n", name, "link", "set", "lo", "up")
        site, user = self._names.values()
        ip("-n", site, "link", "add", "v0", "type", "veth", "peer", "v0", "netns", user)
        self.site = "10.77.0.1"
        for name, address in ((site, self.site), (user, "10.77.0.2")):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "v0")
            ip("-n", name, "link", "set", "v0", "up")

    def on(self, which: str) -> tuple[str, ...]:
        """Return the beginning of a command line on this machine."""
        name = self._names.get(which)
        return () if name is None else ("nsenter", f"--net=/run/netns/{name}")

    def close(self) -> None:
        for name in self._names.values():
            ip("netns", "delete", name)


def ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, timeout=20, stdin=subprocess.DEVNULL)


class Walk:
    """A shell that runs the blocks of the page. place: stands for /srv/jobscribe."""

    def __init__(self, place: Path, machines: Machines) -> None:
        self.place, self.port, self.machines, http = place, free_port(), machines, free_port()
        self._names = {
            "/srv/jobscribe": str(place),
            "8443": str(self.port),
            "127.0.0.1": machines.site,
            "[supervisor]\n": f'[supervisor]\nport = {http}\ntls_ip = "{machines.site}"\n',
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

    def run(self, block: str, machine: str = "site") -> str:
        for name, real in self._names.items():
            block = block.replace(name, real)
        script = f'. {self._state}\n{block}\n{{ export -p; echo cd "$PWD"; }} > {self._state}\n'
        env = {k: v for k, v in os.environ.items() if not k.startswith(("JOBSCRIBE_", "XDG_"))}
        path = f"{self.place}/bin:{os.environ['PATH']}"
        done = subprocess.run(
            [*self.machines.on(machine), "bash", "-eu", "-o", "pipefail", "-c", script],
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
    machines = Machines()
    made = Walk(place, machines)
    yield made
    made.stop()
    until(lambda: not processes_below(place), "nothing runs any more", 20)
    machines.close()
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
    *before, as_user, afterwards = _BLOCK.findall(PAGE.read_text())
    _, _, _, started, token = map(walk.run, before)
    user, operator = walk.run(as_user, "user"), walk.run(afterwards)
    assert started == "ok\n" and token == ""
    me, *_, hello, ended, counted, why = user.splitlines()
    assert me.startswith(f"annUser1 at https://{walk.machines.site}:{walk.port}, role user"), user
    assert [hello, ended, counted] == ["hello from the site", "exit 3", "counting"]
    assert "failed with exit code 3" in why
    audit, *tokens = operator.splitlines()
    assert "acted for annUser1: token-create" in audit and "laptop" in tokens[-1]
    etc = walk.place / "etc"
    usage = json.loads((etc / "usage.json").read_text())
    assert "annUser1" in json.dumps(usage) and "annUser1" in (etc / "disk.txt").read_text()
    secrets = ((etc / "secret").read_bytes().strip(), (etc / "ann.token").read_bytes().strip())
    left = texts_below(*(walk.place / "data" / f for f in ("log", "db", "agent", "supervisor-job")))
    assert left and not [name for name, text in left.items() if any(s in text for s in secrets)]
    if walk.machines.one:
        pytest.skip(f"all passed, but on one machine: no network namespaces ({walk.machines.one})")
