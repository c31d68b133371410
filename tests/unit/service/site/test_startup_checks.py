"""A supervisor refuses to start with settings that expose its secrets or its users' work."""

import os
import pathlib
import secrets

import pytest

from jobscribe.protocol.errors import Refusal
from jobscribe.service.settings.settings import Settings, SupervisorSettings
from jobscribe.service.site.secret_files import is_loopback, read_secret
from jobscribe.service.site.startup_checks import check, problems


def private(path: pathlib.Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.fixture
def good(tmp_path: pathlib.Path) -> SupervisorSettings:
    return SupervisorSettings(
        server_secret_file=private(tmp_path / "secret", secrets.token_hex(32) + "\n")
    )


def reason(s: SupervisorSettings) -> tuple[str, str]:
    with pytest.raises(Refusal) as e:
        check(Settings(root="/nowhere", supervisor=s))
    return e.value.code, e.value.sentence


def test_safe_settings_pass(good: SupervisorSettings) -> None:
    check(Settings(root="/nowhere", supervisor=good))
    check(Settings(root="/nowhere", supervisor=SupervisorSettings(development=True)))


def test_no_secret_outside_development_is_refused() -> None:
    code, sentence = reason(SupervisorSettings())
    assert code == "unsafe" and "supervisor.server_secret_file" in sentence


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o644, 0o620, 0o601])
def test_a_secret_or_key_that_others_can_reach_is_refused(
    tmp_path: pathlib.Path, good: SupervisorSettings, mode: int
) -> None:
    path = private(tmp_path / "open", secrets.token_hex(32), mode)
    code, sentence = reason(SupervisorSettings(server_secret_file=path))
    assert code == "unsafe" and "chmod 600" in sentence and f"{mode:04o}" in sentence
    tls = SupervisorSettings(
        server_secret_file=good.server_secret_file,
        agents_tls_cert="c",
        agents_tls_key=path,
        agents_tls_ca="a",
    )
    code, sentence = reason(tls)
    assert code == "unsafe" and "supervisor.agents_tls_key" in sentence


@pytest.mark.parametrize(
    ("secret", "word"),
    [
        ("", "guessed"),
        ("short", "guessed"),
        ("a" * 64, "guessed"),
        ("abcabcabc" * 8, "guessed"),
        ("my-changeme-0123456789abcdef", "example"),
        ("ThisIsTheServerSecret12345", "example"),
    ],
)
def test_a_secret_that_is_easily_guessed_is_refused_and_not_shown(
    tmp_path: pathlib.Path, secret: str, word: str
) -> None:
    code, sentence = reason(
        SupervisorSettings(server_secret_file=private(tmp_path / "secret", secret))
    )
    assert code == "unsafe" and word in sentence
    assert not secret or secret not in sentence


def test_a_secret_that_is_missing_or_no_file_is_refused_even_in_development(
    tmp_path: pathlib.Path,
) -> None:
    assert (
        reason(SupervisorSettings(server_secret_file=str(tmp_path / "none"), development=True))[0]
        == "badConfig"
    )
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    assert reason(SupervisorSettings(server_secret_file=str(folder)))[0] == "unsafe"
    with pytest.raises(Refusal, match="badConfig"):
        path = tmp_path / "binary"
        path.write_bytes(b"\xff\xfe" * 40)
        path.chmod(0o600)
        read_secret(str(path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_secret_that_belongs_to_another_user_is_refused(tmp_path: pathlib.Path) -> None:
    path = private(tmp_path / "secret", secrets.token_hex(32))
    os.chown(path, 12345, -1)
    code, sentence = reason(SupervisorSettings(server_secret_file=path))
    assert code == "unsafe" and "another user" in sentence


@pytest.mark.parametrize(
    "ip",
    ["0.0.0.0", "::", "192.168.1.5", "10.0.0.1", "example.org", "128.0.0.1", "::ffff:10.0.0.1"],
)
def test_off_loopback_without_tls_is_refused_even_in_development(
    good: SupervisorSettings, ip: str
) -> None:
    code, sentence = reason(SupervisorSettings(ip=ip, development=True))
    assert code == "unsafe" and "supervisor.ip" in sentence
    code, sentence = reason(
        SupervisorSettings(agents_ip=ip, server_secret_file=good.server_secret_file)
    )
    assert code == "unsafe" and "supervisor.agents_ip" in sentence


@pytest.mark.parametrize("ip", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_needs_no_tls(ip: str) -> None:
    assert is_loopback(ip)


def test_agents_off_loopback_with_tls_pass(
    tmp_path: pathlib.Path, good: SupervisorSettings
) -> None:
    key = private(tmp_path / "key", "a key")
    s = SupervisorSettings(
        server_secret_file=good.server_secret_file,
        agents_ip="0.0.0.0",
        agents_tls_cert="c",
        agents_tls_key=key,
        agents_tls_ca="a",
    )
    check(Settings(root="/nowhere", supervisor=s))


def test_a_person_is_told_everything_at_once() -> None:
    found = list(
        problems(
            Settings(
                root="/nowhere", supervisor=SupervisorSettings(ip="0.0.0.0", agents_ip="0.0.0.0")
            )
        )
    )
    assert [p.code for p in found] == ["unsafe"] * 3


def test_the_secret_is_read_without_its_line_break(tmp_path: pathlib.Path) -> None:
    secret = secrets.token_hex(32)
    assert read_secret(private(tmp_path / "s", f"  {secret}\n")) == secret
