"""The start order that the agent sends to its keeper: shared fields of a gang, precedence of
variables, and ports in use.
"""

import asyncio
import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jobscribe.agent.files.output_reader import Evidence
from jobscribe.agent.jobs.start_order import Starter
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import Token, execution_log_ids
from jobscribe.protocol.launch.keeper_messages import (
    Order,
    ReleaseOrder,
    SetEnvironment,
    StartOrder,
    parse_order,
)
from jobscribe.protocol.launch.message_fields import encode
from jobscribe.protocol.redaction import Redactor
from jobscribe.protocol.wire.messages import Shared, TaskSpec
from jobscribe.runtime.log.logger import Direct, Log

PATH = "/usr/local/bin:/usr/bin:/bin"


class Login:
    """A login environment that is either known or loaded on request."""

    def __init__(
        self, env: dict[str, str], *, later: bool = False, refusal: Refusal | None = None
    ) -> None:
        self.known = None if later else env
        self.umask, self.sentence, self._env, self._refusal = "0077", None, env, refusal
        self.may_go_on = asyncio.Event()

    async def load(self) -> None:
        await self.may_go_on.wait()
        if self._refusal is not None:
            raise self._refusal
        self.known = self._env


class Ground:
    def __init__(self, root: Path, login: dict[str, str] | Login) -> None:
        self.root, self.orders, self.failures = root, [], []  # type: ignore[var-annotated]
        self.lines = ""
        self.environments: dict[str, SetEnvironment] = {}
        self.login = login if isinstance(login, Login) else Login({"PATH": PATH, **login})
        self.starter = Starter(
            Evidence(root / "run"),
            self.login,
            (),
            Log("agent", Redactor(), Direct(self, form="json")),
            self._sent,
            lambda token, sentence, fault: self.failures.append((token, sentence, fault)),
        )

    def _sent(self, order: Order) -> None:
        """Take an order as the keeper does: encoded and parsed."""
        order = parse_order(json.loads(json.dumps(encode(order))))
        if isinstance(order, SetEnvironment):
            assert order.name not in self.environments, "it is sent once"
            self.environments[order.name] = order
        else:
            self.orders.append(order)

    def put(self, text: str) -> None:
        self.lines += text

    def spec(self, *command: str, **fields: Any) -> TaskSpec:
        return TaskSpec(command=command or ("true",), run_dir=str(self.root / "dir"), **fields)

    def env_of(self, order: StartOrder) -> dict[str, str]:
        """Return the environment of the command, which is the same when the script is run."""
        folder = self.root / "run" / order.name
        folder.mkdir(parents=True, exist_ok=True)
        below = self.environments[str(order.environment)]
        text = order.script[0] + below.lines + order.script[1]
        (folder / "script.sh").write_bytes(text.encode("utf-8", "surrogateescape"))
        out = subprocess.run(
            ["sh", str(folder / "script.sh")], capture_output=True, env={}, check=True
        ).stdout.decode()
        by_hand = dict(e.split("=", 1) for e in out.split("\0") if e)
        direct = {**below.variables, **order.env}
        assert {k: v for k, v in by_hand.items() if k not in ("PWD", "OLDPWD", "_")} == direct
        return direct


def token(index: int = 0, attempt: int = 1) -> Token:
    return Token("user1234-sim12345-command", 17, attempt, "a", index)


SHARED = Shared(
    env={"BOTH": "shared", "OURS": "it's\n$shared", "ALL": "shared"}, job='{"tasks": []}'
)


@pytest.mark.process
def test_shared_wins_over_the_login_the_task_over_both_and_the_contract_over_all(
    tmp_path: Path,
) -> None:
    batch_site = Ground(
        tmp_path,
        {
            "BOTH": "login",
            "LOGIN": "login",
            "ALL": "login",
            "odd-name": "login",
            "JOBSCRIBE_SERIAL": "login",
        },
    )
    spec = batch_site.spec(
        "env", "-0", env={"ALL": "own", "JOBSCRIBE_ATTEMPT": "own", "also odd": "own"}
    )
    batch_site.starter.start(token(), spec, SHARED)
    (order,) = batch_site.orders
    env = batch_site.env_of(order)
    assert (env["LOGIN"], env["BOTH"], env["OURS"], env["ALL"]) == (
        "login",
        "shared",
        "it's\n$shared",
        "own",
    )
    assert (env["odd-name"], env["also odd"]) == ("login", "own")
    assert (env["JOBSCRIBE_SERIAL"], env["JOBSCRIBE_ATTEMPT"]) == ("17", "1")
    assert order.job == SHARED.job


@pytest.mark.process
def test_each_gang_has_its_own_and_a_plain_run_none(tmp_path: Path) -> None:
    batch_site = Ground(tmp_path, {})
    other = Shared(env={"OURS": "other"}, job="{}")
    spec = batch_site.spec("env", "-0")
    for n, shared in enumerate((SHARED, SHARED, other, None, SHARED)):
        batch_site.starter.start(token(n), spec, shared)
    assert [batch_site.env_of(o).get("OURS") for o in batch_site.orders] == [
        "it's\n$shared",
        "it's\n$shared",
        "other",
        None,
        "it's\n$shared",
    ]
    assert [o.job for o in batch_site.orders] == [
        SHARED.job,
        SHARED.job,
        "{}",
        None,
        SHARED.job,
    ]


@pytest.mark.process
def test_a_port_that_somebody_listens_on_fails_the_start_in_a_word(tmp_path: Path) -> None:
    batch_site = Ground(tmp_path, {})
    with socket.socket() as one, socket.socket() as two:
        for s in (one, two):
            s.bind(("127.0.0.1", 0))
            s.listen()
        ports = [s.getsockname()[1] for s in (one, two)]
        batch_site.starter.start(token(0), batch_site.spec(ports=tuple(ports)), SHARED)
        batch_site.starter.start(token(1), batch_site.spec(ports=(ports[1],)), None)
    batch_site.starter.start(token(2), batch_site.spec(ports=tuple(ports)), SHARED)
    assert batch_site.failures == [
        (token(0), f"ports {ports[0]}, {ports[1]} already in use on this host", "portTaken"),
        (token(1), f"port {ports[1]} already in use on this host", "portTaken"),
    ]
    assert [o.name for o in batch_site.orders] == [token(2).name]


def test_what_no_process_can_be_given_fails_alone(tmp_path: Path) -> None:
    batch_site = Ground(tmp_path, {})
    batch_site.starter.start(token(0), batch_site.spec("a\0b"), SHARED)
    batch_site.starter.start(token(1), batch_site.spec(), SHARED)
    assert [(t, fault) for t, _, fault in batch_site.failures] == [(token(0), None)] and len(
        batch_site.orders
    ) == 1


@pytest.mark.process
async def test_tasks_of_two_gangs_that_wait_for_the_login_profile_keep_their_own(
    tmp_path: Path,
) -> None:
    batch_site = Ground(tmp_path, Login({"PATH": PATH}, later=True))
    other = Shared(env={"OURS": "other"}, job="{}")
    for n, shared in enumerate((SHARED, other, SHARED)):
        batch_site.starter.start(token(n), batch_site.spec("env", "-0"), shared)
    await asyncio.sleep(0)
    assert not batch_site.orders
    batch_site.login.may_go_on.set()
    await asyncio.gather(*batch_site.starter._tasks)
    assert [batch_site.env_of(o)["OURS"] for o in batch_site.orders] == [
        "it's\n$shared",
        "other",
        "it's\n$shared",
    ]


async def test_a_profile_that_cannot_be_asked_fails_each_of_them(tmp_path: Path) -> None:
    batch_site = Ground(
        tmp_path, Login({}, later=True, refusal=Refusal("badRequest", "no profile"))
    )
    for n in range(3):
        batch_site.starter.start(token(n), batch_site.spec(), SHARED)
    batch_site.login.may_go_on.set()
    await asyncio.gather(*batch_site.starter._tasks)
    assert (
        batch_site.failures == [(token(n), "no profile", None) for n in range(3)]
        and not batch_site.orders
    )


@pytest.mark.parametrize("memory", [None, 2**20])
def test_what_was_not_asked_for_is_not_in_the_order(tmp_path: Path, memory: int | None) -> None:
    batch_site = Ground(tmp_path, {})
    batch_site.starter.start(token(), batch_site.spec(memory_bytes=memory), None)
    (order,) = batch_site.orders
    assert (order.memory, order.job, order.input) == (memory, None, None)
    assert ("memory" in encode(order)) == (memory is not None)
    assert not {"job", "input"} & set(encode(order))


async def test_a_line_about_a_start_carries_the_ids_of_the_execution(tmp_path: Path) -> None:
    site = Ground(tmp_path, {})
    site.starter.start(token(), site.spec(), None)
    (line,) = map(json.loads, site.lines.splitlines())
    assert execution_log_ids(token()).items() <= line.items()


def test_an_order_says_how_the_run_uses_the_slots(tmp_path: Path) -> None:
    ground = Ground(tmp_path, {})
    for slot in (None, "held", "ahead"):
        ground.starter.start(token(), ground.spec(), None, slot)
    ground.starter.release(token())
    assert [o.slot for o in ground.orders[:3]] == [None, "held", "ahead"]
    assert isinstance(ground.orders[3], ReleaseOrder)


async def test_a_run_that_is_released_before_the_login_environment_is_known_starts_at_once(
    tmp_path: Path,
) -> None:
    login = Login({"PATH": PATH}, later=True)
    ground = Ground(tmp_path, login)
    ground.starter.start(token(), ground.spec(), None, "ahead")
    ground.starter.release(token())
    assert ground.orders == []
    login.may_go_on.set()
    while not ground.orders:
        await asyncio.sleep(0)
    assert [o.slot for o in ground.orders] == ["held"]
