"""Files that users put into run directories: complete and correct, or not there."""

import hashlib
import os
from pathlib import Path

import pytest

from jobscribe.agent.files.file_requests import answer
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.wire.messages import FileChunk, StoreFile

DATA = b"some content"
OP_ID = "j2FXq1" + "a" * 26


def store(
    run_dir: Path, name: str, data: bytes | None = DATA, offset: int = 0, **more: bool
) -> int:
    op = StoreFile(
        op_id=OP_ID,
        run_dir=str(run_dir),
        name=name,
        sha256=hashlib.sha256(DATA).hexdigest(),
        size=len(DATA),
        offset=offset,
        data=data,
        **more,
    )
    found = answer(op)
    assert isinstance(found, FileChunk)
    return found.size


def refused(run_dir: Path, name: str, data: bytes = DATA, **more: bool) -> str:
    with pytest.raises(Refusal) as caught:
        store(run_dir, name, data, finish=True, **more)
    return caught.value.code


def test_a_file_arrives_in_pieces_and_is_continued(tmp_path: Path) -> None:
    assert store(tmp_path, "a/b", None) == 0 and not (tmp_path / "a").exists()
    assert store(tmp_path, "a/b", DATA[:5]) == 5
    assert store(tmp_path, "a/b", None) == 5 and not (tmp_path / "a" / "b").exists()
    with pytest.raises(Refusal, match="do not continue it"):
        store(tmp_path, "a/b", DATA[6:], 6)
    with pytest.raises(Refusal, match="only 5 of 12 bytes"):
        store(tmp_path, "a/b", b"", 5, finish=True)
    assert store(tmp_path, "a/b", DATA[5:], 5, finish=True) == len(DATA)
    assert (tmp_path / "a" / "b").read_bytes() == DATA and os.listdir(tmp_path / "a") == ["b"]


def test_another_digest_is_refused_and_nothing_stays(tmp_path: Path) -> None:
    assert refused(tmp_path, "a", b"x" + DATA[1:]) == "conflict"
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_replaced_only_on_request(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    assert refused(tmp_path, "a") == "conflict" and (tmp_path / "a").read_text() == "mine"
    store(tmp_path, "a", finish=True, replace=True)
    assert (tmp_path / "a").read_bytes() == DATA
    (tmp_path / "folder").mkdir()
    assert refused(tmp_path, "folder", replace=True) == "conflict"


def test_nothing_is_written_outside_of_the_run_directory(tmp_path: Path) -> None:
    run_dir, outside = tmp_path / "run", tmp_path / "outside"
    run_dir.mkdir()
    outside.mkdir()
    (run_dir / "link").symlink_to(outside)
    for name in ("../x", "/x", "a/../../x", ".jobscribe/x", "a//x"):
        assert refused(run_dir, name) == "badRequest", name
    assert refused(run_dir, "link/x") == "notFound"
    store(run_dir, "x", DATA[:1])
    (part,) = (p for p in run_dir.iterdir() if p.name.endswith(".part"))
    part.unlink()
    (outside / "target").write_bytes(b"")
    part.symlink_to(outside / "target")
    assert refused(run_dir, "x") == "notFound"
    part.unlink()
    os.link(outside / "target", part)
    assert refused(run_dir, "x") == "forbidden"
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(Refusal):
        store(run_dir, "x", finish=True)
    assert (outside / "target").read_bytes() == b"" and os.listdir(outside) == ["target"]
