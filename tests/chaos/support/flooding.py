"""Shared parts of the flood tests: connections that read or send too little, and measurements of
the effect on other clients.
"""

import contextlib
import json
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from supervisor_process import UID, SupervisorProcess, req_id, rss, shell, spec

OTHER = "Flooded2"
MIB = 1 << 20


def metrics(site: SupervisorProcess) -> dict[str, Any]:
    answer = site.ask("GET", "/api/metrics")
    assert answer.code == 200, answer
    said: dict[str, Any] = answer.json()
    return said


class Memory:
    """Peak memory of these processes while observed, relative to the start."""

    def __init__(self, **pids: int) -> None:
        self._pids, self._before = pids, {name: rss(pid) for name, pid in pids.items()}
        self._most = dict(self._before)

    def look(self) -> None:
        self._most = {name: max(self._most[name], rss(pid)) for name, pid in self._pids.items()}

    def grown(self) -> dict[str, float]:
        """Return the growth by process in MiB."""
        return {name: (self._most[name] - self._before[name]) / MIB for name in self._pids}


def p99(secs: Sequence[float]) -> float:
    return statistics.quantiles(secs, n=100)[98]


def stolen() -> list[float]:
    """Return the steal time of each processor in seconds."""
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    return [
        int(line[8]) / os.sysconf("SC_CLK_TCK")
        for line in lines
        if line[0].startswith("cpu") and line[0] != "cpu"
    ]


def polled(
    site: SupervisorProcess,
    run: dict[str, Any],
    secs: float,
    each: Callable[[], None] = lambda: None,
) -> list[float]:
    """Poll the status of this run for `secs`. Return the duration of each request, less the steal
    time.
    """
    took: list[float] = []
    deadline = time.monotonic() + secs
    while time.monotonic() < deadline or len(took) < 100:
        begun, before = time.monotonic(), stolen()
        site.status(run)
        whole = time.monotonic() - begun
        took.append(
            max(0.0, whole - max(now - then for now, then in zip(stolen(), before, strict=True)))
        )
        each()
        time.sleep(0.005)
    return took


def served(site: SupervisorProcess, secs: float = 60.0) -> None:
    """Check that another user's run completes and is reported correctly."""
    run = spec(["/bin/true"], OTHER)
    assert site.finished(run, secs)["state"] == "completed"


@contextlib.contextmanager
def connections(
    site: SupervisorProcess, n: int, text: Callable[[int], bytes], receive_bytes: int | None = None
) -> Iterator[list[socket.socket]]:
    """Open `n` sockets to the supervisor, each of which sends its text and reads nothing."""
    host, _, port = site.url.removeprefix("http://").partition(":")
    sockets: list[socket.socket] = []
    try:
        for i in range(n):
            s = socket.socket()
            sockets.append(s)
            if receive_bytes is not None:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            s.settimeout(20)
            s.connect((host, int(port)))
            s.sendall(text(i))
        yield sockets
    finally:
        for s in sockets:
            s.close()


def request(
    site: SupervisorProcess,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> bytes:
    """Return the bytes of an HTTP request."""
    data = b"" if body is None else json.dumps(body).encode()
    said = {
        "Host": "x",
        "Authorization": "Bearer " + site.token,
        "Content-Length": str(len(data)),
        **(headers or {}),
    }
    return (
        f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in said.items()) + "\r\n"
    ).encode() + data


class Trickle:
    """Sends a little data to each of these sockets repeatedly, until closed. ended: sockets closed
    by the other side.
    """

    def __init__(
        self, sockets: Sequence[socket.socket], piece: Callable[[int], bytes], pause: float = 0.05
    ) -> None:
        self._sockets, self._piece, self._pause = dict(enumerate(sockets)), piece, pause
        self._over = threading.Event()
        self.ended = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Trickle":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        n = 0
        while not self._over.wait(self._pause):
            for key, s in list(self._sockets.items()):
                try:
                    s.sendall(self._piece(n))
                except OSError:
                    del self._sockets[key]
                    self.ended += 1
                n += 1


def bulk(site: SupervisorProcess, runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    replies: list[dict[str, Any]] = site.post("run-many", reqId=req_id(), runs=list(runs))["runs"]
    return replies


__all__ = [
    "MIB",
    "OTHER",
    "UID",
    "Memory",
    "Trickle",
    "bulk",
    "connections",
    "metrics",
    "p99",
    "polled",
    "request",
    "served",
    "shell",
]
