"""A root with a real supervisor, started as a user starts it: `jobscribe up` in a separate process,
forked from a process with the same imports (see `supervisor_fork_server`).

Processes are found by their title or by the marks that jobs carry, and are ended by pid.
"""

import contextlib
import ctypes
import http.client
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scheduling_noise import floor
from supervisor_fork_server import ForkedProcess, can_fork, fork_server

from jobscribe.protocol.ids import AgentKey
from jobscribe.runtime import processes
from jobscribe.runtime.log.session_folders import log_files

#: Limit of waits that are no guarantee. Beside eight busy loops on two processors, they took up to
#: 25 s.
DEADLINE_SECS = 60.0
UID = "SystemU1"
#: Relative paths would change their meaning in a process that changes its directory.
PYTHON_PATH = os.pathsep.join(
    os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p
)
PROFILE = "limits.login_profile_secs"

#: Length of each log excerpt in a failure report, in characters.
SHOWN_CHARS = 4000
_libc = ctypes.CDLL(None, use_errno=True)
_alive: "weakref.WeakSet[SupervisorProcess]" = weakref.WeakSet()
_numbers = itertools.count(1)
_naps = itertools.count(1)


def until(
    true: Callable[[], Any], what: str, secs: float = DEADLINE_SECS, pause: float | None = None
) -> Any:
    """Wait until `true` returns a true value and return that value. Fail at the deadline.

    pause: seconds between two calls. The default grows from 0.02 to 0.1: a look costs processor
    time that the other tests need.
    """
    deadline = time.monotonic() + secs
    growing = 0.02
    while not (found := true()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {secs:g} s: {what}")
        time.sleep(growing if pause is None else pause)
        growing = min(growing * 1.25, 0.1)
    return found


def add_logs(report: pytest.TestReport, *others: Path) -> None:
    """Append to the report of a failed test the ends of the logs of all open sites and of `others`.
    Called from the conftest of test folders.
    """
    if not report.failed:
        return
    for site in sorted(_alive, key=lambda s: s.place):
        report.sections.append(
            (f"log of the supervisor in {site.place}", site.log()[-SHOWN_CHARS:])
        )
        report.sections += [
            (f"{path}", _end_of(path)) for path in sorted(site.root.glob("agent/*/agent.log"))[-4:]
        ]
    report.sections += [(f"{path}", _end_of(path)) for path in others]


def _end_of(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-SHOWN_CHARS:]
    except OSError as e:
        return f"({e.strerror})"


def texts_below(*folders: Path, most_bytes: int = 1 << 28) -> dict[Path, bytes]:
    """Return the content of all plain files up to `most_bytes`. Files that are removed or replaced
    meanwhile are left out.
    """
    found: dict[Path, bytes] = {}
    for path in (
        Path(top, name) for folder in folders for top, _, names in os.walk(folder) for name in names
    ):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= most_bytes:
                found[path] = path.read_bytes()
    return found


def spec(command: Sequence[str], uid: str = UID, **fields: Any) -> dict[str, Any]:
    """Return a run in a slot of its own. fields: fields of RunSpec, as in JSON."""
    return {
        "uid": uid,
        "simulationId": f"s{next(_numbers):07d}",
        "command": list(command),
        **fields,
    }


def shell(text: str, uid: str = UID, **fields: Any) -> dict[str, Any]:
    return spec(["/bin/sh", "-c", text], uid, **fields)


def jid_of(run: dict[str, Any]) -> str:
    return f"{run['uid']}-{run['simulationId']}-{run.get('computeModel', 'command')}"


def req_id() -> str:
    return f"request-{next(_numbers)}"


class Answer(NamedTuple):
    code: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def run_command(
    *words: str,
    given: str = "",
    cwd: Path | str = "/",
    timeout: float = 100.0,
    **env: str,
) -> "subprocess.CompletedProcess[str]":
    """Run a jobscribe command to its end, forked from a process with its imports done. given: its
    stdin. env: added to its variables, of which it inherits no settings.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
    env = inherited | {"PYTHONPATH": PYTHON_PATH} | env
    assert can_fork(sys.executable, {"PYTHONPATH": env["PYTHONPATH"]}, PYTHON_PATH)
    return fork_server(PYTHON_PATH).run(words, env, str(cwd), given, timeout)


def _is_closed(connection: http.client.HTTPConnection) -> bool:
    """Return whether the other end has closed a connection without a pending answer."""
    if connection.sock is None:
        return False
    poll = select.poll()  # unlike select(), for any number of descriptors
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


class SupervisorProcess:
    """A root and its supervisor.

    sets: `--set` settings. env: added to the supervisor's environment. web: start the front end
    too. obeys_permissions: drop root's power over all files if the tests run as root. python:
    another interpreter. who: the unix user to become (only if the tests run as root); None: the
    user who runs the tests. disk: the root lies on a disk also if there is memory for it
    (etc/test_tmp.sh).
    """

    def __init__(
        self,
        sets: Sequence[str] = (),
        *,
        env: dict[str, str] | None = None,
        obeys_permissions: bool = False,
        command: str = "up",
        python: str = sys.executable,
        web: bool = False,
        who: int | None = None,
        disk: bool = False,
    ) -> None:
        memory = os.environ.get("TEST_MEMORY", "/tmp")
        self.place = Path(tempfile.mkdtemp(prefix="sys-", dir="/tmp" if disk else memory)).resolve()
        if who is not None:
            os.chown(self.place, who, who)
        self.root = self.place / "r"
        # do not run the login profile of the user who runs the tests: it would run many times at
        # once and be killed midway
        profile = () if any(s.startswith(PROFILE) for s in sets) else (f"{PROFILE}=0",)
        self._sets, self._env, self._command, self._python = (
            (*sets, *profile),
            env or {},
            command,
            python,
        )
        self._web = web
        self._before: Callable[[], None] | None = (
            _give_up_power_over_files if obeys_permissions and os.geteuid() == 0 else None
        )
        self._who = who
        if who is not None:
            self._before = lambda: become(who)
            self._env = {"HOME": str(self.place), **self._env}
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._connection: http.client.HTTPConnection | None = None
        self.url, self.token, self.front = "", "", ""
        _alive.add(self)

    # ---- the supervisor

    def add_environment(self, **variables: str) -> None:
        """Add variables to the environment of supervisors that start from now on."""
        self._env |= variables

    def arguments(self) -> list[str]:
        sets = [a for s in self._sets for a in ("--set", s)]
        alone = ["--no-web"] if self._command == "up" and not self._web else []
        return [
            self._python,
            "-m",
            "jobscribe.cli",
            "--root",
            str(self.root),
            self._command,
            *alone,
            "--port",
            "0",
            *sets,
        ]

    def launch(self, *more: str) -> subprocess.Popen[bytes]:
        """Start a supervisor process and return at once. The start may fail."""
        with (self.place / "up.log").open("ab") as log:
            return subprocess.Popen(
                [*self.arguments(), *more],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment(),
                cwd="/",
                preexec_fn=self._before,
            )

    def _environment(self) -> dict[str, str]:
        return (
            {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
            | {"PYTHONPATH": PYTHON_PATH}
            | self._env
        )

    def fork_or_launch(self, *more: str) -> "subprocess.Popen[bytes] | ForkedProcess":
        """Start a supervisor process as `start` does, and return at once."""
        python, *args = self.arguments()
        if args[:2] != ["-m", "jobscribe.cli"]:
            return self.launch(*more)
        if self._before is not None and self._who is None:  # what it gives up, only exec takes away
            return self.launch(*more)
        if not can_fork(python, self._env, PYTHON_PATH):
            return self.launch(*more)
        args = [*args[2:], *more]
        with (self.place / "up.log").open("ab") as log:
            return fork_server(PYTHON_PATH).fork(args, self._environment(), log.fileno(), self._who)

    def command(self, *words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run a jobscribe command with access to this root. options: see `run_command`."""
        return run_command("--root", str(self.root), *words, **options)

    def start(self) -> "SupervisorProcess":
        """Start the supervisor and return when it is ready. A fork server starts it, unless it
        needs another interpreter or variable at its start, or gives up capabilities.
        """
        assert self.process is None
        floor()
        self.process = self.fork_or_launch()
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith("jobscribe ready at "), (line, self.log()[-3000:])
        self.read_address()
        return self

    def read_address(self) -> None:
        said = json.loads((self.root / "client.json").read_text())
        self.url, self.token, self.front = said["url"], said["token"], said["front"] or ""
        self._disconnect()

    def stop(self, number: int = signal.SIGTERM, secs: float = 20.0) -> int:
        """End the supervisor. Return its exit code."""
        assert self.process is not None
        self._disconnect()
        self.process.send_signal(number)
        code = self.process.wait(secs)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def log(self) -> str:
        """Return the text that supervisor, keepers and agents wrote to the supervisor's stderr."""
        path = self.place / "up.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logged(self, name: str = "supervisor") -> str:
        """Return the text of all log sessions of the supervisor ("server": front end). Each start
        begins a new session.
        """
        return "".join(
            Path(file).read_text(errors="replace") for file in log_files(str(self.root), name)
        )

    # ---- processes of this site

    def titled(self, name: str) -> list[int]:
        """Return the pids of the processes with the title `jobscribe <name> <root>`."""
        wanted = f"jobscribe {name} {self.root}".encode()
        pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
        return [
            pid
            for pid in pids
            if _cmdline(pid).rstrip(b"\0") == wanted
            and (found := processes.find(pid)) is not None
            and not found.over
        ]

    def keeper(self, uid: str = UID, kind: str = "sequential") -> dict[str, Any]:
        said: dict[str, Any] = json.loads(
            (self.root / "agent" / str(self.agent_key(uid, kind)) / "keeper.json").read_text()
        )
        return said

    def agent_key(self, uid: str = UID, kind: str = "sequential") -> AgentKey:
        return AgentKey("local", kind, uid, "localhost")

    def agent_pid(self, uid: str = UID) -> int:
        """Return the pid of the running agent of this user."""
        keeper = self.keeper(uid)["pid"]

        def look() -> int | None:
            found = (processes.find(pid) for pid in self.titled("agent"))
            return next((p.pid for p in found if p is not None and p.parent == keeper), None)

        return int(until(look, "the agent runs"))

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process of this site. After SIGKILL, wait until it is gone."""
        ticks = processes.start_ticks(pid)
        os.kill(pid, number)
        if number == signal.SIGKILL and ticks is not None:
            until(lambda: not processes.alive(pid, ticks), f"process {pid} is gone")

    def everybody(self) -> dict[int, bytes]:
        """Return all processes that have this place in their arguments or environment, by pid."""
        needle = str(self.place).encode()
        out = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or (pid := int(entry)) == os.getpid():
                continue
            line = _cmdline(pid)
            if needle in line or needle in processes._read(f"/proc/{entry}/environ"):
                found = processes.find(pid)
                if found is not None and not found.over:
                    out[pid] = line
        return out

    def end(self) -> dict[int, bytes]:
        """End all processes of this site, by pid. Return the processes that outlived their keeper
        and had to be killed; there must be none.
        """
        self._disconnect()
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGCONT)
                self.process.terminate()
                try:
                    self.process.wait(15)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None
        # include the keepers of remote agents, as on a cluster whose files are in this place
        for keeper in [
            pid for pid, line in self.everybody().items() if line.startswith(b"jobscribe keeper ")
        ]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGCONT)
                os.kill(keeper, signal.SIGTERM)
        deadline = time.monotonic() + 15
        while (left := self.everybody()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):  # already gone
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.place, ignore_errors=True)
        return left

    # ---- requests

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connection(self, timeout: float = 40.0) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=timeout)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send a request on the kept connection. `headers` replaces the secret's headers."""
        if self._connection is not None and _is_closed(self._connection):
            self._disconnect()  # the supervisor closes connections that are idle for long
        if self._connection is None:
            self._connection = self.connection()
        sent = {"Authorization": "Bearer " + self.token} if headers is None else headers
        try:
            self._connection.request(method, path, body, sent)
            reply = self._connection.getresponse()
            return Answer(reply.status, reply.headers, reply.read())
        except (OSError, http.client.HTTPException):
            self._disconnect()
            raise

    def post(self, path: str, **body: Any) -> Any:
        """Return the answer to `/api/<path>`, which must be a success."""
        answer = self.ask("POST", "/api/" + path, json.dumps(body).encode())
        assert answer.code == 200, (path, answer.code, answer.body)
        return answer.json()

    def submit(self, run: dict[str, Any], request: str | None = None) -> dict[str, Any]:
        reply: dict[str, Any] = self.post("run-simulation", reqId=request or req_id(), run=run)
        return reply

    def status(self, run: dict[str, Any], **fields: Any) -> dict[str, Any]:
        reply: dict[str, Any] = self.post(
            "run-status", uid=run["uid"], computeJid=jid_of(run), **fields
        )
        return reply

    def cancel(self, run: dict[str, Any], **fields: Any) -> dict[str, Any]:
        reply: dict[str, Any] = self.post(
            "run-cancel",
            **{"reqId": req_id(), "uid": run["uid"], "computeJid": jid_of(run), **fields},
        )
        return reply

    def wait(self, run: dict[str, Any], secs: float = DEADLINE_SECS) -> dict[str, Any]:
        """Wait until the run has ended and left nothing behind. Return the status."""
        deadline = time.monotonic() + secs
        while not (reply := self.status(run, waitSecs=5))["over"]:
            if time.monotonic() > deadline:
                pytest.fail(f"not over within {secs:g} s: {reply}\n{self.log()[-3000:]}")
        return reply

    def finished(self, run: dict[str, Any], secs: float = DEADLINE_SECS) -> dict[str, Any]:
        self.submit(run)
        return self.wait(run, secs)

    def running(self, run: dict[str, Any], secs: float = DEADLINE_SECS) -> dict[str, Any]:
        """Wait until the run is running. Return the status."""

        def look() -> dict[str, Any] | None:
            said = self.status(run)
            assert not said["over"], said
            return said if said["state"] == "running" and said["known"] else None

        found: dict[str, Any] = until(look, f"{jid_of(run)} runs", secs)
        return found

    def output(self, run: dict[str, Any], stream: str = "stdout", **fields: Any) -> Answer:
        """Return one piece of an output stream."""
        body = {"uid": run["uid"], "computeJid": jid_of(run), "stream": stream, **fields}
        answer = self.ask("POST", "/api/job-log", json.dumps(body).encode())
        assert answer.code == 200, answer
        return answer

    def story(self, run: dict[str, Any]) -> list[str]:
        """Return the types of the job's events, oldest first."""
        return [
            e["event"]["type"]
            for e in self.post("job-story", uid=run["uid"], computeJid=jid_of(run))["events"]
        ]

    def ready(self) -> dict[str, Any]:
        """Return the readiness with the counters, which only a client with the secret gets."""
        said: dict[str, Any] = self.ask("GET", "/readyz").json()
        return {**said, "counters": self.ask("GET", "/api/metrics").json()["counters"]}


def _give_up_power_over_files() -> None:
    """Drop CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH for all programs that this process executes."""
    for capability in (1, 2):
        if _libc.prctl(24, capability, 0, 0, 0) != 0:  # PR_CAPBSET_DROP
            raise OSError("a capability cannot be dropped")


def become(who: int) -> None:
    os.setgroups([])
    os.setgid(who)
    os.setuid(who)


def _cmdline(pid: int) -> bytes:
    return processes._read(f"/proc/{pid}/cmdline")


def open_files(pid: int) -> list[str]:
    """Return what the descriptors of a process are. It may close some of them meanwhile."""
    out: list[str] = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            out.append(os.readlink(descriptor))
    return out


def rss(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no memory")


def naps(nap: str) -> list[int]:
    """Return the pids of all `sleep <nap>` processes on this machine, of all users."""
    return napping([nap])[nap]


def napping(all_of: Iterable[str]) -> dict[str, list[int]]:
    """Return what `naps` does for each of several sleep times, from one look at the machine."""
    found: dict[bytes, list[int]] = {nap.encode(): [] for nap in all_of}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        pid = int(entry)
        # the title of our processes ends with hundreds of NUL
        for nap in found.keys() & _cmdline(pid).rstrip(b"\0").split(b"\0"):
            process = processes.find(pid)
            if process is not None and not process.over:
                found[nap].append(pid)
    return {nap.decode(): pids for nap, pids in found.items()}


def fresh_nap() -> str:
    """Return a sleep time in seconds that no other process uses."""
    return f"{2000 + next(_naps) % 1000}.{os.getpid()}"


@contextlib.contextmanager
def ended(
    late: Callable[[SupervisorProcess], list[str]] = lambda _: [],
) -> Iterator[list[SupervisorProcess]]:
    """Yield a list for sites, and end each of them afterwards, also after an error.

    late: returns complaints about a site while it still runs.
    """
    sites: list[SupervisorProcess] = []
    said, left = [], {}
    try:
        yield sites
        said = [sentence for site in sites for sentence in late(site)]
    finally:
        for site in sites:
            left.update(site.end())
    # explicit texts: pytest does not rewrite assertions of a module that tests share
    assert left == {}, f"processes outlived their keeper: {left}"
    assert said == [], "a loop was held: " + "\n".join(said)
