"""The ways to sign in exclude each other, and each has what it needs."""

from pathlib import Path

import pytest

from jobscribe.protocol.errors import Refusal
from jobscribe.service.settings.loader import load
from jobscribe.service.site.sign_in_checks import problems
from jobscribe.service.site.startup_checks import check_server

OIDC = {
    "server.oidc_issuer": "https://sign-in.example.org/",
    "server.oidc_client_id": "site",
    "server.oidc_client_secret_file": "/nowhere",
    "server.public_url": "https://jobs.example.org/",
    "server.uid_file": "/var/lib/uids.json",
}
PAM = {
    "server.pam_service": "jobscribe",
    "server.public_url": "https://jobs.example.org",
    "server.uid_file": "/var/lib/uids.json",
}
HOOK = {"server.user_hook": "a:b"}
HEADER = {"server.user_header": "X-User", "limits.trusted_peers": "root"}


def sentences(given: dict[str, str]) -> list[str]:
    return [p.sentence for p in problems(load(given, env={}))]


@pytest.mark.parametrize("way", [OIDC, PAM, HOOK, HEADER, {}])
def test_one_way_is_enough(way: dict[str, str]) -> None:
    assert sentences(way) == []


def test_one_way_excludes_the_others(tmp_path: Path) -> None:
    ways = (OIDC, PAM, HOOK, HEADER)
    for one in ways:
        for other in ways:
            (found,) = sentences({**one, **other}) if one is not other else ("are both set",)
            assert "are both set" in found
    (found,) = sentences({**OIDC, **PAM, **HOOK})
    assert "are all set" in found and "remove the others" in found
    # the sentence says where both were set
    file = tmp_path / "c.toml"
    file.write_text("[server]\nuser_hook = 'a:b'\n")
    settings = load(HEADER, env={}, file=str(file))
    (problem,) = problems(settings)
    assert f"server.user_hook ({file}:2)" in problem.sentence
    assert "server.user_header (option --user-header)" in problem.sentence


@pytest.mark.parametrize("way", [OIDC, PAM])
def test_what_a_way_needs_is_named(way: dict[str, str]) -> None:
    first, *others = way
    (found,) = sentences({first: way[first]})
    assert all(name in found for name in others)


def test_settings_of_a_way_that_is_not_set_are_refused() -> None:
    given = {k: v for k, v in OIDC.items() if k != "server.oidc_issuer"}
    assert all("has no use without server.oidc_issuer" in s for s in sentences(given))


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("Zx4kQ9vB7mN2pL5wR8tY3uJ6hG1fD0sA")
    settings = load({**OIDC, "server.oidc_client_secret_file": str(secret)}, env={})
    secret.chmod(0o640)
    with pytest.raises(Refusal) as told:
        check_server(settings)
    assert told.value.code == "unsafe" and "server.oidc_client_secret_file" in told.value.sentence
    secret.chmod(0o600)
    check_server(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("server.public_url", "http://jobs.example.org"),
        ("server.public_url", "https://jobs.example.org/?a=b"),
        ("server.public_url", "https://user@jobs.example.org"),
        ("server.public_url", "https://jobs.example.org:port"),
        ("server.public_url", "jobs.example.org"),
        ("server.oidc_issuer", "http://sign-in.example.org"),
        ("server.oidc_scopes", "profile"),
        ("server.oidc_claim", "a b"),
        ("server.pam_service", "../login"),
    ],
)
def test_values_that_are_refused(name: str, value: str) -> None:
    with pytest.raises(Refusal) as told:
        load({name: value}, env={})
    assert told.value.code == "badConfig"


def test_the_issuer_is_compared_as_it_was_given() -> None:
    settings = load(OIDC, env={})
    assert settings.server.oidc_issuer == "https://sign-in.example.org/"
    assert settings.server.public_url == "https://jobs.example.org"
