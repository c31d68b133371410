"""A jobscribe supervisor on a fresh root, and its HTTP API over one persistent connection."""

import contextlib
import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobscribe.client.api.random_ids import simulation_id

SLOTS = 2


class Http:
    """One persistent connection."""

    def __init__(self, port: int, token: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._headers = {"Authorization": "Bearer " + token}

    def read(self, path: str, body: dict[str, Any]) -> tuple[bytes, http.client.HTTPMessage]:
        self._connection.request("POST", path, json.dumps(body), self._headers)
        reply = self._connection.getresponse()
        said = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {said[:1000]!r}")
        return said, reply.headers

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.read(path, body)[0])
        return said


class Jobscribe:
    def __init__(self, root: Path, pid: int, ready_secs: float) -> None:
        self.root, self.pid, self.ready_secs = root, pid, ready_secs
        where = json.loads((root / "client.json").read_text())
        self.uid = where["uid"]
        self.http = Http(int(where["url"].rsplit(":", 1)[1]), where["token"])

    def ask(self, operation: str, **body: Any) -> dict[str, Any]:
        return self.http.post(f"/api/{operation}", body)

    def spec(
        self, command: list[str], uid: str | None = None, sid: str | None = None
    ) -> dict[str, Any]:
        return {
            "uid": uid or self.uid,
            "simulationId": sid or simulation_id(),
            "command": command,
        }

    def submit(self, command: list[str], uid: str | None = None) -> dict[str, Any]:
        return self.ask("run-simulation", reqId=secrets.token_hex(12), run=self.spec(command, uid))

    def array(self, command: list[str], indices: str, sid: str | None = None) -> str:
        """Submit an array. Return its simulationId."""
        run = self.spec(command, sid=sid)
        self.ask("run-array", reqId=secrets.token_hex(12), run=run, indices=indices)
        sid = run["simulationId"]
        assert isinstance(sid, str)
        return sid

    def wait(self, reply: dict[str, Any]) -> dict[str, Any]:
        while not reply["over"]:
            uid, jid = reply["computeJid"].split("-")[0], reply["computeJid"]
            reply = self.ask("run-status", uid=uid, computeJid=jid, waitSecs=30)
        return reply


@contextlib.contextmanager
def jobscribe(root: Path, *settings: str) -> Iterator[Jobscribe]:
    sets = [a for s in (f"slots.local_sequential={SLOTS}", *settings) for a in ("--set", s)]
    command = ["-m", "jobscribe.cli", "up", "--no-web", "--root", str(root), "--port", "0"]
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command, *sets],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield Jobscribe(root, process.pid, time.perf_counter() - began)
    finally:
        process.terminate()
        process.wait()
        for path in root.glob("agent/*/keeper.json"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(path.read_text())["pid"], signal.SIGTERM)


def pss_mib(pid: int) -> float:
    """Return the process's memory in MiB: its own pages and its share of shared pages."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return float("nan")
