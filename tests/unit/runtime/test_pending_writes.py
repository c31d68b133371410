"""Writes that fail are kept and tried again; of several values for a path the newest is written."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from jobscribe.runtime.execution import pending_writes
from jobscribe.runtime.execution.folder import write_json
from jobscribe.runtime.execution.pending_writes import PendingWrites
from jobscribe.runtime.filesystems import create


class Disk:
    """A disk that can be full."""

    full = False

    def write(self, path: str, value: dict[str, Any]) -> None:
        self.check(path)
        write_json(path, value)

    def create(self, path: str, data: bytes) -> bool:
        self.check(path)
        return create(path, data)

    def check(self, path: str) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device", path)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(pending_writes, "write_json", disk.write)
    monkeypatch.setattr(pending_writes, "create", disk.create)
    return disk


def test_the_newest_value_of_each_path_is_written_as_soon_as_the_disk_takes_it(
    disk: Disk, tmp_path: Path
) -> None:
    said: list[str] = []
    writes, path, other = PendingWrites(said.append), tmp_path / "a.json", tmp_path / "b.json"
    disk.full = True
    for n in (1, 2):
        writes.write(str(path), {"n": n})
    writes.write(str(other), {"n": 3})
    pauses = []
    for _ in range(6):
        pauses.append(writes.pause)
        writes.retry()
    assert writes and not path.exists()
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    disk.full = False
    writes.retry()
    assert not writes and writes.pause == 0.2
    assert [json.loads(p.read_bytes())["n"] for p in (path, other)] == [2, 3]
    assert said == [
        *(f"cannot write {p}: No space left on device; retrying" for p in (path, other)),
        "all pending writes are done",
    ]


def test_a_deleted_file_is_not_written_later(disk: Disk, tmp_path: Path) -> None:
    writes, path = PendingWrites(lambda said: None), tmp_path / "a.json"
    writes.write(str(path), {"n": 1})
    disk.full = True
    writes.write(str(path), {"n": 2})
    writes.delete(str(path))
    assert not writes and not path.exists()


def test_pending_writes_are_bounded_and_the_oldest_is_dropped(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_writes, "_MOST", 2)
    writes = PendingWrites(lambda said: None)
    disk.full = True
    for name in "abc":
        writes.write(str(tmp_path / name), {})
    disk.full = False
    writes.flush()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "c"]


def test_a_file_whose_folder_is_gone_is_given_up(tmp_path: Path) -> None:
    said: list[str] = []
    writes = PendingWrites(said.append)
    writes.write(str(tmp_path / "gone" / "a.json"), {})
    assert not writes and len(said) == 1
