"""Reads from a run directory: regular files with plain names only, even while other processes
change the directory.
"""

import os
import socket
import threading
from pathlib import Path

import pytest

from jobscribe.agent.files import run_directory
from jobscribe.agent.files.run_directory import read
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.wire.messages import FileChunk, ReadFile
from jobscribe.runtime import hard_links


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("s3cret")
    folder = tmp_path / "run"
    (folder / "frames/deep").mkdir(parents=True)
    (folder / "out.json").write_text('{"a": 1}')
    (folder / "frames/deep/1 é.csv").write_bytes(bytes(range(256)))
    (folder / ".jobscribe").mkdir()
    (folder / ".jobscribe/latest").symlink_to(tmp_path)
    return folder


def refused(run_dir: Path, name: str) -> tuple[str, str]:
    with pytest.raises(Refusal) as e:
        read(str(run_dir), name, 0, 100)
    return e.value.code, e.value.sentence


def test_pieces_make_the_file_and_say_what_it_is(run_dir: Path) -> None:
    path = run_dir / "frames/deep/1 é.csv"
    os.utime(path, ns=(5, 1_700_000_000_123_456_789))
    pieces = [
        read(str(run_dir), "frames/deep/1 é.csv", offset, 100)
        for offset in (0, 100, 200, 256, 2**62)
    ]
    assert b"".join(p.data for p in pieces) == path.read_bytes()
    assert [len(p.data) for p in pieces] == [100, 100, 56, 0, 0]
    assert {(p.size, p.mtime_ns) for p in pieces} == {(256, 1_700_000_000_123_456_789)}
    assert read(str(run_dir), "out.json", 0, 0) == (
        b"",
        8,
        (run_dir / "out.json").stat().st_mtime_ns,
    )


def test_a_piece_is_what_a_message_can_carry(run_dir: Path) -> None:
    (run_dir / "big").write_bytes(os.urandom(600 * 1024))
    op = ReadFile(op_id="0" * 32, run_dir=str(run_dir), name="big", offset=7, limit=512 * 1024)
    piece = read(op.run_dir, op.name, op.offset, op.limit)
    assert (
        FileChunk(op_id=op.op_id, data=piece.data, size=piece.size, mtime_ns=piece.mtime_ns).data
        == (run_dir / "big").read_bytes()[7 : 7 + 512 * 1024]
    )


def test_an_empty_name_asks_whether_the_run_directory_is_there(run_dir: Path) -> None:
    assert read(str(run_dir), "", 0, 100) == (b"", 0, run_dir.stat().st_mtime_ns)
    assert refused(run_dir / "gone", "") == ("notFound", "the run directory is gone")
    assert refused(run_dir / "gone", "out.json") == ("notFound", "the run directory is gone")
    assert refused(run_dir / "out.json", "") == ("notFound", "the run directory is gone")


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../secret",
        "frames/../../secret",
        "frames/../out.json",
        "/etc/passwd",
        "/",
        "//",
        "out.json/",
        "frames//deep",
        "./out.json",
        ".",
        "frames/.",
        "out\0.json",
        "\0",
        ".jobscribe",
        ".jobscribe/latest",
        ".jobscribe/latest/secret",
        "frames/.jobscribe/x",
        "\ud800",
    ],
)
def test_a_name_that_is_none_is_refused(run_dir: Path, name: str) -> None:
    code, sentence = refused(run_dir, name)
    assert code == "badRequest" and "\0" not in sentence and sentence.isascii()


@pytest.mark.parametrize(
    "name", ["nothing", "frames/nothing", "nothing/out.json", "x" * 300, "frames/deep/\n"]
)
def test_a_file_that_is_not_there(run_dir: Path, name: str) -> None:
    code, sentence = refused(run_dir, name)
    assert code == "notFound" and "\n" not in sentence


def test_links_are_not_followed_wherever_they_are(run_dir: Path) -> None:
    (run_dir / "to-secret").symlink_to("../secret")
    (run_dir / "to-own").symlink_to("out.json")
    (run_dir / "dangling").symlink_to("nowhere")
    (run_dir / "circle").symlink_to("circle")
    (run_dir / "frames/up").symlink_to("../..")
    (run_dir / "frames/abs").symlink_to(run_dir.parent)
    (run_dir / "frames/deep/same").symlink_to(".")
    for name in (
        "to-secret",
        "to-own",
        "dangling",
        "circle",
        "frames/up",
        "frames/up/secret",
        "frames/abs/secret",
        "frames/deep/same/1 é.csv",
    ):
        code, sentence = refused(run_dir, name)
        assert code == "notFound" and "symbolic link" in sentence, (name, sentence)
    other = run_dir.parent / "link-to-run"
    other.symlink_to(run_dir)
    assert refused(other, "out.json")[0] == "notFound"


def test_a_file_with_another_name_outside_is_not_served(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_dir / "frames/hard").hardlink_to(run_dir.parent / "secret")
    assert refused(run_dir, "frames/hard") == (
        "forbidden",
        "'frames/hard' has another name outside of the run directory (a hard link), so it is not served; "
        "let the run copy the file (cp) instead of linking it (ln, cp -l)",
    )
    (run_dir / "again").hardlink_to(run_dir / "frames/hard")
    assert refused(run_dir, "again")[0] == "forbidden"
    for name in ("one", "frames/deep/two"):
        (run_dir / name).hardlink_to(run_dir / "out.json")
    assert read(str(run_dir), "frames/deep/two", 0, 100).data == b'{"a": 1}', (
        "all its names are in the run directory"
    )
    monkeypatch.setattr(hard_links, "LOOKED_AT_MOST", 3)
    assert refused(run_dir, "one")[0] == "forbidden", "there is too much to look at"


def test_what_is_no_regular_file_is_not_touched(run_dir: Path) -> None:
    os.mkfifo(run_dir / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(run_dir / "socket"))
    for name, word in (
        ("pipe", "not a regular file"),
        ("socket", "not a regular file"),
        ("frames", "folder"),
        ("out.json/x", "not a folder"),
    ):
        code, sentence = refused(run_dir, name)
        assert code == "notFound" and word in sentence
    listener.close()
    # the open would succeed if a reader held the pipe open
    with pytest.raises(OSError):
        os.open(run_dir / "pipe", os.O_WRONLY | os.O_NONBLOCK)


def test_what_may_not_be_read_is_said(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def denied(path, flags, **more):
        if str(path) == "frames":
            raise PermissionError(13, "Permission denied")
        if str(path).startswith("/proc/self/fd"):
            raise OSError(5, "Input/output error")
        return real(path, flags, **more)

    monkeypatch.setattr(run_directory.os, "open", denied)
    assert refused(run_dir, "frames/deep/1 é.csv")[0] == "forbidden"
    assert refused(run_dir, "out.json") == (
        "agentUnavailable",
        "cannot read 'out.json': Input/output error",
    )


def test_no_descriptor_is_left_open(run_dir: Path) -> None:
    (run_dir / "link").symlink_to("/")
    (run_dir / "hard").hardlink_to(run_dir.parent / "secret")
    before = len(os.listdir("/proc/self/fd"))
    for name in (
        "out.json",
        "frames/deep/1 é.csv",
        "frames/nothing",
        "frames",
        "link",
        "hard",
        "../secret",
        "link/etc",
        "",
    ):
        for where in (run_dir, run_dir / "gone"):
            try:
                read(str(where), name, 0, 10)
            except Refusal:
                continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_job_that_exchanges_folders_and_links_meanwhile_gets_nothing_out(run_dir: Path) -> None:
    """A folder is replaced again and again by a link to an outside folder while a file in it is
    read.
    """
    (run_dir.parent / "outside").mkdir()
    (run_dir.parent / "outside/file").write_text("s3cret")
    (run_dir / "real").mkdir()
    (run_dir / "real/file").write_text("mine")
    (run_dir / "trap").symlink_to(run_dir.parent / "outside")
    over = threading.Event()
    rounds = 0

    def exchange() -> None:
        nonlocal rounds
        while not over.is_set():
            os.rename(run_dir / "real", run_dir / "at")
            os.rename(run_dir / "at", run_dir / "real")
            os.rename(run_dir / "trap", run_dir / "at")
            os.rename(run_dir / "at", run_dir / "trap")
            rounds += 1

    thread = threading.Thread(target=exchange)
    thread.start()
    found = {"mine": 0, "refused": 0}
    try:
        while rounds < 500 or not all(found.values()):
            try:
                data = read(str(run_dir), "at/file", 0, 100).data
                found[data.decode()] += 1  # the outside file's content raises KeyError
            except Refusal:
                found["refused"] += 1
    finally:
        over.set()
        thread.join()
