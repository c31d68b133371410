"""A certificate is reported before it expires and after, by each part that looks at it."""

import calendar
from pathlib import Path

import pytest
from certificate_authority import Authority

from jobscribe.protocol.errors import Refusal
from jobscribe.service.settings.settings import ServerSettings, Settings, SupervisorSettings
from jobscribe.service.site.certificates import SOON_SECS, expiry, expiry_sentence, expiry_warnings
from jobscribe.service.site.startup_checks import check_server
from jobscribe.supervisor.process.listeners import ServerCertificate

DAY = 86400.0


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return Authority("jobscribe test").issue(tmp_path_factory.mktemp("tls"))


def test_the_time_is_that_of_the_certificate(issued: tuple[Path, Path], tmp_path: Path) -> None:
    from cryptography import x509

    read = x509.load_pem_x509_certificate(issued[0].read_bytes()).not_valid_after_utc
    assert expiry(str(issued[0])) == calendar.timegm(read.utctimetuple())
    (tmp_path / "none").write_text("no certificate")
    assert expiry(str(tmp_path / "none")) is expiry(str(tmp_path / "missing")) is None


def test_the_sentence_says_how_long_it_is_valid() -> None:
    def said(left: float) -> str | None:
        return expiry_sentence("/c.pem", 1_800_000_000.0, 1_800_000_000.0 - left)

    assert said(SOON_SECS + 1) is None
    assert said(SOON_SECS) == "the certificate /c.pem expires at 2027-01-15 08:00 UTC, in 14 days"
    assert "less than a day" in str(said(DAY - 1)) and "has expired" in str(said(0.0))


def test_startup_checks_and_doctor_warn(issued: tuple[Path, Path]) -> None:
    cert, key = map(str, issued)
    settings = Settings(supervisor=SupervisorSettings(tls_cert=cert, tls_key=key))
    expires = expiry(cert)
    assert expires is not None
    assert list(expiry_warnings(settings, expires - SOON_SECS - 1)) == []
    for now, part in ((expires - DAY, "expires at"), (expires + 1, "has expired")):
        [said] = expiry_warnings(settings, now)
        assert part in said and cert in said


def test_a_listener_announces_each_change_once_and_follows_a_renewal(tmp_path: Path) -> None:
    authority = Authority("jobscribe test")
    cert, key = map(str, authority.issue(tmp_path))
    found = ServerCertificate("https", cert, key)
    assert found.expires is not None
    end = found.expires
    assert list(found.announce(end - SOON_SECS - 1)) == []
    said = [list(found.announce(now)) for now in (end - 2 * DAY, end - 2 * DAY, end, end + 1)]
    assert [len(s) for s in said] == [1, 0, 1, 0] and "has expired" in said[2][0]
    assert found.expired(end) and not found.expired(end - 1)
    found.expires = end - 5 * DAY
    authority.issue(tmp_path)
    assert found.refresh() and abs((found.expires or 0.0) - end) < 60


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("http://127.0.0.1:7000", False),
        ("http://[::1]:7000", False),
        ("https://jobs.example", False),
        ("http://jobs.example", True),
        ("http://192.0.2.1:7000", True),
        ("http://[x", True),
    ],
)
def test_the_front_end_sends_no_secret_in_clear_to_another_machine(url: str, refused: bool) -> None:
    settings = Settings(server=ServerSettings(user_hook="m:f", supervisor_url=url))
    if not refused:
        check_server(settings)
        return
    with pytest.raises(Refusal) as e:
        check_server(settings)
    assert e.value.code == "unsafe" and "supervisor_url" in e.value.sentence
