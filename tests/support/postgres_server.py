"""A real PostgreSQL server on a Unix socket for tests (see etc/engines/postgres.sh): one per test
process, or servers of tests that stop and break them. Sites are schemas.
"""

import atexit
import contextlib
import functools
import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENGINE = ROOT / "etc/engines/postgres.sh"
_schemas = itertools.count(1)


class Server:
    """A server with its own data. Skips the test if PostgreSQL is missing."""

    def __init__(self) -> None:
        where = subprocess.run([ENGINE, "where"], capture_output=True, text=True)
        if where.returncode:
            pytest.skip(where.stderr.strip())
        # not below TMPDIR: the path of a socket is short, and another unix user must reach it
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="jspg-", dir="/tmp"))
        atexit.register(self.remove)

    def start(self, *settings: str, within: tuple[str, ...] = ()) -> None:
        """within: a command that runs another one, for example in a network namespace."""
        subprocess.run(
            [*within, ENGINE, "start", self.folder, *settings],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def follow(self, other: "Server", *settings: str) -> None:
        """Copy another server, and start as its streaming replica."""
        subprocess.run(
            [ENGINE, "replica", self.folder, other.folder, *settings],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def promote(self) -> None:
        subprocess.run([ENGINE, "promote", self.folder], check=True)

    def stop(self) -> None:
        subprocess.run([ENGINE, "stop", self.folder], check=True)

    def kill(self) -> None:
        """Kill the server with all its processes."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        while _lives(pid):
            time.sleep(0.01)

    def start_again(self) -> None:
        """Start the server if it does not run, as soon as its old processes have ended."""
        if not (self.folder / "data/postmaster.pid").exists() or not _lives(self.pid):
            deadline = time.monotonic() + 60
            while True:
                try:
                    return self.start()
                except subprocess.CalledProcessError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)

    @property
    def pid(self) -> int:
        return int((self.folder / "data/postmaster.pid").read_text().split()[0])

    def remove(self) -> None:
        if (self.folder / "data").exists():
            subprocess.run([ENGINE, "stop", self.folder], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, schema: str | None = None, user: str = "") -> str:
        """Return the address of a site, by default of a new one."""
        schema = schema or f"site{next(_schemas)}"
        name = f"{user}@" if user else ""
        return f"postgresql://{name}/postgres?host={self.folder}&schema={schema}"

    def url_of_both(self, other: "Server") -> str:
        """Return the address of a new site on this server and its replica: the one that takes writes."""
        hosts = f"{self.folder},{other.folder}&target_session_attrs=read-write"
        return f"postgresql:///postgres?host={hosts}&schema=site{next(_schemas)}"

    def connect(self) -> Any:
        import psycopg

        return psycopg.connect(f"postgresql:///postgres?host={self.folder}", autocommit=True)


def kill(pid: int, number: signal.Signals) -> None:
    """Kill a process of a server; it may have ended."""
    assert pid > 1
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _lives(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@functools.cache
def shared_durable() -> Server:
    """A running server of this process for tests that kill it: its data survives."""
    server = Server()
    server.start()
    return server


@functools.cache
def shared() -> Server:
    """The server of this process. Its data need not survive it, so nothing is synced."""
    server = Server()
    server.start("fsync=off", "full_page_writes=off")
    return server
