"""Real keepers for the tests; the test plays the agent. The fixture ends every keeper and checks
that no process of its jobs is left.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import process_search
import psutil
import pytest
from keeper_process import KeeperProcess

import jobscribe
from jobscribe.protocol.ids import Token, parse_token
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.launch.job_script import identity_variables, job_environment, script
from jobscribe.protocol.launch.keeper_messages import StartOrder
from jobscribe.protocol.launch.message_fields import encode
from jobscribe.protocol.wire.messages import TaskSpec

NOBODY = 65534
_HARNESS = Path(__file__).parent / "support" / "keeper_harness.py"
# `make venv` creates this folder; it prevents imports of another `jobscribe` beside the checkout
_PATH = Path(jobscribe.__file__).parent / ".types"
_numbers = itertools.count(1)


def until(condition: Callable[[], Any], secs: float = 50.0) -> Any:
    """Return the first true value of `condition`; fail the test after `secs` seconds. Jobs compute at
    a low priority, and beside other tests get a tenth of a processor.
    """
    deadline = time.monotonic() + secs
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"nothing came within {secs} s"
        time.sleep(0.01)


class Keeper:
    """A running keeper, as its agent sees it."""

    def __init__(self, place: Path, uid: int, **config: Any) -> None:
        self.place, self.uid = place, uid
        #: a command that runs the keeper, for example in a cgroup
        self.through: tuple[str, ...] = tuple(config.pop("through", ()))
        self.env: dict[str, str] = dict(config.pop("env", {}))
        self.folder = place / "agent"
        self.config = {
            "root": str(place),
            "folder": str(self.folder),
            "agent": {"token": "s3cret-of-the-agent"},
            **config,
        }
        self.process: KeeperProcess
        self.agent: socket.socket
        self.agent_pid = 0
        self.said: list[dict[str, Any]] = []
        self._lines = b""
        self.hello: dict[str, Any] = {}
        #: a number in the arguments of the test's long sleeps; it identifies their processes
        #: without the product's help
        self.nap = f"86400.{os.getpid()}{next(_numbers):04d}"
        self._woken: set[int] = set()

    # ---- processes

    def start(self) -> "Keeper":
        path = self.place / "relay"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        path.chmod(0o777)
        self._listener.settimeout(60)
        log = (self.place / "keeper.log").open("ab")
        reaper = subprocess.Popen(
            [*self.through, sys.executable, str(_HARNESS), str(self.uid), str(path)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(_PATH),
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            | self.env,
        )
        log.close()
        assert reaper.stdin is not None
        reaper.stdin.write(json.dumps(self.config).encode())
        reaper.stdin.close()
        try:
            self.process = KeeperProcess(reaper, self.place)
            return self.accept()
        except BaseException:
            reaper.kill()
            reaper.wait()
            self._listener.close()
            raise

    def accept(self) -> "Keeper":
        """Accept the keeper's next agent."""
        self.agent, _ = self._listener.accept()
        self.agent.settimeout(60)
        self._lines = b""
        self.agent_pid = self.next("relay")["pid"]
        self.hello = self.next("hello")
        return self

    def kill(self) -> None:
        """Kill the keeper with SIGKILL. Its agent ends too, because it reads the end of its socket."""
        self.process.kill()
        self.process.wait()
        self.agent.close()
        self._listener.close()

    def kill_agent(self) -> None:
        os.kill(self.agent_pid, signal.SIGKILL)
        self.agent.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            finally:
                self.process.kill()
                self.process.wait()
        self.agent.close()
        self._listener.close()
        with contextlib.suppress(OSError):  # a killed keeper removed no cgroup
            for family in json.loads((self.folder / "keeper.json").read_text())["cgroups"]:
                os.rmdir(family)
        left = self.naps()
        for p in left:
            p.kill()
        self.process.reaper.wait(60)
        assert not left, f"processes of a job are left: {left}"

    def naps(self) -> list[psutil.Process]:
        """Return live processes with this keeper's number in their arguments, found without the
        product's help.
        """
        out = []
        for pid in process_search.pids_with(self.nap):
            with contextlib.suppress(psutil.NoSuchProcess):
                out.append(psutil.Process(pid))
        return out

    def wake(self) -> None:
        """Wait for a job's long sleep to begin, and end it."""
        sleeping = self.wait_for_sleep()
        self._woken.add(sleeping.pid)
        sleeping.kill()

    def wait_for_sleep(self) -> psutil.Process:
        """Wait for a job's long sleep to begin, and return its process."""
        # a sleep that was just killed may stay visible for a moment
        return until(lambda: [p for p in self.sleepers() if p.pid not in self._woken])[0]  # type: ignore[no-any-return]

    def sleepers(self) -> list[psutil.Process]:
        """Return the processes of `naps` that are `sleep` commands."""
        out = []
        for p in self.naps():
            with contextlib.suppress(psutil.NoSuchProcess):
                if p.cmdline()[:1] == ["sleep"]:
                    out.append(p)
        return out

    def log(self) -> str:
        return (self.place / "keeper.log").read_text()

    # ---- the agent's side

    def send(self, **order: Any) -> None:
        self.agent.sendall(json.dumps(order).encode() + b"\n")

    def next(self, what: str, token: Token | None = None) -> dict[str, Any]:
        """Wait for the first unread message of this kind (and token), and return it."""
        while True:
            for i, message in enumerate(self.said):
                if message["is"] == what and (token is None or message["token"] == str(token)):
                    return self.said.pop(i)
            data = self.agent.recv(65536)
            assert data, f"the keeper closed the link before it said {what}: {self.log()}"
            *lines, self._lines = (self._lines + data).split(b"\n")
            self.said += [json.loads(line) for line in lines]

    def token(self, serial: int | None = None) -> Token:
        return Token("user1234-sim12345-command", serial or 1000 + next(_numbers), 1, "main", 0)

    def run_dir(self, token: Token) -> Path:
        return self.place / f"run-{token.serial}"

    def evidence(self, token: Token) -> Path:
        return self.folder / "run" / token.name

    def order(
        self,
        token: Token,
        shell: str | None = None,
        *,
        command: tuple[str, ...] = (),
        limit: float | None = None,
        grace: float = 3.0,
        core: int = 0,
        run_dir: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        where = run_dir or self.run_dir(token)
        spec = TaskSpec(
            command=command or ("/bin/sh", "-c", str(shell).replace("NAP", self.nap)),
            run_dir=str(where),
            core_bytes=core,
            time_limit_secs=limit,
            grace_secs=grace,
            env=env or {},
        )
        login = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/"}
        identity = identity_variables(token, str(where), self.evidence(token))
        order = StartOrder(
            name=token.name,
            token=str(token),
            run_dir=str(where),
            command=spec.command,
            env={**job_environment(login), **spec.env, **identity},
            script=(script(token, spec, login, self.evidence(token)), ""),
            core=core,
            limit=limit,
            grace=grace,
        )
        return encode(order)

    def launch(self, shell: str | None = None, **more: Any) -> Token:
        token = self.token()
        self.send(**self.order(token, shell, **more))
        return token

    def started(self, shell: str | None = None, **more: Any) -> Token:
        token = self.launch(shell, **more)
        self.next("started", token)
        return token

    def stop(self, token: Token, reason: str = "cancel", grace: float = 3.0) -> None:
        self.send(do="stop", name=token.name, token=str(token), reason=reason, grace=grace)

    def end_of(self, token: Token) -> ExitInfo:
        message = self.next("ended", token)
        assert parse_token(message["token"]) == token
        assert message["state"] == "ended"
        exit_ = msgspec.convert(message["exit"], ExitInfo)
        assert exit_.code is None or exit_.signal is None
        return exit_

    def run(self, shell: str | None = None, **more: Any) -> ExitInfo:
        return self.end_of(self.launch(shell, **more))

    def text(self, token: Token, file: str = "stdout.log") -> str:
        return (self.evidence(token) / file).read_text()


@pytest.fixture(params=["same user", "ordinary user"])
def who(request: pytest.FixtureRequest) -> int:
    """Return the keeper's uid: -1 (the current user), or NOBODY when the tests run as root. With
    SOAK=1 a file has both; otherwise root's tests have those that its USERS names.
    """
    chosen = getattr(request.module, "USERS", ("ordinary user",))
    if request.param not in chosen and os.getuid() == 0 and os.environ.get("SOAK") != "1":
        pytest.skip(f"only with SOAK=1; see the same test with the {chosen[0]}")
    if request.param == "same user":
        return -1
    if os.getuid() != 0:
        pytest.skip(
            "the tests do not run as root, so the half that runs as root is left out; this half ran as 'same user'"
        )
    return NOBODY


@pytest.fixture
def place(who: int) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="keeper-"))
    if who >= 0:
        os.chown(path, who, who)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def new_keeper(place: Path, who: int) -> Iterator[Callable[..., Keeper]]:
    """Return a function that starts a keeper in the test's folder. A new keeper takes over from a
    killed one.
    """
    made: list[Keeper] = []

    def make(**config: Any) -> Keeper:
        keeper = Keeper(place, who, **config)
        if made:
            keeper.nap = made[0].nap
        made.append(keeper)
        return keeper.start()

    yield make
    for keeper in reversed(made):
        keeper.close()


@pytest.fixture
def keeper(new_keeper: Callable[..., Keeper]) -> Keeper:
    return new_keeper()
