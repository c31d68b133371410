"""The size of a folder: what counts, and what a user's job cannot do to the walk."""

import os
import pathlib

import pytest

from jobscribe.supervisor.files import disk_walk
from jobscribe.supervisor.files.disk_walk import Size, Stopped, Walk

MIB = 2**20


def write(path: pathlib.Path, size: int = MIB) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def walk() -> Walk:
    return Walk(rest=lambda secs: None)


def test_allocated_bytes_of_all_files_count_and_links_count_once(tmp_path: pathlib.Path) -> None:
    first = write(tmp_path / "u/heat/sim1/a")
    write(tmp_path / "u/heat/sim1/deep/er/b")
    os.link(first, tmp_path / "u/heat/sim1/deep/again")
    with open(tmp_path / "u/heat/sim1/sparse", "wb") as f:
        f.truncate(100 * MIB)
    size = walk().size(str(tmp_path), ("u", "heat", "sim1"))
    assert size.complete and size.files == 3
    assert 2 * MIB <= size.bytes < 2.5 * MIB, "a sparse file takes nothing"


def test_a_link_leads_nowhere_and_what_is_missing_is_nothing(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "elsewhere/big", 4 * MIB)
    (tmp_path / "u/heat").mkdir(parents=True)
    os.symlink(tmp_path / "elsewhere", tmp_path / "u/heat/sim1")
    os.symlink(tmp_path / "elsewhere", tmp_path / "u/link")
    os.mkfifo(tmp_path / "u/heat/pipe")
    assert walk().size(str(tmp_path), ("u", "heat", "sim1")).bytes == 0
    assert walk().size(str(tmp_path), ("u",)).bytes < MIB
    assert walk().size(str(tmp_path), ("u", "nothing")) == Size()
    assert walk().folders(str(tmp_path), ("u",))[0] == ["heat"]
    assert walk().folders(str(tmp_path), ("nobody",)) == ([], Size())


def test_folders_that_are_too_deep_make_the_size_incomplete(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_walk, "MAX_DEPTH", 3)
    write(tmp_path / "a/b/c/seen", MIB)
    write(tmp_path / "a/b/c/d/e/unseen", MIB)
    size = walk().size(str(tmp_path), ())
    assert not size.complete and size.files == 1
    before = len(os.listdir("/proc/self/fd"))
    walk().size(str(tmp_path), ())
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_walk_rests_as_long_as_it_works_and_stops_when_told(tmp_path: pathlib.Path) -> None:
    for n in range(disk_walk.PIECE * 3):
        (tmp_path / str(n)).touch()
    clock = iter(range(1000))
    rests: list[float] = []
    Walk(mono=lambda: float(next(clock)), rest=rests.append).size(str(tmp_path), ())
    assert rests == [1.0, 1.0, 1.0]
    with pytest.raises(Stopped):
        Walk(lambda: False).size(str(tmp_path), ())
