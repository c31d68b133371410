"""Sign-in to a real OpenSSH with PAM and one-time codes: its real messages, and the number of
failures that it counts.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from login_nodes import Sshd

from jobscribe.drivers.sbatch.login_node.channel import ChannelError
from jobscribe.drivers.sbatch.ssh.credentials import Credentials
from jobscribe.drivers.sbatch.ssh.sign_in import connect
from jobscribe.drivers.sbatch.ssh.ssh_channel import SshChannel
from jobscribe.protocol.clusters.cluster import Cluster, LoginHost
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Direct, Log

SILENT = Log("test", Redactor(), Direct())


def cluster(*logins: dict[str, Any], **more: Any) -> Cluster:
    return Cluster(
        name="hpc",
        access="ssh",
        login=tuple(msgspec.convert(said, LoginHost) for said in logins),
        **more,
    )


@contextlib.asynccontextmanager
async def signed_in(
    sshd: Sshd, name: str, where: Cluster | None = None, **given: str | None
) -> AsyncIterator[SshChannel]:
    channel = await connect(
        where or cluster(sshd.login()),
        Credentials(user=sshd.users[name], **given),
        SILENT,
        keepalive_secs=1.0,
    )
    try:
        yield channel
    finally:
        await channel.close()


async def refused(
    sshd: Sshd,
    name: str,
    where: Cluster | None = None,
    *,
    why: str = "signInRefused",
    **given: str | None,
) -> str:
    with pytest.raises(Refusal) as e:
        await connect(
            where or cluster(sshd.login()), Credentials(user=sshd.users[name], **given), SILENT
        )
    assert e.value.code == why, e.value.sentence
    return e.value.sentence


def given(sshd: Sshd, name: str) -> dict[str, str | None]:
    """Return the secrets with which this user signs in."""
    key = sshd.users.key.read_text()
    return {
        "password": sshd.users.password if name in ("pw", "kbd", "one", "two", "noisy") else None,
        "code": sshd.users.code(name) if name in ("one", "two", "keycode") else None,
        "key": key if name in ("alice", "key", "keycode", "cert") else None,
        "certificate": sshd.users.certificate(name, 600).read_text() if name == "cert" else None,
    }


def failures(sshd: Sshd, name: str) -> int:
    """Return the number of this user's answers that the server refused, from its own log."""
    return len(re.findall(rf"^Failed \S+ for {sshd.users[name]} ", sshd.log(), re.MULTILINE))


@pytest.mark.parametrize(
    "name", ["alice", "key", "pw", "kbd", "one", "two", "keycode", "cert", "noisy"]
)
async def test_every_way_in(sshd: Sshd, name: str) -> None:
    before = failures(sshd, name)
    async with signed_in(sshd, name, **given(sshd, name)) as channel:
        ran = await channel.run(["id", "-un"])
        assert ran.code == 0 and ran.out.decode().split()[-1] == sshd.users[name]
        if name == "noisy":
            assert ran.out.startswith(b"Welcome to the cluster.") and b"mail" in ran.err
        big = b"x" * 3_000_000
        assert (await channel.run(["wc", "-c"], big)).out.split()[-1] == b"3000000"
        assert [
            r.code
            for r in await asyncio.gather(
                *(channel.run(["sh", "-c", f"exit {n}"]) for n in range(20))
            )
        ] == list(range(20))
    assert failures(sshd, name) == before


@pytest.mark.parametrize(
    ("name", "wrong", "says"),
    [
        ("pw", {"password": "no"}, "did not accept the password of"),
        ("kbd", {"password": "no"}, "did not accept the password of"),
        (
            "one",
            {"password": "no", "code": "000000"},
            "did not accept the password with the one-time code after it of",
        ),
        ("two", {"code": "000000"}, "did not accept the password and the one-time code of"),
        ("keycode", {"code": "000000"}, "but not the one-time code of"),
        ("locked", {"password": "right"}, "did not accept the password of"),
        ("key", {"key": "stranger"}, "did not accept the key SHA256:"),
        ("cert", {"certificate": None}, "did not accept the key SHA256:"),
    ],
)
async def test_a_wrong_answer_is_counted_once_by_the_server(
    sshd: Sshd, name: str, wrong: dict[str, str | None], says: str
) -> None:
    """A second failure might lock the account."""
    before = failures(sshd, name)
    right = given(sshd, name) | ({"password": sshd.users.password} if name == "locked" else {})
    given_wrong = right | {k: v for k, v in wrong.items() if v not in ("right", "stranger")}
    if wrong.get("key") == "stranger":
        given_wrong["key"] = sshd.users.stranger.read_text()
    sentence = await refused(sshd, name, **given_wrong)
    assert says in sentence
    until = time.monotonic() + 60
    while failures(sshd, name) == before and time.monotonic() < until:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)
    assert failures(sshd, name) == before + 1


async def test_a_code_that_was_used_is_refused(sshd: Sshd) -> None:
    code = sshd.users.code("one")
    async with signed_in(sshd, "one", password=sshd.users.password, code=code):
        pass
    sentence = await refused(sshd, "one", password=sshd.users.password, code=code)
    assert "wait for the next one" in sentence and "This is a test" in sentence


async def test_questions_that_cannot_be_answered_cost_no_failure(sshd: Sshd) -> None:
    before = failures(sshd, "one")
    sentence = await refused(sshd, "one", password=sshd.users.password)
    assert "asks 'Password + OTP', both in one answer, and no one-time code was given" in sentence
    assert "accepted the key" in await refused(sshd, "keycode", key=sshd.users.key.read_text())
    assert "accepts none of the given credentials: it offers publickey" in await refused(
        sshd, "key", password=sshd.users.password
    )
    assert failures(sshd, "one") == before


async def test_accounts_that_are_over_are_told_as_what_they_are(sshd: Sshd) -> None:
    password = sshd.users.password
    assert "has expired at 127.0.0.1" in await refused(sshd, "expired", password=password)
    assert "has expired at 127.0.0.1" in await refused(
        sshd, "expired", cluster(sshd.login(), methods=("password",)), password=password
    )
    assert "has expired at 127.0.0.1" in await refused(
        sshd, "expired", key=sshd.users.key.read_text()
    )
    for where in (None, cluster(sshd.login(), methods=("password",))):
        assert "to change the password first" in await refused(
            sshd, "stale", where, password=password
        )
    assert "to change the password first" in await refused(
        sshd, "stale", key=sshd.users.key.read_text()
    )
    sentence = await refused(sshd, "nologin", password=password)
    assert (
        "runs no commands for this account" in sentence
        and "This account is currently not available" in sentence
    )


async def test_an_expired_certificate_is_refused(sshd: Sshd) -> None:
    certificate = sshd.users.certificate("cert", 1).read_text()
    key = sshd.users.key.read_text()
    async with asyncio.timeout(20):
        while "expired at" not in (said := await refused_or_in(sshd, key, certificate)):
            assert (
                said == "" or "did not accept the certificate SHA256:" in said
            )  # its clock and ours may change seconds at different moments
            await asyncio.sleep(0.3)


async def refused_or_in(sshd: Sshd, key: str, certificate: str) -> str:
    try:
        async with signed_in(sshd, "cert", key=key, certificate=certificate):
            return ""
    except Refusal as e:
        return e.sentence


async def test_pinned_keys_jump_hosts_and_hosts_in_turn(sshd: Sshd) -> None:
    key = sshd.users.key.read_text()
    both = [*sshd.keys("main"), *sshd.keys("other")]
    for server in ("main", "other"):  # two machines with one name
        async with signed_in(sshd, "alice", cluster(sshd.login(server, keys=both)), key=key):
            pass
    for one in sshd.keys("main"):  # a server has several kinds of keys, and we know only one
        async with signed_in(sshd, "alice", cluster(sshd.login(keys=[one])), key=key):
            pass
    before = sshd.log("other")
    sentence = await refused(
        sshd,
        "alice",
        cluster(sshd.login("other", keys=sshd.keys("main"))),
        why="signInUnreachable",
        key=key,
    )
    assert (
        sentence.count("SHA256:") == 1 + len(sshd.keys("main"))
        and "nothing was sent to it" in sentence
    )
    assert (
        "Accepted" not in sshd.log("other")[len(before) :]
        and sshd.users["alice"] not in sshd.log("other")[len(before) :]
    )
    async with signed_in(sshd, "alice", cluster(sshd.login(via="jump")), key=key) as channel:
        assert (await channel.run(["sh", "-c", "echo $SSH_CONNECTION"])).out.split()[-1] == str(
            sshd.port("main")
        ).encode()
    sshd.cut("main", "reject")
    async with signed_in(
        sshd, "alice", cluster(sshd.login(), sshd.login("other")), key=key
    ) as channel:
        assert channel.host == f"127.0.0.1:{sshd.port('other')}"
    sshd.mend("main")
    sshd.cut("main", "drop")
    sentence = await refused(
        sshd, "alice", cluster(sshd.login(), call_secs=1.0), why="signInUnreachable", key=key
    )
    assert "did not answer within 1 s" in sentence


async def test_a_hung_server_is_told_and_a_dead_connection_is_noticed(sshd: Sshd) -> None:
    key = sshd.users.key.read_text()
    async with signed_in(sshd, "bob", key=key) as channel:
        ended = asyncio.Event()
        channel.when_closed(ended.set)
        sshd.freeze("main")
        sentence = await refused(
            sshd, "bob", cluster(sshd.login(), call_secs=1.0), why="signInUnreachable", key=key
        )
        assert "accepted the connection, but did not answer within 1 s" in sentence
        await asyncio.wait_for(ended.wait(), 30)
        sshd.thaw("main")
        with pytest.raises(ChannelError):
            await channel.run(["true"])
    async with signed_in(sshd, "bob", key=key) as channel:
        ended = asyncio.Event()
        channel.when_closed(ended.set)
        sshd.sever("main")
        await asyncio.wait_for(ended.wait(), 10)


async def test_a_socket_on_the_login_node_leads_here_and_is_the_users_alone(sshd: Sshd) -> None:
    async def listener(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"supervisor: " + await reader.readline())
        writer.close()

    here = await asyncio.start_server(listener, "127.0.0.1", 0)
    port = here.sockets[0].getsockname()[1]
    path = str(sshd.users.home("alice") / "room" / "s")
    ask = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(b'hi\\n'); print(s.recv(99).decode())"
    key = sshd.users.key.read_text()
    for _ in range(2):  # sshd leaves the socket file behind when the connection is cut
        async with signed_in(sshd, "alice", key=key) as channel:
            await channel.forward(path, "127.0.0.1", port)
            assert (await channel.run(["python3", "-c", ask, path])).out == b"supervisor: hi\n\n"
            assert (await channel.run(["stat", "-c", "%a %U", path])).out.split() == [
                b"600",
                sshd.users["alice"].encode(),
            ]
            async with signed_in(sshd, "bob", key=key) as stranger:
                assert b"PermissionError" in (await stranger.run(["python3", "-c", ask, path])).err
            sshd.sever("main")
    here.close()
