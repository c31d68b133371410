"""Sign-in by ssh: every authentication method, a specific error for each refusal, one answer per
question, and no secret that stays in memory or logs.
"""

import asyncio
import base64
import gc
import logging
import os
import socket
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from ssh_server import HOST_KEY, Round, Site, enter, new_log, public, served

from jobscribe.drivers.sbatch.ssh.credentials import Credentials
from jobscribe.drivers.sbatch.ssh.sign_in import connect
from jobscribe.drivers.sbatch.ssh.ssh_channel import SshChannel
from jobscribe.protocol.clusters.cluster import LoginHost
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.event_loop_lag import LoopLag

KEY = asyncssh.generate_private_key("ssh-ed25519")
OTHER_KEY = asyncssh.generate_private_key("ssh-ed25519")
PEM = KEY.export_private_key().decode()
#: the same key, encrypted with few rounds because key derivation is slow
LOCKED = KEY.export_private_key(passphrase="open sesame", rounds=4, ignore_few_rounds=True).decode()
PASSWORD: Round = ("", "", [("Password: ", False)])
CODE: Round = ("", "", [("Verification code: ", False)])
BOTH: Round = ("", "", [("Password + OTP: ", False)])


def two_rounds(**more: Any) -> Site:
    return Site(rounds=[PASSWORD, CODE], answers=[["hunter2"], ["123456"]], **more)


async def refused(
    site: Site, *, why: str = "signInRefused", cluster: Any = None, **given: Any
) -> str:
    """Check that the sign-in is refused with the code `why`, and return the message."""
    with pytest.raises(Refusal) as e:
        await enter(cluster or site.cluster(), **given)
    assert e.value.code == why, e.value.sentence
    assert e.value.__cause__ is None and e.value.__context__ is None
    return e.value.sentence


# ---- authentication methods


@pytest.mark.process
@pytest.mark.parametrize(
    ("site", "given", "heard"),
    [
        (Site(password="hunter2"), {"password": "hunter2"}, [("password", "hunter2")]),
        (
            two_rounds(),
            {"password": "hunter2", "code": "123456"},
            [("keyboard-interactive", ["hunter2"]), ("keyboard-interactive", ["123456"])],
        ),
        (
            Site(
                rounds=[("", "", [("Password: ", False), ("One-time code: ", True)])],
                answers=[["hunter2", "123456"]],
            ),
            {"password": "hunter2", "code": "123456"},
            [("keyboard-interactive", ["hunter2", "123456"])],
        ),
        (
            Site(password="of another method", rounds=[BOTH], answers=[["hunter2123456"]]),
            {"password": "hunter2", "code": "123456"},
            [("keyboard-interactive", ["hunter2123456"])],
        ),
        (
            Site(rounds=[PASSWORD], answers=[["hunter2"]]),
            {"password": "hunter2", "code": "123456"},
            [("keyboard-interactive", ["hunter2"])],
        ),
        (
            Site(rounds=[("Notice", "Be nice", []), CODE], answers=[[], ["123456"]]),
            {"code": "123456"},
            [("keyboard-interactive", ["123456"])],
        ),
        (
            Site(
                password="hunter2",
                rounds=[CODE],
                answers=[["123456"]],
                steps=["password", "keyboard-interactive"],
            ),
            {"password": "hunter2", "code": "123456"},
            [("password", "hunter2"), ("keyboard-interactive", ["123456"])],
        ),
    ],
    ids=[
        "password",
        "two prompts",
        "two prompts at once",
        "both in one prompt",
        "code not asked",
        "notice first",
        "password then code",
    ],
)
async def test_each_question_gets_its_own_answer_once(
    site: Site, given: dict[str, str], heard: list[Any]
) -> None:
    site.heard.clear()
    async with served(site):
        channel = await enter(site.cluster(), **given)
        assert (channel.user, channel.host, channel.closed) == (
            "ann",
            f"127.0.0.1:{site.port}",
            False,
        )
        assert site.heard == heard
        await channel.close()


@pytest.mark.process
@pytest.mark.parametrize(("pem", "passphrase"), [(PEM, None), (LOCKED, "open sesame")])
async def test_a_key_opens_with_or_without_a_passphrase(pem: str, passphrase: str | None) -> None:
    async with served(Site(keys=[public(KEY)])) as site:
        await (await enter(site.cluster(), key=pem, passphrase=passphrase)).close()
        assert set(site.heard) == {("key", KEY.get_fingerprint())}


@pytest.mark.process
async def test_a_key_and_then_a_code() -> None:
    site = Site(
        keys=[public(KEY)],
        rounds=[CODE],
        answers=[["123456"]],
        steps=["publickey", "keyboard-interactive"],
    )
    async with served(site):
        await (await enter(site.cluster(), key=PEM, code="123456")).close()
        assert [h for h in site.heard if h[0] != "key"] == [("keyboard-interactive", ["123456"])]


@pytest.mark.process
@pytest.mark.parametrize("kind", ["ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256"])
async def test_a_certificate_opens_without_the_key_being_known(kind: str) -> None:
    key = asyncssh.generate_private_key(kind)
    certificate = (
        OTHER_KEY.generate_user_certificate(key, "ann for a day", principals=["ann"])
        .export_certificate()
        .decode()
    )
    async with served(Site(authority=public(OTHER_KEY))) as site:
        await (
            await enter(
                site.cluster(), key=key.export_private_key().decode(), certificate=certificate
            )
        ).close()
        assert set(site.heard) == {("authority", OTHER_KEY.get_fingerprint())}


@pytest.mark.process
async def test_through_a_jump_host_with_a_key_of_its_own() -> None:
    gate_key = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
    async with (
        served(Site(password="hunter2", host_keys=[gate_key])) as gate,
        served(two_rounds()) as site,
    ):
        channel = await enter(
            site.cluster(login=(site.login(via=gate.login()),)), password="hunter2", code="123456"
        )
        assert gate.heard == [("password", "hunter2")] and len(site.heard) == 2
        assert (await channel.run(["echo", "there"])).out == b"there\n"
        ended = asyncio.Event()
        channel.when_closed(ended.set)
        gate.connections[0].abort()
        await asyncio.wait_for(ended.wait(), 10)
        assert channel.closed


async def test_a_code_opens_one_host_only() -> None:
    """A second host would reject a used code and could count a failed attempt."""
    async with (
        served(Site(rounds=[CODE], answers=[["123456"]])) as gate,
        served(two_rounds()) as site,
    ):
        sentence = await refused(
            site,
            cluster=site.cluster(login=(site.login(via=gate.login()),)),
            password="hunter2",
            code="123456",
        )
        assert "was used at an earlier host" in sentence
        assert gate.heard == [("keyboard-interactive", ["123456"])] and site.heard == [
            ("keyboard-interactive", ["hunter2"])
        ]


# ---- refusals: a specific error for each, after one answer


@pytest.mark.parametrize(
    ("site", "given", "says", "answers"),
    [
        (
            Site(password="x", rounds=[PASSWORD], answers=[["x"]]),
            {"password": "hunter3"},
            "did not accept the password of ann",
            1,
        ),
        (Site(password="x"), {"password": "hunter3"}, "did not accept the password of ann", 1),
        (
            Site(password="x", rounds=[BOTH], answers=[["hunter2123456"]]),
            {"password": "hunter2", "code": "999999"},
            "did not accept the password with the one-time code after it of ann (it does not say which is wrong)",
            1,
        ),
        (
            two_rounds(),
            {"password": "hunter2", "code": "999999"},
            "did not accept the password and the one-time code of ann (it does not",
            2,
        ),
        (
            two_rounds(),
            {"password": "hunter3", "code": "123456"},
            "did not accept the password of ann",
            1,
        ),
        (
            Site(
                rounds=[CODE],
                answers=[["123456"]],
                password="hunter2",
                steps=["password", "keyboard-interactive"],
            ),
            {"password": "hunter2", "code": "999999"},
            "accepted the password, but not the one-time code of ann; a code can be used once",
            2,
        ),
        (
            Site(rounds=[PASSWORD, PASSWORD], answers=[["hunter2"], ["hunter2"]]),
            {"password": "hunter2"},
            "did not accept the password of ann",
            1,
        ),
        (
            Site(password="x", words="Account locked due to 3 failed logins"),
            {"password": "y"},
            "has locked the account ann or had too many tries",
            1,
        ),
        (
            Site(password="x", words="The account is locked", hang_up=True),
            {"password": "y"},
            "has locked the account ann",
            1,
        ),
        (
            Site(password="x", words="Your account has expired", hang_up=True),
            {"password": "x"},
            "the account ann has expired at 127.0.0.1",
            1,
        ),
        (
            Site(password="x", words="Your password has expired", hang_up=True),
            {"password": "x"},
            "requires ann to change the password first",
            1,
        ),
        (
            Site(password="x", change="Choose a new one"),
            {"password": "x"},
            "requires ann to change the password first",
            1,
        ),
        (
            Site(rounds=[PASSWORD, ("", "", [("New password: ", False)])], answers=[["x"], [""]]),
            {"password": "x"},
            "requires ann to change the password first",
            1,
        ),
        (
            Site(password="x", words="Closed for maintenance today", hang_up=True),
            {"password": "x"},
            "accepts no sign-ins now; try again later",
            1,
        ),
        (
            Site(rounds=[BOTH], answers=[["x"]]),
            {"password": "x"},
            "asks 'Password + OTP', both in one answer, and no one-time code was given",
            0,
        ),
        (
            Site(rounds=[CODE], answers=[["x"]]),
            {"password": "x"},
            "asks 'Verification code' and no one-time code was given",
            0,
        ),
        (
            Site(rounds=[PASSWORD], answers=[["x"]]),
            {"code": "123456"},
            "asks 'Password' and no password was given",
            0,
        ),
        (
            Site(rounds=[("", "", [("Shoe size: ", True)])], answers=[["42"]]),
            {"password": "x"},
            "asks 'Shoe size', which is neither a password nor",
            0,
        ),
        (
            Site(keys=[public(OTHER_KEY)]),
            {"password": "x"},
            "accepts none of the given credentials: it offers publickey; nothing else was sent",
            0,
        ),
        (
            Site(keys=[public(OTHER_KEY)], password="hunter2"),
            {"key": PEM, "password": "hunter2"},
            "did not accept the key FINGERPRINT",
            1,
        ),
        (
            Site(
                keys=[public(KEY)],
                rounds=[CODE],
                answers=[["1"]],
                steps=["publickey", "keyboard-interactive"],
            ),
            {"key": PEM},
            "accepted the key FINGERPRINT and asks for more: it offers keyboard-interactive",
            2,
        ),
    ],
)
async def test_a_refusal_says_what_it_was_and_nothing_is_answered_after_it(
    site: Site, given: dict[str, str], says: str, answers: int
) -> None:
    site.heard.clear()
    site.connections.clear()
    async with served(site):
        sentence = await refused(site, **given)
        assert (
            says.replace("FINGERPRINT", KEY.get_fingerprint()) in sentence
        )  # not part of the test's id, because the fingerprint changes with each run
        assert site.words in sentence
        assert len(site.heard) == answers
        await ended(site)
        assert len(site.connections) == 1
        assert len(site.heard) == answers


async def ended(site: Site) -> None:
    until = time.monotonic() + 10
    while not all(c.is_closed() for c in site.connections):
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


@pytest.mark.process
async def test_methods_that_the_cluster_does_not_name_are_not_used() -> None:
    async with served(Site(password="hunter2", rounds=[PASSWORD], answers=[["hunter2"]])) as site:
        await (await enter(site.cluster(methods=("password",)), password="hunter2")).close()
        assert site.heard == [("password", "hunter2")]
        sentence = await refused(
            site, cluster=site.cluster(methods=("publickey",)), password="hunter2", key=PEM
        )
        assert "accepts none of the given credentials" in sentence and len(site.heard) == 1


async def test_a_banner_is_passed_on_shortened_and_harmless() -> None:
    banner = "\x1b[31mWARNING\x1b[0m\n\x07 authorised use only\n" + "blah " * 200
    async with served(Site(password="x", banner=banner)) as site:
        sentence = await refused(site, password="y")
        assert f"127.0.0.1:{site.port} says: WARNING authorised use only blah" in sentence.replace(
            "***", ""
        )
        assert sentence.isprintable() and len(sentence) < 600


async def test_a_server_that_repeats_the_password_does_not_get_it_shown() -> None:
    async with served(Site(password="x", words="no such password: correct horse 4711")) as site:
        sentence = await refused(site, password="correct horse 4711")
        assert "no such password: ***" in sentence and "horse" not in sentence


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "no password, code or key was given"),
        ({"user": "a\nb", "password": "x"}, "not a valid user name"),
        ({"certificate": "x", "password": "x"}, "a certificate needs its private key"),
        ({"key": LOCKED}, "is encrypted; give its passphrase"),
        ({"key": LOCKED, "passphrase": "no"}, "the passphrase is wrong"),
        (
            {
                "key": KEY.export_private_key("pkcs8-pem", passphrase="yes").decode(),
                "passphrase": "yes",
            },
            "encrypted as PKCS#8",
        ),
        ({"key": public(KEY)}, "a public key was given instead of a private key"),
        ({"key": "PuTTY-User-Key-File-3: ssh-ed25519\n..."}, "in PuTTY's form"),
        ({"key": "hello"}, "the private key is unreadable"),
        (
            {"key": "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----"},
            "damaged",
        ),
        ({"key": PEM[:200] + PEM[230:]}, "damaged"),
        ({"key": PEM[:200] + "AAAAAAAA" + PEM[208:]}, "the private key is unreadable"),
        ({"key": PEM, "certificate": "hello"}, "the certificate is unreadable"),
        (
            {"key": PEM, "certificate": public(KEY)},
            "a public key was given instead of a certificate",
        ),
        (
            {
                "key": PEM,
                "certificate": OTHER_KEY.generate_user_certificate(
                    OTHER_KEY, "x", principals=["ann"]
                )
                .export_certificate()
                .decode(),
            },
            "belongs to another key",
        ),
        (
            {
                "key": PEM,
                "certificate": OTHER_KEY.generate_user_certificate(KEY, "x", principals=["bob"])
                .export_certificate()
                .decode(),
            },
            "is for bob and not for ann",
        ),
        (
            {
                "key": PEM,
                "certificate": OTHER_KEY.generate_host_certificate(KEY, "x", principals=["ann"])
                .export_certificate()
                .decode(),
            },
            "is a host certificate",
        ),
        (
            {
                "key": PEM,
                "certificate": OTHER_KEY.generate_user_certificate(
                    KEY, "x", valid_after=1000, valid_before=1_700_000_000
                )
                .export_certificate()
                .decode(),
            },
            "the certificate expired at 2023-11-14 22:13:20 UTC",
        ),
        (
            {
                "key": PEM,
                "certificate": OTHER_KEY.generate_user_certificate(
                    KEY, "x", valid_after=4_000_000_000
                )
                .export_certificate()
                .decode(),
            },
            "is not valid before 2096",
        ),
    ],
)
async def test_what_cannot_work_is_refused_before_any_host_hears_of_it(
    given: dict[str, str], says: str
) -> None:
    async with served(Site(password="x")) as site:
        assert says in await refused(site, **given)
        assert site.connections == []


async def test_a_key_that_would_be_computed_for_hours_is_refused_at_once() -> None:
    """The user chooses the number of rounds. Without a limit, a key could keep this process busy
    for hours.
    """
    lines = LOCKED.strip().splitlines()
    data = bytearray(base64.b64decode("".join(lines[1:-1])))
    at = data.index(b"\0\0\0\x18\0\0\0\x10") + 24  # the position after the salt
    assert data[at : at + 4] == (4).to_bytes(4, "big")
    data[at : at + 4] = (50_000_000).to_bytes(4, "big")
    pem = "\n".join([lines[0], base64.b64encode(data).decode(), lines[-1]])
    async with served(Site(password="x")) as site:
        assert "encrypted with 50000000 rounds" in await refused(
            site, key=pem, passphrase="open sesame"
        )


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            (
                1,
                b"",
                b"WARNING: Your password has expired.\nPassword change required but no TTY available.\n",
            ),
            "requires ann to change the password first",
        ),
        (
            (1, b"This account is currently not available.\n", b""),
            "runs no commands for this account (exit code 1)",
        ),
    ],
)
async def test_being_let_in_without_being_able_to_work_is_a_refusal(
    command: tuple[int, bytes, bytes], says: str
) -> None:
    async with served(Site(password="hunter2", output=lambda c: command)) as site:
        sentence = await refused(site, password="hunter2")
        assert says in sentence and "says: " in sentence
        await ended(site)


# ---- hosts: pinned keys, the network


async def test_an_unknown_host_key_is_refused_with_fingerprints_before_anything_is_sent() -> None:
    async with served(Site(password="hunter2", rounds=[PASSWORD], answers=[["hunter2"]])) as site:
        cluster = site.cluster(login=(site.login(public(KEY), public(OTHER_KEY)), site.login()))
        sentence = await refused(site, why="signInUnreachable", cluster=cluster, password="hunter2")
        for key in (HOST_KEY, KEY, OTHER_KEY):
            assert key.get_fingerprint() in sentence
        assert site.heard == [] and len(site.connections) == 1


async def test_another_kind_of_host_key_is_told_too() -> None:
    """The message must show the received key, not only 'no common algorithm'."""
    rsa = asyncssh.generate_private_key("ssh-rsa")
    async with served(Site(password="hunter2", host_keys=[rsa])) as site:
        sentence = await refused(
            site,
            why="signInUnreachable",
            cluster=site.cluster(login=(site.login(public(KEY)),)),
            password="hunter2",
        )
        assert rsa.get_fingerprint() in sentence and "ssh-rsa" in sentence


@pytest.mark.process
async def test_machines_behind_one_name_have_keys_of_their_own() -> None:
    rsa = asyncssh.generate_private_key("ssh-rsa")
    async with served(Site(password="hunter2", host_keys=[HOST_KEY, rsa])) as site:
        for pinned in (
            (public(KEY), public(HOST_KEY)),
            (public(rsa),),
            (f"login1,10.0.0.1 {public(HOST_KEY)} a comment",),
        ):
            await (
                await enter(site.cluster(login=(site.login(*pinned),)), password="hunter2")
            ).close()


@pytest.mark.process
async def test_nothing_of_this_users_ssh_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These files would trust the host, redirect the connection, or authenticate the user:
    known_hosts, config, keys and an agent.
    """
    ssh = tmp_path / ".ssh"
    ssh.mkdir()
    async with (
        served(Site(password="hunter2", keys=[public(KEY)])) as site,
        served(Site(password="hunter2")) as elsewhere,
    ):
        (ssh / "known_hosts").write_text(f"[127.0.0.1]:{site.port} {public(HOST_KEY)}\n")
        (ssh / "config").write_text(
            f"Host *\n  Port {elsewhere.port}\n  StrictHostKeyChecking no\n  UserKnownHostsFile {ssh}/known_hosts\n  User root\n  BindAddress 192.0.2.7\n"
        )
        (ssh / "id_ed25519").write_text(PEM)
        monkeypatch.setenv("HOME", str(tmp_path))
        agent = socket.socket(socket.AF_UNIX)
        agent.bind(str(tmp_path / "agent"))
        agent.listen()
        agent.setblocking(False)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        await refused(
            site,
            why="signInUnreachable",
            cluster=site.cluster(login=(site.login(public(KEY)),)),
            password="hunter2",
        )
        assert "did not accept the password" in await refused(site, password="wrong")
        await (await enter(site.cluster(), password="hunter2")).close()
        assert [h for h in site.heard if h[0] == "key"] == [] and elsewhere.connections == []
        with pytest.raises(BlockingIOError):
            agent.accept()
        agent.close()


def closed_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "says"),
    [
        (
            lambda: LoginHost(host="127.0.0.1", port=closed_port(), keys=(public(KEY),)),
            "refuses connections; no ssh server runs there",
        ),
        (
            lambda: LoginHost(host="no-such-host.invalid", keys=(public(KEY),)),
            "cannot resolve the address of no-such-host.invalid",
        ),
        (
            lambda: LoginHost(host="255.255.255.255", keys=(public(KEY),)),
            "cannot connect to 255.255.255.255",
        ),
        (
            lambda: LoginHost(host="127.0.0.1", keys=("ssh-ed25519 what",)),
            "host key 1 of 127.0.0.1 in the clusters file is not a valid key",
        ),
    ],
)
async def test_hosts_that_cannot_be_reached_are_told_apart(host: Any, says: str) -> None:
    async with served(Site()) as site:
        sentence = await refused(
            site,
            why="signInUnreachable",
            cluster=site.cluster(login=(host(),), call_secs=5.0),
            password="x",
        )
        assert says in sentence


async def test_a_server_that_says_nothing_and_one_that_is_none() -> None:
    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 2000)
        writer.close()

    for serve, says in ((nothing, "did not answer within 0.5 s"), (web, "127.0.0.1")):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        login = LoginHost(
            host="127.0.0.1", port=server.sockets[0].getsockname()[1], keys=(public(KEY),)
        )
        assert says in await refused(
            Site(),
            why="signInUnreachable",
            cluster=Site().cluster(login=(login,), call_secs=0.5),
            password="x",
        )
        server.close()


@pytest.mark.process
async def test_the_next_host_is_tried_where_the_network_fails_and_only_there() -> None:
    dead = LoginHost(host="127.0.0.1", port=closed_port(), keys=(public(KEY),))
    async with served(Site(password="x")) as first, served(Site(password="hunter2")) as second:
        channel = await enter(
            first.cluster(login=(dead, second.login(), first.login())), password="hunter2"
        )
        assert channel.host == f"127.0.0.1:{second.port}" and first.connections == []
        await channel.close()
        second.heard.clear()
        await refused(
            first, cluster=first.cluster(login=(first.login(), second.login())), password="hunter2"
        )
        assert len(first.heard) == 1 and second.heard == []


async def test_no_host_is_tried_after_an_answer_that_nobody_confirmed() -> None:
    """The code may be used up, or the failure counted, so the answer must not go to another host."""
    async with (
        served(Site(password="x", freeze=True)) as first,
        served(Site(password="hunter2")) as second,
    ):
        cluster = first.cluster(login=(first.login(), second.login()), call_secs=1.0)
        sentence = await refused(
            first, why="signInUnreachable", cluster=cluster, password="hunter2"
        )
        assert (
            "closed the connection after the password had been sent (no answer in 1 s)" in sentence
            and "it is unknown whether it was accepted" in sentence
        )
        assert second.connections == []


async def test_a_jump_host_that_does_not_connect_us() -> None:
    async with (
        served(Site(password="hunter2", options={"jump": False})) as gate,
        served(Site(password="hunter2")) as site,
    ):
        sentence = await refused(
            site,
            why="signInUnreachable",
            cluster=site.cluster(login=(site.login(via=gate.login()),)),
            password="hunter2",
        )
        assert (
            f"127.0.0.1:{gate.port} accepted the sign-in, but did not connect to 127.0.0.1:{site.port}"
            in sentence
        )
        await ended(gate)


# ---- secrets


CANARY = ("kqzwxv", "81940762")


#: Objects that refer to no others, and code, whose constants were there before the canary.
_LEAVES = (str, bytes, bytearray, memoryview, int, float, types.CodeType)


def holders() -> list[str]:
    """Return the places in this process's memory that hold the canary, among all objects that the
    garbage collector reaches.
    """
    gc.collect()
    whole = fresh()
    seen = {id(whole)}
    texts: list[str] = []
    binary: list[bytes | bytearray | memoryview] = []
    near: list[Any] = gc.get_objects()
    while near:  # level by level, because there are many objects
        new = {id(o): o for o in near}
        for known in seen.intersection(new):
            del new[known]
        seen.update(new)
        texts += [o for o in new.values() if isinstance(o, str)]
        binary += [o for o in new.values() if isinstance(o, bytes | bytearray | memoryview)]
        near = gc.get_referents(*[o for o in new.values() if not isinstance(o, _LEAVES)])
    found: list[str | bytes | bytearray | memoryview] = [
        *(o for o in texts if CANARY[0] in o and whole in o),
        *(o for o in binary if whole.encode() in bytes(o)),
    ]
    return [
        f"{type(o).__name__} of {len(o)} in {[f'{r!r:.200}' for r in gc.get_referrers(o) if r is not found]}"
        for o in found
    ]


def fresh() -> str:
    """Return the canary as a new string; elsewhere only its halves are stored."""
    return "".join(CANARY)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0.02)


def quiet_site(**more: Any) -> Site:
    """Return a site that keeps no answers, because it shares this process's memory."""
    site = Site(**more)

    class Nothing(list[Any]):
        def append(self, item: Any) -> None:
            return

    site.heard = Nothing()
    return site


@pytest.mark.skipif(not os.environ.get("SOAK"), reason="searches all memory: set SOAK=1")
def test_the_search_finds_a_canary() -> None:
    kept = {"a": [Credentials(user="ann", password=fresh())]}
    assert holders() != []
    # the next test checks that no copy remains:
    # test_no_secret_stays_in_memory_in_logs_or_in_refusals
    kept.clear()


#: the server's requirements, and the credentials given
WAYS = {
    "password": (lambda: {"password": fresh()}, lambda: {"password": fresh()}),
    "two": (
        lambda: {"rounds": [PASSWORD, CODE], "answers": [[fresh()], [fresh()]]},
        lambda: {"password": fresh(), "code": fresh()},
    ),
    "wrong": (
        lambda: {"password": "no", "words": "so not: " + fresh()},
        lambda: {"password": fresh()},
    ),
    "wrong both": (
        lambda: {"rounds": [BOTH], "answers": [["no"]]},
        lambda: {"password": "pw", "code": fresh()},
    ),
    "unknown host": (
        lambda: {"password": "no", "host_keys": [OTHER_KEY]},
        lambda: {"password": fresh()},
    ),
    "frozen": (lambda: {"password": "no", "freeze": True}, lambda: {"password": fresh()}),
    "change": (lambda: {"password": "no", "change": "Choose"}, lambda: {"password": fresh()}),
    "key": (
        lambda: {"keys": [public(KEY)]},
        lambda: {
            "key": KEY.export_private_key(
                passphrase=fresh(), rounds=4, ignore_few_rounds=True
            ).decode(),
            "passphrase": fresh(),
        },
    ),
    "wrong passphrase": (
        lambda: {"keys": [public(KEY)]},
        lambda: {"key": LOCKED, "passphrase": fresh()},
    ),
    # the last one: the memory search runs while its connection is open
    "both": (
        lambda: {"rounds": [BOTH], "answers": [["pw" + fresh()]]},
        lambda: {"password": "pw", "code": fresh()},
    ),
}


async def go_a_way(way: str, told: list[str]) -> SshChannel | None:
    """Sign in once with the canary, and add all messages, log lines and representations to `told`."""
    log, output = new_log()
    wants, gives = WAYS[way]
    site = quiet_site(**wants())
    async with served(site):
        cluster = site.cluster(
            call_secs=1.0 if way == "frozen" else 20.0, login=(site.login(public(HOST_KEY)),)
        )
        credentials = Credentials(user="ann", **gives())
        told += [
            repr(credentials),
            f"{credentials}",
            credentials.pkdebug_str(),
            str(Redactor().value([credentials])),
        ]
        channel = None
        try:
            channel = await connect(cluster, credentials, log)
        except Refusal as e:
            told += [repr(e), *traceback.format_exception(e)]
            await ended(site)
        assert (channel is not None) == (way in ("password", "both", "two", "key")), told
        assert (
            credentials.password
            is credentials.code
            is credentials.key
            is credentials.passphrase
            is None
        )
        assert output.text.count("\n") == 1
        told.append(output.text)
        # the server shares this process's memory
        site.password = site.words = ""
        site.answers = site.rounds = ()
        if channel is not None:
            assert not channel.closed
            await asyncio.sleep(0.05)
            assert way != "both" or holders() == []
            await channel.close()
        return channel


async def give_up() -> None:
    """Cancel a sign-in while it waits for the host."""
    site = quiet_site(password="no", freeze=True)
    async with served(site):
        credentials = Credentials(user="ann", password=fresh())
        going = asyncio.ensure_future(connect(site.cluster(), credentials, new_log()[0]))
        while not site.connections:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        going.cancel()
        await asyncio.wait([going])
        assert going.cancelled() and credentials.password is None
        await ended(site)


async def make_a_mistake(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    """Raise an unexpected exception that has a secret in its message and in its frames."""
    log, output = new_log()

    def broken(*args: Any) -> dict[str, Any]:
        secret = fresh()
        raise ZeroDivisionError(secret)

    async with served(Site(password="x")) as site:
        with monkeypatch.context() as patch:
            patch.setattr("jobscribe.drivers.sbatch.ssh.host_attempts._options", broken)
            with pytest.raises(Refusal) as e:
                await connect(site.cluster(), Credentials(user="ann", password=fresh()), log)
        assert e.value.code == "signInUnreachable" and "ZeroDivisionError" in e.value.sentence
        assert "ZeroDivisionError at host_attempts.py:" in output.text and "broken" in output.text
        assert e.value.__context__ is None and e.value.__cause__ is None
        told += [output.text, repr(e.value), *traceback.format_exception(e.value)]


@pytest.mark.process
async def test_no_secret_stays_in_memory_in_logs_or_in_refusals(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run every method and refusal with the library's own log at its most verbose level."""
    told: list[str] = []
    channels = []
    await give_up()
    await make_a_mistake(monkeypatch, told)
    for way in WAYS:
        logging.getLogger("asyncssh").setLevel(logging.DEBUG)
        asyncssh.set_debug_level(3)
        with caplog.at_level(logging.DEBUG):
            channels.append(await go_a_way(way, told))
    logging.getLogger("asyncssh").setLevel(logging.CRITICAL)
    said = caplog.text + "".join(told)
    assert "kqzwxv" not in said and "BEGIN OPENSSH" not in said
    assert [r.getMessage() for r in caplog.records if "listener" not in r.getMessage()] == []
    del said
    await settled()
    assert [
        o
        for o in gc.get_objects()
        if isinstance(o, asyncssh.SSHKeyPair) and o.key_public_data == KEY.public_data
    ] == []
    assert not os.environ.get("SOAK") or holders() == []


# ---- the event loop stays responsive


@pytest.mark.process
def test_handshakes_and_key_derivation_do_not_hold_the_loop() -> None:
    """Sign in several times at once: half with a key encrypted with 50 rounds, half with an RSA
    key. The server is another process.
    """
    each, bits = (4, 4096) if os.environ.get("SOAK") else (2, 3072)
    rsa = asyncssh.generate_private_key("ssh-rsa", key_size=bits)
    locked = KEY.export_private_key(passphrase="open sesame", rounds=50).decode()
    pem = rsa.export_private_key().decode()
    lag = LoopLag()
    entered = 0

    async def main() -> None:
        nonlocal entered
        server = await asyncio.create_subprocess_exec(
            *_server_process(public(rsa), public(KEY)),
            stdout=asyncio.subprocess.PIPE,
            stdin=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            },
        )
        assert server.stdout is not None
        try:
            site = Site(port=int(await asyncio.wait_for(server.stdout.readline(), 60)))
            host_key = (await server.stdout.readline()).decode().strip()
            cluster = site.cluster(login=(site.login(host_key),), call_secs=60.0)
            await (await enter(cluster, key=pem)).close()  # loads the lazily imported modules
            lag.begin()
            channels = await asyncio.gather(
                *(enter(cluster, key=pem) for _ in range(each)),
                *(enter(cluster, key=locked, passphrase="open sesame") for _ in range(each)),
            )
            entered = len(channels)
            await asyncio.gather(*(c.run(["true"]) for c in channels))
            await asyncio.gather(*(c.close() for c in channels))
        finally:
            server.kill()
            await server.wait()

    lag.run(main())
    assert entered == 2 * each
    assert lag.summary()["worst"]["secs"] <= (0.05 if os.environ.get("SOAK") else 0.25), (
        lag.summary()
    )


_SERVER = """
import asyncio, sys
from ssh_server import HOST_KEY, Site, public, served
async def main():
    async with served(Site(keys=sys.argv[1:])) as site:
        print(site.port, flush=True)
        print(public(HOST_KEY), flush=True)
        await asyncio.sleep(300)
asyncio.run(main())
"""


def _server_process(*keys: str) -> list[str]:
    return [sys.executable, "-c", _SERVER, *keys]
