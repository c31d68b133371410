"""The simulator's keeper is a model: the same script drives the real keeper and the model, and both
must report the same.

A seed generates the script: orders, ends and kills of jobs, deaths of the keeper (also at its crash
points) and restarts. The real keeper is the one of tests/unit/agent, with this test as its agent.
"""

import contextlib
import json
import os
import random
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

import psutil
import pytest
from keeper_process import KeeperProcess
from sim_faults import KEEPER_POINTS
from sim_keeper import Keeper
from sim_machine import Machine
from sim_time import Life, Time

from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.protocol.launch.keeper_messages import StartOrder
from jobscribe.protocol.launch.message_fields import encode

pytestmark = pytest.mark.process

HARNESS = Path(__file__).resolve().parents[1] / "unit" / "agent" / "support" / "keeper_harness.py"
KEY = AgentKey("local", "sequential", "AAAAAAAA", "localhost")
STEPS = 60
SEEDS = range(12 if os.environ.get("SOAK") == "1" else 2)
#: Grace of every stop: afterwards the keeper kills the job.
GRACE_SECS = 0.3
DEADLINE_SECS = 20.0

#: A script continues until these have happened.
DEATHS = {"the keeper is killed", "it dies at its crash point"}

#: The compared values of one execution.
Words = tuple[Any, ...]


def words(said: dict[str, Any]) -> Words:
    exit_ = said["exit"] or {}
    known = exit_.get("source") in ("start", "lost")
    return (
        said["token"].split("/")[1],
        said["state"],
        exit_.get("source"),
        exit_.get("code"),
        exit_.get("signal"),
        exit_.get("stopReason"),
        exit_.get("detail") if known else None,
    )


class Heard:
    """The model's agent: records the keeper's reports."""

    def __init__(self, keeper: Keeper) -> None:
        self.life, self.key, self.since = Life(keeper.time), keeper.key, keeper.time.now
        self.hello: list[Words] = []
        self.said: list[Words] = []

    def start(self, executions: list[dict[str, Any]]) -> None:
        self.hello = sorted(words(e) for e in executions)

    def keeper_reported(self, said: dict[str, Any]) -> None:
        self.said.append((said["is"], *words(said)))

    def keeper_gone(self) -> None:
        self.life.end()


class Model:
    def __init__(self) -> None:
        self.time = Time(1)
        self.machine = Machine(self.time, pytest.fail, Heard)  # type: ignore[arg-type]
        self.keeper: Keeper

    def start(self, armed: str | None) -> list[Words] | None:
        """Return the reports to the agent at start; None if the keeper dies before it has an agent."""
        self.keeper = self.machine.keepers[KEY] = Keeper(
            self.machine, KEY, self.machine.new_pid(), {}
        )
        self.keeper.armed = armed
        self.keeper.start()
        agent = self.keeper.agent
        return agent.hello if isinstance(agent, Heard) else None

    def after(self, act: Callable[[], None]) -> list[Words]:
        """Return the reports until nothing happens any more."""
        agent = self.keeper.agent
        said = agent.said if isinstance(agent, Heard) else []
        said.clear()
        act()
        until = self.time.now + 2 * GRACE_SECS
        while self.time.next_at() <= until:
            self.time.step()
        self.time.now = until
        return sorted(said)

    def process(self, token: Token) -> Any:
        return self.machine.by_token[str(token)]


class Real:
    """The real keeper, as its agent sees it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.pids: dict[str, int] = {}
        self.process: KeeperProcess | None = None
        self.reapers: list[subprocess.Popen[bytes]] = []
        self.lines = b""
        self.agent: socket.socket | None = None

    def start(self, armed: str | None, *, dies: bool = False) -> list[Words]:
        path = self.place / "relay"
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(DEADLINE_SECS)
        env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
        if armed is not None:
            env["JOBSCRIBE_CRASHPOINT"] = f"{armed}:1:{tempfile.mktemp(dir=self.place)}"
        with (self.place / "keeper.log").open("ab") as log:
            reaper = subprocess.Popen(
                [sys.executable, str(HARNESS), "-1", str(path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=env,
            )
        config = {
            "root": str(self.place),
            "folder": str(self.place / "agent"),
            "agent": {"token": "s3cret"},
        }
        assert reaper.stdin is not None
        reaper.stdin.write(json.dumps(config).encode())
        reaper.stdin.close()
        self.reapers.append(reaper)
        self.process = KeeperProcess(reaper, self.place)
        if dies:
            listener.close()
            self.process.wait(DEADLINE_SECS)
            return []
        self.agent, _ = listener.accept()
        listener.close()
        self.agent.settimeout(DEADLINE_SECS)
        self.lines = b""
        assert self._next()["is"] == "relay"
        executions = self._next()["executions"]
        self.pids |= {e["token"]: e["pid"] for e in executions if e["pid"] is not None}
        return sorted(words(e) for e in executions)

    def hear(self, count: int) -> list[Words]:
        """Return the next reports, without those of jobs that are ending: on a busy machine a child
        of the job may live a moment longer, and jobs of the model have none.
        """
        heard: list[Words] = []
        while len(heard) < count:
            said = self._next()
            if said["state"] == "running" and said["exit"] is not None:
                continue
            if said["pid"] is not None:
                self.pids[said["token"]] = said["pid"]
            heard.append((said["is"], *words(said)))
        return sorted(heard)

    def _next(self) -> dict[str, Any]:
        while b"\n" not in self.lines:
            assert self.agent is not None
            data = self.agent.recv(65536)
            assert data, f"the keeper is gone: {(self.place / 'keeper.log').read_text()}"
            self.lines += data
        line, self.lines = self.lines.split(b"\n", 1)
        said: dict[str, Any] = json.loads(line)
        return said

    def order(self, **order: Any) -> None:
        assert self.agent is not None
        self.agent.sendall(json.dumps(order).encode() + b"\n")

    def start_order(self, token: Token, code: int, on_term: str) -> None:
        where = self.place / f"run-{token.serial}"
        trap = "trap '' TERM; " if on_term == "ignores" else ""
        command = (
            "/bin/sh",
            "-c",
            f"{trap}: > ready; while [ ! -e go ]; do sleep 0.02; done; exit {code}",
        )
        order = StartOrder(
            name=token.name,
            token=str(token),
            run_dir=str(where),
            command=command,
            env={"PATH": "/usr/bin:/bin"},
            grace=GRACE_SECS,
        )
        self.order(**encode(order))

    def ended(self, token: Token) -> None:
        self.until(
            lambda: (
                not psutil.pid_exists(self.pids[str(token)])
                or psutil.Process(self.pids[str(token)]).status() == psutil.STATUS_ZOMBIE
            )
        )

    def dead(self) -> None:
        """Wait until the keeper dies at its crash point."""
        assert self.process is not None
        self.process.wait(DEADLINE_SECS)
        if self.agent is not None:
            self.agent.close()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.dead()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(DEADLINE_SECS)
        if self.agent is not None:
            self.agent.close()
        for reaper in self.reapers:
            reaper.wait(DEADLINE_SECS)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECS
        while True:
            with contextlib.suppress(psutil.NoSuchProcess):
                if condition():
                    return
            assert time.monotonic() < deadline
            time.sleep(0.01)


class Both:
    """The script: both keepers take every step, and their reports are compared."""

    def __init__(self, seed: int, place: Path) -> None:
        self.r = random.Random(seed)
        self.model, self.real = Model(), Real(place)
        self.tokens: list[Token] = []
        self.steps: list[str] = []
        self.up = False

    def same(self, model: list[Words], real: list[Words]) -> None:
        assert real == model, "\n".join(self.steps)

    def step(self) -> None:
        if not self.up:
            (self._start_keeper if self.r.random() < 0.6 else self._job_ends)()
            return
        self.r.choice(
            (
                self._start,
                self._start,
                self._start,
                self._again,
                self._stop,
                self._stop,
                self._forget,
                self._job_ends,
                self._keeper_dies,
            )
        )()

    def _start_keeper(self) -> None:
        armed = self.r.choice(KEEPER_POINTS) if self.r.random() < 0.5 else None
        self.steps.append(f"a keeper starts, to die at {armed}")
        said = self.model.start(armed)
        if said is None:
            self.steps.append("it dies while it takes over")
            self.real.start(armed, dies=True)
        else:
            self.same(said, self.real.start(armed))
            self.up = True
            self._both(lambda: None, lambda: None)  # what it stops has ended then

    def _keeper_dies(self) -> None:
        self.steps.append("the keeper is killed")
        self.model.keeper.die()
        self.real.kill()
        self.up = False

    def _start(self) -> None:
        self._start_order(self._new())

    def _new(self) -> Token:
        n = len(self.tokens)
        self.tokens.append(Token(f"AAAAAAAA-sim{n:05d}-command", 1000 + n, 1, "main", 0))
        return self.tokens[-1]

    def _again(self) -> None:
        if self.tokens:
            self._start_order(self.r.choice(self.tokens))

    def _start_order(self, token: Token) -> None:
        code, on_term = token.serial % 3, "ignores" if token.serial % 4 == 0 else "dies"
        self.steps.append(f"start {token.serial}, which ends with {code} and {on_term}")
        order = {
            "do": "start",
            "name": token.name,
            "token": str(token),
            "limit": None,
            "grace": GRACE_SECS,
            "command": ("job", str(code), "1e9", on_term),
        }
        self._both(
            lambda: self.model.keeper.order(order),
            lambda: self.real.start_order(token, code, on_term),
        )
        p = self.model.machine.by_token.get(str(token))
        if p is not None and p.ended is None:
            # until the job has set its traps, a signal would hit another program
            self.real.until((self.real.place / f"run-{token.serial}" / "ready").exists)

    def _stop(self) -> None:
        if self.tokens and self.r.random() < 0.8:
            self._stop_order(self.r.choice(self.tokens[-4:]))
        else:
            self._stop_what_never_was()

    def _stop_what_never_was(self) -> None:
        self._stop_order(self._new())

    def _stop_order(self, token: Token) -> None:
        self.steps.append(f"stop {token.serial}")
        order = {
            "do": "stop",
            "name": token.name,
            "token": str(token),
            "reason": "cancel",
            "grace": GRACE_SECS,
        }
        self._both(lambda: self.model.keeper.order(order), lambda: self.real.order(**order))

    def _forget(self) -> None:
        if self.tokens:
            names = [t.name for t in self.r.sample(self.tokens, min(3, len(self.tokens)))]
            self.steps.append(f"forget {names}")
            order = {"do": "forget", "names": names}
            self._both(lambda: self.model.keeper.order(order), lambda: self.real.order(**order))
            # this order has no answer; an answer to the next order shows that it was processed
            self._stop_what_never_was()

    def _job_ends(self) -> None:
        """The job ends by itself, or is killed."""
        live = [
            t
            for t in self.tokens
            if str(t) in self.real.pids and self.model.process(t).ended is None
        ]
        if not live:
            return
        token, how = (
            self.r.choice(live),
            self.r.choice(("by itself", "it is killed")),
        )
        self.steps.append(f"{token.serial} ends: {how}")
        p, pid = self.model.process(token), self.real.pids[str(token)]
        match how:
            case "by itself":

                def model() -> None:
                    self.model.machine.exits(p, token.serial % 3)

                def real() -> None:
                    (self.real.place / f"run-{token.serial}" / "go").touch()
            case _:

                def model() -> None:
                    self.model.machine.kill(p, 9, with_recorder=False)

                def real() -> None:
                    os.killpg(pid, signal.SIGKILL)

        self._both(model, lambda: (real(), self.real.ended(token))[0])

    def close(self) -> None:
        """Stop all remaining processes and the keeper."""
        for token in self.tokens:
            pid = self.real.pids.get(str(token))
            if pid is not None and self.model.process(token).ended is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        self.real.close()

    def _both(self, model: Callable[[], None], real: Callable[[], None]) -> None:
        was_up = self.up
        said = self.model.after(model)
        real()
        if was_up:
            self.same(said, self.real.hear(len(said)))
        if was_up and self.model.keeper.life.over:
            self.steps.append("it dies at its crash point")
            self.real.dead()
            self.up = False


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="model-"))
    yield path
    shutil.rmtree(path)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_model_says_what_the_real_keeper_says(seed: int, place: Path) -> None:
    both = Both(seed, place)
    try:
        while len(both.steps) < STEPS or not DEATHS.issubset(both.steps):
            both.step()
        if not both.up:
            both._start_keeper()
    finally:
        both.close()
