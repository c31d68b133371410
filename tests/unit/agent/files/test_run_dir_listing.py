"""The paged file listing of a run directory: each regular file once, in order, and nothing else."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.agent.files import run_dir_listing
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.wire.messages import FileList, ListFiles


def listed(run_dir: Path, after: str = "", limit: int = 1000) -> FileList:
    return run_dir_listing.list_files(
        ListFiles(op_id="0" * 32, run_dir=str(run_dir), after=after, limit=limit)
    )


def made(run_dir: Path, *names: str) -> None:
    for name in names:
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).write_text(name)


def paged(run_dir: Path, limit: int) -> tuple[list[str], int]:
    names: list[str] = []
    skipped, after = 0, ""
    while True:
        page = listed(run_dir, after, limit)
        names += [file.name for file in page.files]
        skipped += page.skipped
        if not page.more:
            return names, skipped
        after = names[-1]


def test_each_has_its_size_and_time(tmp_path: Path) -> None:
    made(tmp_path, "a/b.txt")
    os.utime(tmp_path / "a/b.txt", (5, 1_700_000_000.5))
    assert [(f.name, f.size, f.mtime) for f in listed(tmp_path).files] == [
        ("a/b.txt", 7, 1_700_000_000.5)
    ]


def test_links_pipes_and_our_own_folder_are_left_out_and_counted_once(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    made(run_dir, "a", "z/y", ".jobscribe/latest/stdout", "dir/.jobscribe/x")
    made(tmp_path, "secret/s")
    (run_dir / "b-link").symlink_to(tmp_path / "secret/s")
    (run_dir / "c-folder").symlink_to(tmp_path / "secret")
    os.mkfifo(run_dir / "pipe")
    (run_dir / os.fsdecode(b"\xff")).write_text("no UTF-8")
    for limit in (1, 2, 1000):
        assert paged(run_dir, limit) == (["a", "z/y"], 4)


@settings(max_examples=40, deadline=None)
@given(
    st.sets(
        st.sampled_from(
            [
                "a",
                "a.b",
                "a-",
                "b",
                "b/c",
                "b/c.d",
                "b.c/d",
                "b/d/e",
                "b/d/f",
                "b-/x",
                "c/a",
                "c/b",
                "zz",
            ]
        ),
        max_size=9,
    ),
    st.integers(1, 4),
)
def test_pages_together_have_every_file_once(
    tmp_path_factory: pytest.TempPathFactory, names: set[str], limit: int
) -> None:
    # a name cannot be both a file and a folder
    names = {n for n in names if not any(other.startswith(n + "/") for other in names)}
    run_dir = tmp_path_factory.mktemp("run")
    made(run_dir, *names)
    assert paged(run_dir, limit)[0] == sorted(names, key=lambda n: n.split("/"))


def test_a_file_that_was_removed_between_two_pages_loses_no_other(tmp_path: Path) -> None:
    made(tmp_path, "a", "b/c", "b/d", "e")
    first = listed(tmp_path, limit=2)
    assert [f.name for f in first.files] == ["a", "b/c"]
    (tmp_path / "b/c").unlink()
    assert [f.name for f in listed(tmp_path, "b/c").files] == ["b/d", "e"]


def test_what_cannot_be_listed_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refusal, match="the run directory is gone"):
        listed(tmp_path / "gone")
    made(tmp_path, "a", "b", "c")
    monkeypatch.setattr(run_dir_listing, "MOST_ENTRIES", 2)
    with pytest.raises(Refusal, match="more than 2 entries") as e:
        listed(tmp_path)
    assert e.value.code == "tooLarge"
