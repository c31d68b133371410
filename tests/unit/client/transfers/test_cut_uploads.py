"""Uploads to a run directory that continue after a cut, with a remote that plays the supervisor."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from jobscribe.client.api.errors import ClientError, own, refused
from jobscribe.client.transfers.remote import Remote
from jobscribe.client.transfers.upload import Upload

CONTENT = bytes(range(100))


class Supervisor:
    """Stores one file. The first request is cut after 40 bytes. late: the number of further bytes of
    it that are stored after the client has asked how many there are. refuses: the second request is
    refused in any case.
    """

    def __init__(self, late: int, *, refuses: bool = False) -> None:
        self.stored, self.puts = b"", 0
        self._late, self._refuses = late, refuses

    def digest(self, name: str, offset: int, length: int) -> Any:
        raise refused("notFound", "there is no such file")

    def received(self, name: str, sha256: str, size: int) -> int:
        return len(self.stored)

    def put(self, name: str, sha256: str, size: int, offset: int, pieces: Iterable[bytes]) -> None:
        data = b"".join(pieces)
        self.puts += 1
        if self.puts == 1:
            self.stored = data[:40]
            raise own("unreachable", "the connection was cut")
        if self.puts == 2:
            self.stored += CONTENT[len(self.stored) :][: self._late]
        if len(self.stored) != offset or self._refuses:
            raise refused("conflict", f"{len(self.stored)} bytes are stored")
        self.stored += data


def upload(supervisor: Supervisor, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(CONTENT)
    remote = cast("Remote", supervisor)
    sender = Upload(remote, lambda n: None, replace=False, sleep=lambda secs: None)
    sender.copy("x", str(tmp_path / "x"))


def test_an_upload_continues_after_bytes_that_were_stored_after_the_cut(tmp_path: Path) -> None:
    supervisor = Supervisor(late=20)
    upload(supervisor, tmp_path)
    assert (supervisor.stored, supervisor.puts) == (CONTENT, 3)


def test_an_upload_waits_until_everything_before_the_cut_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would send what is stored meanwhile a second time."""
    supervisor = Supervisor(late=0)

    def received(name: str, sha256: str, size: int) -> int:
        known = len(supervisor.stored)
        if 0 < known < 70:
            supervisor.stored += CONTENT[known : known + 10]
        return known

    monkeypatch.setattr(supervisor, "received", received)
    upload(supervisor, tmp_path)
    assert (supervisor.stored, supervisor.puts) == (CONTENT, 2)


def test_a_conflict_that_no_late_bytes_explain_is_not_repeated(tmp_path: Path) -> None:
    supervisor = Supervisor(late=0, refuses=True)
    with pytest.raises(ClientError, match="40 bytes are stored"):
        upload(supervisor, tmp_path)
    assert supervisor.puts == 2


def test_an_upload_whose_late_bytes_complete_the_file_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(late=60)
    complete = lambda self, *args: supervisor.stored == CONTENT
    monkeypatch.setattr(Upload, "_is_complete", complete)
    upload(supervisor, tmp_path)
    assert supervisor.puts == 2
