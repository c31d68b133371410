"""`jobscribe login` asks at the terminal, sends the secrets once, and never displays them."""

import base64
import contextlib
import io
import os
import pty
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fake = Any
Run = Any


def tries(fake: Fake) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in body.items() if v is not None and k != "uid"}
        for path, body in fake.requests
        if path == "sbatch-login"
    ]


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_password_and_code_from_standard_input(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "correct horse\n123456\n")
    ended = run("login", "alpha", "--user", "joe", "--password-stdin")
    assert (ended.code, ended.out, ended.err) == (0, "", "signed in to alpha as joe\n")
    assert tries(fake) == [
        {"cluster": "alpha", "username": "joe", "password": "correct horse", "otp": "123456"}
    ]
    # no questions if the user is signed in already
    assert run("login", "--json").json() == {
        "schema": "jobscribe.login/1",
        "cluster": "alpha",
        "host": "login.example.org",
        "user": "joe",
        "ready": True,
    }
    assert len(tries(fake)) == 1


def test_somebody_else_is_refused_while_one_is_signed_in_and_nothing_is_asked(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.signed_in = "joe"
    typed(monkeypatch, "canary\n")
    ended = run("login", "alpha", "--user", "ann", "--password-stdin")
    assert (
        ended.code == 125
        and "as joe" in ended.err
        and "jobscribe logout alpha" in ended.err
        and "canary" not in ended.err
    )
    assert tries(fake) == [{"cluster": "alpha", "username": "ann"}]
    for args in (["--user", "joe"], []):
        assert run("login", "alpha", *args).err == "already signed in to alpha as joe\n"


def test_signing_out_says_what_goes_on(run: Run, fake: Fake) -> None:
    assert run("logout").err == "you were not signed in to alpha\n"
    fake.signed_in = "ann"
    ended = run("logout", "beta")
    assert ended.code == 0 and ended.err == (
        "signed out of beta as ann\n2 of your runs continue there; after 'jobscribe login beta' their state is known again\n"
    )
    fake.signed_in = "lost"
    assert "cannot be reached" in run("logout").err
    assert run("logout", "--json").json() == {
        "schema": "jobscribe.logout/1",
        "cluster": "alpha",
        "host": "login.example.org",
        "user": None,
        "signedOut": False,
        "agentEnded": True,
        "runs": 0,
    }


def test_a_refusal_is_one_sentence_and_is_not_repeated(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "canary\n")
    ended = run("login", "--user", "joe", "--password-stdin")
    assert (
        ended.code == 125
        and "has not accepted the password" in ended.err
        and "canary" not in ended.err
    )
    assert len(tries(fake)) == 1


def test_without_a_terminal_it_says_what_to_do(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "")
    ended = run("login")
    assert ended.code == 2 and "--password-stdin" in ended.err
    assert run("login", "--certificate", "x").code == 2
    assert run("login", "--key", str(fake.root / "none"), "--password-stdin").code == 2
    assert tries(fake) == []


def _openssh(cipher: bytes) -> str:
    raw = b"openssh-key-v1\0" + len(cipher).to_bytes(4, "big") + cipher + b"\0" * 40
    return (
        "-----BEGIN OPENSSH PRIVATE KEY-----\n"
        + base64.encodebytes(raw).decode()
        + "-----END OPENSSH PRIVATE KEY-----\n"
    )


def test_a_key_goes_with_its_passphrase_only_where_it_has_one(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain, locked, certificate = tmp_path / "plain", tmp_path / "locked", tmp_path / "cert.pub"
    plain.write_text(_openssh(b"none"))
    locked.write_text(_openssh(b"aes256-ctr"))
    certificate.write_text("ssh-ed25519-cert-v01@openssh.com AAAA\n")
    typed(monkeypatch, "the password\n")
    run(
        "login",
        "-l",
        "joe",
        "--key",
        str(plain),
        "--certificate",
        str(certificate),
        "--password-stdin",
    )
    typed(monkeypatch, "open sesame\nthe password\n")
    run("login", "-l", "joe", "--key", str(locked), "--password-stdin")
    about = {"cluster": "alpha", "username": "joe", "password": "the password"}
    assert tries(fake) == [
        {**about, "privateKey": plain.read_text(), "certificate": certificate.read_text()},
        {**about, "privateKey": locked.read_text(), "passphrase": "open sesame"},
    ]


@pytest.mark.process
def test_at_a_terminal_it_asks_and_nothing_that_is_typed_is_shown(
    fake: Fake, started: Callable[..., Any]
) -> None:
    ours, theirs = pty.openpty()
    process = started(
        "login", "beta", stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=_own_terminal
    )
    os.close(theirs)
    shown = ""
    for question, answer in (
        ("User at login.example.org", "joe"),
        ("Password of joe at login.example.org", "correct horse"),
        ("One-time code", "123456"),
    ):
        shown += _until(ours, question)
        os.write(ours, answer.encode() + b"\n")
    shown += _until(ours, "signed in to beta as joe")
    assert process.wait(30) == 0
    os.close(ours)
    assert "correct horse" not in shown and "123456" not in shown
    assert tries(fake) == [
        {"cluster": "beta", "username": "joe", "password": "correct horse", "otp": "123456"}
    ]


def _own_terminal() -> None:
    os.setsid()
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _until(descriptor: int, text: str, secs: float = 40.0) -> str:
    shown, end = "", time.monotonic() + secs
    while text not in shown:
        assert time.monotonic() < end, f"not shown: {text}; but {shown!r}"
        if select.select([descriptor], [], [], 0.2)[0]:
            with contextlib.suppress(OSError):
                shown += os.read(descriptor, 4096).decode()
    return shown
