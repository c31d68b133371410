"""Archived logs of agents on clusters, beside the user's runs: bounded in number and size, without
secrets, and safe against the user's links.
"""

import stat
from pathlib import Path

import pytest

from jobscribe.drivers.sbatch import log_archive
from jobscribe.protocol.redaction import Redactor

SECRET = "SecretTokenOfTheAgent0123456789a"


def keep(root: Path, remote: bytes = b"r\n", start: bytes = b"s\n", now: float = 1e9) -> list[Path]:
    log_archive.keep(str(root), "DriverU1", "hpc", remote, start, Redactor([SECRET]), now=now)
    return sorted((root / "DriverU1" / "agent-sbatch" / "hpc").iterdir())


def test_both_have_the_time_of_the_start_in_their_name(tmp_path: Path) -> None:
    (start,) = [p for p in keep(tmp_path) if p.name.endswith("-start.log")]
    assert start.name == "20010909014640-start.log" and start.read_bytes() == b"s\n"
    assert start.with_name("20010909014640-remote.log").read_bytes() == b"r\n"
    assert (
        stat.S_IMODE(start.stat().st_mode) == 0o600
        and stat.S_IMODE(start.parent.stat().st_mode) == 0o700
    )


def test_two_starts_within_a_second_are_both_kept(tmp_path: Path) -> None:
    keep(tmp_path)
    assert len(keep(tmp_path)) == 4


def test_the_newest_twenty_are_kept(tmp_path: Path) -> None:
    for n in range(25):
        left = keep(tmp_path, now=1e9 + 60 * n)
    assert len(left) == 40
    assert min(p.name for p in left) == "20010909015140-remote.log"


def test_a_long_one_keeps_its_end(tmp_path: Path) -> None:
    remote = keep(
        tmp_path, remote=b"".join(b"line %d %s\n" % (n, SECRET.encode()) for n in range(60_000))
    )[0]
    text = remote.read_bytes()
    assert (
        len(text) <= 1 << 20
        and text.endswith(b"line 59999 <REDACTED>\n")
        and text.startswith(b"...\nline ")
    )
    assert SECRET.encode() not in text


@pytest.mark.parametrize(
    "where", ["DriverU1", "DriverU1/agent-sbatch", "DriverU1/agent-sbatch/hpc"]
)
def test_no_link_of_the_user_is_followed(tmp_path: Path, where: str) -> None:
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "root"
    elsewhere.mkdir()
    (root / where).parent.mkdir(parents=True)
    (root / where).symlink_to(elsewhere)
    with pytest.raises(OSError):
        keep(root)
    assert not list(elsewhere.iterdir())
