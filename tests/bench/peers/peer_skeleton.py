"""The bare skeleton with the shape of jobscribe (tests/bench/skeleton.py): a floor, not a peer."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import skeleton
from local_site import Http


class Ids:
    def __init__(self, http: Http) -> None:
        self._http = http

    def submit(self) -> int:
        return self.bulk(1)[0]

    def bulk(self, n: int) -> list[int]:
        ids: list[int] = self._http.post("/submit", {"n": n})["ids"]
        return ids

    def wait(self, handles: list[int]) -> None:
        self._http.post("/wait", {"ids": handles})

    def check(self) -> None:
        """Commands of the skeleton have no status."""


@contextlib.contextmanager
def connected() -> Iterator[Http]:
    program = [sys.executable, skeleton.__file__]
    server = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    agent = subprocess.Popen([*program, "agent", f"ws://127.0.0.1:{port}/agent"])
    try:
        yield Http(port)
    finally:
        for process in (agent, server):
            process.terminate()
            process.wait()


@contextlib.contextmanager
def start(folder: Path) -> Iterator[Ids]:
    with connected() as http:
        yield Ids(http)
