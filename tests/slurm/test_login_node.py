"""Checks of the test login node: each user can sign in only in their own way, and the node can fail
in every way of a real one.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from engine_scripts import Script
from login_nodes import NAMES, Sshd, Users
from slurm_cluster import Slurm
from supervisor_process import until

#: Other tests of this folder would find these faults too, but later and less clearly.
whole = pytest.mark.skipif(
    not os.environ.get("SOAK"),
    reason="this equipment is what the other tests here work with: SOAK=1 tests it by itself",
)


class Answers(asyncssh.SSHClient):
    """Answers each question with the next answer, and records the questions."""

    def __init__(
        self, given: list[Callable[[], str]], prompts: list[str], banner: list[str]
    ) -> None:
        self._given, self._prompts, self._banner = given, prompts, banner

    def auth_banner_received(self, msg: str, lang: str) -> None:
        self._banner.append(msg)

    def kbdint_auth_requested(self) -> str:
        return ""

    def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Any
    ) -> list[str] | None:
        self._prompts += [prompt for prompt, _ in prompts]
        return [self._given.pop(0)() for _ in prompts] if len(self._given) >= len(prompts) else None


class Came:
    """A signed-in session. prompts: the questions during sign-in."""

    def __init__(
        self, connection: asyncssh.SSHClientConnection, prompts: list[str], banner: list[str]
    ) -> None:
        self.connection, self.prompts, self.banner = connection, prompts, banner

    async def run(self, command: str) -> str:
        done = await self.connection.run(command)
        return str(done.stdout) + str(done.stderr)


@contextlib.asynccontextmanager
async def comes(
    sshd: Sshd,
    name: str,
    *answers: Callable[[], str],
    keys: list[Any] | None = None,
    password: str | None = None,
    server: str = "main",
    **more: Any,
) -> AsyncIterator[Came]:
    prompts: list[str] = []
    banner: list[str] = []
    options = {
        "host": "127.0.0.1",
        "port": sshd.port(server),
        "known_hosts": str(sshd.known_hosts),
        "config": None,
        "agent_path": None,
        "username": sshd.users[name],
        "client_keys": [str(k) if not isinstance(k, tuple) else k for k in keys or []] or None,
        "password": password,
        "client_factory": lambda: Answers(list(answers), prompts, banner),
        "kbdint_auth": bool(answers),
        "password_auth": password is not None,
        **more,
    }
    async with asyncio.timeout(60), asyncssh.connect(**options) as connection:
        yield Came(connection, prompts, banner)


async def in_as(sshd: Sshd, name: str, *answers: Callable[[], str], **more: Any) -> list[str]:
    """Sign in and check the user name; return the questions asked."""
    async with comes(sshd, name, *answers, **more) as came:
        assert (await came.run("id -un")).strip() == sshd.users[name]
        return came.prompts


async def out(sshd: Sshd, name: str, *answers: Callable[[], str], **more: Any) -> None:
    with pytest.raises(
        (asyncssh.PermissionDenied, asyncssh.ConnectionLost, asyncssh.DisconnectError)
    ):
        async with comes(sshd, name, *answers, **more):
            pass


@whole
async def test_each_way_in_and_none_other(sshd: Sshd, hpc_users: Users) -> None:
    u = hpc_users

    def word() -> str:
        return u.password

    def code(name: str) -> Callable[[], str]:
        return lambda: u.code(name)

    def both() -> str:
        return u.password + u.code("one")

    def wrong() -> str:
        return "000000"

    key, stranger, before = [u.key], [u.stranger], sshd.failures("one")
    for _ in range(2 if os.environ.get("SOAK") else 1):  # the second time with other codes
        assert await in_as(sshd, "alice", keys=key) == []
        assert await in_as(sshd, "alice", password=word()) == []
        assert await in_as(sshd, "kbd", word) == ["Password: "]
        assert await in_as(sshd, "one", both) == ["Password + OTP: "]
        assert await in_as(sshd, "two", word, code("two")) == ["Password: ", "Verification code: "]
        assert await in_as(sshd, "keycode", code("keycode"), keys=key) == ["Verification code: "]
    assert await in_as(sshd, "key", keys=key) == [] == await in_as(sshd, "pw", password=word())
    await out(sshd, "alice", keys=stranger)
    await out(sshd, "alice", password="no")
    await out(sshd, "key", word, password=word())
    await out(sshd, "pw", word, keys=key)
    await out(sshd, "kbd", keys=key, password=word())
    await out(sshd, "one", word)
    await out(sshd, "one", lambda: u.password + "000000")
    await out(sshd, "two", word, wrong)
    await out(sshd, "two", code("two"), word)
    await out(sshd, "keycode", code("keycode"))
    await out(sshd, "keycode", wrong, keys=key)
    await out(sshd, "cert", word, keys=key, password=word())
    assert sshd.failures("one") == before + 2 and u.password not in sshd.log()


@whole
async def test_a_code_is_good_once(sshd: Sshd, hpc_users: Users) -> None:
    code = hpc_users.code("keycode")
    await in_as(sshd, "keycode", lambda: code, keys=[hpc_users.key])
    await out(sshd, "keycode", lambda: code, keys=[hpc_users.key])


@whole
async def test_certificates(sshd: Sshd, hpc_users: Users) -> None:
    for name in ("cert", "alice"):
        pair = [(str(hpc_users.key), str(hpc_users.certificate(name, 600)))]
        await in_as(sshd, name, keys=pair)
        await out(
            sshd,
            "bob" if name == "alice" else "alice",
            keys=[(str(hpc_users.stranger), str(hpc_users.certificate(name, 600, "stranger")))],
        )
    pair = [(str(hpc_users.key), str(hpc_users.certificate("cert", 1)))]
    await asyncio.sleep(2.1)
    await out(sshd, "cert", keys=pair)


@whole
async def test_accounts_that_do_not_let_in(sshd: Sshd, hpc_users: Users) -> None:
    for name in ("locked", "expired"):
        await out(sshd, name, keys=[hpc_users.key])
        await out(sshd, name, password=hpc_users.password)
    prompts: list[str] = []
    with contextlib.suppress(asyncssh.Error):
        async with comes(sshd, "stale", lambda: hpc_users.password) as came:
            prompts = came.prompts
            assert "password" in (await came.run("id -un")).lower()
    assert prompts[:1] in ([], ["Password: "])
    async with comes(sshd, "nologin", keys=[hpc_users.key]) as came:
        assert "not available" in await came.run("id -un")
    async with comes(sshd, "noisy", keys=[hpc_users.key]) as came:
        done = await came.connection.run("echo mine")
        assert str(done.stdout).splitlines() == [
            'Welcome to the cluster. {"not": "yours"}',
            "mine",
        ] and "mail" in str(done.stderr)


async def test_who_is_in_has_the_cluster_and_a_scratch_folder(
    sshd: Sshd, hpc_users: Users, slurm: Slurm
) -> None:
    async with comes(sshd, "alice", keys=[hpc_users.key]) as came:
        assert (await came.run("echo $SLURM_CONF; cd $SCRATCH && pwd")).split() == [
            str(slurm.conf),
            str(hpc_users.home("alice") / "scratch"),
        ]
        assert "watched" in came.banner[0]
        done = await came.connection.run(
            "sbatch --parsable -o /dev/null", input="#!/bin/sh\nexit 3\n"
        )
        assert slurm.until_state(str(done.stdout).strip()).state == "FAILED"


@whole
async def test_other_host_keys_and_a_host_to_go_through(sshd: Sshd, hpc_users: Users) -> None:
    key = [hpc_users.key]
    assert len({k for s in ("main", "other", "jump") for k in sshd.keys(s)}) == 4
    await in_as(sshd, "alice", keys=key, server="other")
    sshd.identity("main", "other")
    with pytest.raises(asyncssh.HostKeyNotVerifiable):
        await in_as(sshd, "alice", keys=key)
    sshd.well()
    for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256"):
        await in_as(sshd, "alice", keys=key, server_host_key_algs=[kind])
    async with comes(sshd, "bob", keys=key, server="jump") as jump:
        await in_as(sshd, "alice", keys=key, tunnel=jump.connection)


@whole
@pytest.mark.parametrize("way", ["drop", "reject"])
async def test_cut_off(sshd: Sshd, hpc_users: Users, way: str) -> None:
    """Open connections are cut too; other servers are not affected."""
    async with comes(sshd, "alice", keys=[hpc_users.key]) as came:
        sshd.cut("main", way)
        with pytest.raises(OSError):
            await asyncio.wait_for(asyncio.open_connection("127.0.0.1", sshd.port()), 0.5)
        with pytest.raises((TimeoutError, asyncssh.Error)):
            await asyncio.wait_for(came.run("true"), 0.5)
        await in_as(sshd, "alice", keys=[hpc_users.key], server="other")
        sshd.mend("main")
        await in_as(sshd, "alice", keys=[hpc_users.key])
        came.connection.abort()


@whole
async def test_severed_stopped_frozen(sshd: Sshd, hpc_users: Users) -> None:
    key = [hpc_users.key]
    async with comes(sshd, "alice", keys=key) as alice, comes(sshd, "bob", keys=key) as bob:
        await alice.run("setsid sleep 4321 >/dev/null 2>&1 </dev/null &")
        sshd.sever("main", "alice")
        await asyncio.wait_for(alice.connection.wait_closed(), 20)
        assert hpc_users.processes("alice"), "what was started is left alone"
        await bob.run("true")
        sshd.stop()
        await bob.run("true")
        with pytest.raises(OSError):
            await in_as(sshd, "alice", keys=key)
        assert "main down" in sshd.status()
        sshd.start()
        sshd.freeze()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bob.run("true"), 0.5)
        reader, writer = await asyncio.open_connection("127.0.0.1", sshd.port())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.5)
        writer.close()
        sshd.thaw()
        assert (await bob.run("echo here")).strip() == "here"
        sshd.restart()
        await bob.run("true")
        sshd.sever()
        await asyncio.wait_for(bob.connection.wait_closed(), 20)
    hpc_users.end_processes()
    until(lambda: not hpc_users.processes("alice"), "nothing is left")


@whole
def test_nothing_is_left_and_nothing_was_on_a_command_line(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("there is no strace here: etc/engines/command.sh strace")
    users, trace = Users(), tmp_path / "trace"
    before = Path("/etc/passwd").read_text()
    # the script is run by strace
    traced = Script("sshd", users.script.given)
    traced.path = tmp_path / "traced"
    traced.path.write_text(
        f'#!/bin/sh\nexec strace -f -qq -e trace=execve -s 4000 -o {trace} {users.script.path} "$@"\n'
    )
    traced.path.chmod(0o755)
    try:
        traced("users")
        said = trace.read_text(errors="replace")
        assert "newusers" in said and users.password not in said and users._secrets()[1] not in said
        Sshd(users).up()
        service = Path(f"/etc/pam.d/jobscribe-sshd-{users.port}")
        assert service.exists() and len([n for n in NAMES if users.uid(n)]) == len(NAMES)
        Sshd(users).cut()
        users.run("alice", "sh", "-c", "sleep 4321 >/dev/null 2>&1 &")
        assert users.processes("alice")
    finally:
        users.clean()
    assert (
        Path("/etc/passwd").read_text().count(users.prefix)
        == 0
        == Path("/etc/group").read_text().count(users.prefix)
    )
    assert len(Path("/etc/passwd").read_text().splitlines()) >= len(before.splitlines()) - len(
        NAMES
    )
    assert not service.exists() and not users.place.exists()
    assert (
        f"sport {users.port}"
        not in subprocess.run(["iptables", "-S"], capture_output=True, text=True).stdout
    )
    assert not [
        p for p in Path("/proc").glob("[0-9]*/cmdline") if str(users.place).encode() in _read(p)
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
