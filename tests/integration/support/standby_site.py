"""A site with several supervisors that fail, and clients whose answers are checked."""

import contextlib
import http.client
import json
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

from job_history import Request, violation
from supervisor_fork_server import ForkedProcess
from supervisor_process import SupervisorProcess, jid_of, req_id, shell, until

#: A takeover within this time is what docs/store.md promises. Tests have more: the machine is busy.
PROMISED_SECS, DEADLINE_SECS = 10.0, 60.0

Process = subprocess.Popen[bytes] | ForkedProcess
Connect = Callable[[dict[str, Any]], http.client.HTTPConnection]


def direct(named: dict[str, Any]) -> http.client.HTTPConnection:
    """Connect to the address in client.json."""
    return http.client.HTTPConnection(named["url"].removeprefix("http://"), timeout=10)


class Supervisors:
    """Supervisors of one root. `site` sends requests to the one that the root names."""

    def __init__(self, site: SupervisorProcess, connect: Connect = direct) -> None:
        """connect: returns a connection to the supervisor with that entry in client.json."""
        self.connect = connect
        self.site, self.urls, self._all = site, dict[int, str](), list[Process]()
        self.clients: Clients | None = None
        #: seconds from each fault to the first answer of another supervisor
        self.took: list[float] = []

    def start(self, *more: str) -> Process:
        """Start a supervisor; return when it serves or stands by."""
        return self.started(self.site.fork_or_launch(*more))

    def started(self, process: Process) -> Process:
        self._all.append(process)
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line.startswith("jobscribe ready at "), (line, self.site.log()[-3000:])
        self.urls[process.pid] = line.split()[3]
        return process

    def serving(self, other_than: int | None = None) -> int:
        """Return the pid of the supervisor that serves, once it answers and is not `other_than`."""

        def look() -> int | None:
            self.site.read_address()
            named = json.loads((self.site.root / "client.json").read_text())
            if named["pid"] == other_than:
                return None
            with (
                contextlib.suppress(OSError, http.client.HTTPException),
                contextlib.closing(self.connect(named)) as connection,
            ):
                connection.request("GET", "/readyz")
                return named["pid"] if connection.getresponse().status == 200 else None
            return None

        return int(until(look, "a supervisor serves", DEADLINE_SECS, 0.05))

    def fails(self, process: Process, how: Callable[[], Any]) -> int:
        """Let the holder fail; return the pid of the supervisor that serves then."""
        begun = time.monotonic()
        how()
        pid = self.serving(process.pid)
        self.took.append(time.monotonic() - begun)
        return pid

    def of(self, pid: int) -> Process:
        return next(p for p in self._all if p.pid == pid)

    def ended(self, process: Process) -> int:
        code = process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
        self._all.remove(process)
        return code

    def end(self) -> None:
        if self.clients is not None:
            self.clients.stop()
        for process in list(self._all):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        for process in list(self._all):
            self.ended(process)


class Clients:
    """Clients that submit, cancel and ask for jobs while supervisors fail. `history` has their requests
    by job.
    """

    def __init__(self, site: SupervisorProcess, connect: Connect = direct) -> None:
        self._root, self._token, self._connect = site.root, site.token, connect
        self.history: dict[str, list[Request]] = {}
        self._stop = threading.Event()
        self._runs = [shell(f"sleep 0.{n}; exit {n % 3}") for n in range(1, 10)]
        self._threads = [threading.Thread(target=self._live, args=(n,)) for n in range(2)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def check(self) -> None:
        """Check that the answers about each job are those of one job, in some order, once there are
        some of each kind.
        """

        def told() -> list[Request]:
            found = [r for history in list(self.history.values()) for r in list(history)]
            return [r for r in found if r.end is not None]

        until(
            lambda: len(told()) > 20 and {r.state for r in told()} >= {"pending", "completed"},
            "clients have heard of runs that wait and of runs that ended",
        )
        self.stop()
        for jid, history in self.history.items():
            assert violation(history) is None, (jid, violation(history))
        print(f"answers in an order: {len(told())} about {len(self.history)} jobs")

    def _live(self, seed: int) -> None:
        r = random.Random(seed)
        while not self._stop.is_set():
            number = r.randrange(len(self._runs))
            kind = r.choices(("submit", "status", "cancel"), (2, 6, 1))[0]
            self._ask(kind, self._runs[number])
            self._stop.wait(0.1 * r.random())
            if r.random() < 0.05:
                # the next job of this number: a new one, so that each has one run
                self._runs[number] = shell(f"sleep 0.{number + 1}; exit {number % 3}")

    def _ask(self, kind: Any, run: dict[str, Any]) -> None:
        begin, told = time.monotonic(), None
        body: dict[str, Any] = {"uid": run["uid"], "computeJid": jid_of(run)}
        match kind:
            case "submit":
                path, body = "run-simulation", {"reqId": f"history-{jid_of(run)}", "run": run}
            case "cancel":
                path, body = "run-cancel", {"reqId": req_id(), **body}
            case _:
                path = "run-status"
        named = json.loads((self._root / "client.json").read_text())
        try:
            told = self._answer(named, path, body)
        except ConnectionRefusedError:
            return  # it was not sent
        except (OSError, http.client.HTTPException):
            pass
        end = None if told is None else time.monotonic()
        serial, state = told or (None, None)
        self.history.setdefault(jid_of(run), []).append(Request(kind, begin, end, serial, state))

    def _answer(
        self, named: dict[str, Any], path: str, body: dict[str, Any]
    ) -> tuple[int, str] | None:
        connection = self._connect(named)
        try:
            headers = {"Authorization": "Bearer " + self._token}
            connection.request("POST", "/api/" + path, json.dumps(body).encode(), headers)
            answer = connection.getresponse()
            code, told = answer.status, json.loads(answer.read())
        finally:
            connection.close()
        if code == 404:
            return 0, "missing"
        return (told["computeJobSerial"], told["state"]) if code == 200 else None


def url_of(site: SupervisorProcess) -> list[str]:
    return [a for s in site._sets if s.startswith("store.url") for a in ("--set", s)]
