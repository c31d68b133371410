"""Uploaded user files: stored completely or not at all, under a valid name, only in the user's own
folder.
"""

import asyncio
import errno
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from jobscribe.protocol.errors import Refusal
from jobscribe.supervisor.files import uploads as uploads_module
from jobscribe.supervisor.files import user_library as library_module
from jobscribe.supervisor.files.uploads import PER_USER, Uploads
from jobscribe.supervisor.files.user_library import LEFTOVER_SECS, Library, etag

UID, OTHER = "user0001", "user0002"


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(str(tmp_path / "user"), limit=10_000)


def folder(tmp_path: Path, uid: str = UID) -> Path:
    return tmp_path / "user" / uid / "heat" / "lib"


def put(library: Library, name: str, *pieces: bytes, uid: str = UID) -> dict[str, Any]:
    upload = library.upload(uid, "heat", name)
    try:
        for piece in pieces:
            upload.write(piece)
        return upload.finish()
    finally:
        upload.close()


def refused(code: str, what: Any, *args: Any) -> str:
    with pytest.raises(Refusal) as e:
        what(*args)
    assert e.value.code == code, e.value
    return e.value.sentence


def test_a_file_is_there_with_its_size_and_digest(library: Library, tmp_path: Path) -> None:
    said = put(library, "a b(1).dat", b"one", b"two")
    digest = hashlib.sha256(b"onetwo").hexdigest()
    tag = said.pop("etag")
    assert said == {"name": "a b(1).dat", "size": 6, "sha256": digest}
    path = folder(tmp_path) / "a b(1).dat"
    assert path.read_bytes() == b"onetwo"
    (listed,) = library.files(UID, "heat")
    assert listed == {**said, "mtime": path.stat().st_mtime}
    assert tag == etag(6, path.stat().st_mtime_ns)
    assert library.files(UID, "myapp") == library.files(OTHER, "heat") == []


def test_nothing_is_there_before_all_of_it_is(library: Library, tmp_path: Path) -> None:
    put(library, "a", b"old")
    upload = library.upload(UID, "heat", "a")
    upload.write(b"new but not finis")
    assert (folder(tmp_path) / "a").read_bytes() == b"old"
    assert [f["name"] for f in library.files(UID, "heat")] == ["a"], (
        "an upload under way is no file"
    )
    upload.close()
    assert os.listdir(folder(tmp_path)) == ["a"]
    put(library, "a", b"new")
    assert (folder(tmp_path) / "a").read_bytes() == b"new"


def test_what_a_crash_left_behind_is_cleared_away_in_time(library: Library, tmp_path: Path) -> None:
    put(library, "a", b"")
    for name, age in ((".upload-old", LEFTOVER_SECS + 60), (".upload-young", 60.0)):
        (folder(tmp_path) / name).write_bytes(b"x")
        os.utime(folder(tmp_path) / name, (time.time() - age,) * 2)
    put(library, "b", b"")
    assert sorted(os.listdir(folder(tmp_path))) == [".upload-young", "a", "b"]


def test_a_file_has_a_limit(library: Library, tmp_path: Path) -> None:
    put(library, "just", b"x" * 10_000)
    assert "10000" in refused("tooLarge", put, library, "over", b"x" * 6000, b"x" * 4001)
    assert os.listdir(folder(tmp_path)) == ["just"]


def test_a_library_has_a_limit(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "MAX_FILES", 3)
    for name in "abc":
        put(library, name, b"")
    refused("tooLarge", put, library, "d", b"")
    put(library, "b", b"anew")


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc/passwd",
        "a\0b",
        ".hidden",
        ".upload-1",
        "-rf",
        "a\n",
        "a\nb",
        "ä",
        "a" * 129,
        " a",
        "a ",
        "a\\b",
        "a;b",
        "~",
        "a\x1b[2J",
        "$x",
    ],
)
def test_names_that_are_none(library: Library, tmp_path: Path, name: str) -> None:
    for what in (lambda: put(library, name, b""), lambda: library.delete(UID, "heat", name)):
        refused("badRequest", what)
    assert not (tmp_path / "user").exists()


@pytest.mark.parametrize("name", ["a", "_", "in.crack", "A-1_b+c=d@e (2),x.tar.gz", "a" * 128])
def test_names_that_are_fine(library: Library, name: str) -> None:
    put(library, name, b"1")
    assert [f["name"] for f in library.files(UID, "heat")] == [name]


def test_deleting(library: Library, tmp_path: Path) -> None:
    refused("notFound", library.delete, UID, "heat", "a")
    put(library, "a", b"1")
    refused("notFound", library.delete, OTHER, "heat", "a")
    library.delete(UID, "heat", "a")
    assert library.files(UID, "heat") == []
    refused("notFound", library.delete, UID, "heat", "a")
    (folder(tmp_path) / "d").mkdir()
    refused("notFound", library.delete, UID, "heat", "d")


@pytest.mark.parametrize("part", ["user0001", "user0001/heat", "user0001/heat/lib"])
def test_no_folder_is_reached_through_a_link(library: Library, tmp_path: Path, part: str) -> None:
    """A user's job may create links in place of its folders."""
    put(library, "theirs", b"secret", uid=OTHER)
    place = tmp_path / "user" / part
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(tmp_path / "user" / part.replace(UID, OTHER))
    for what in (
        lambda: put(library, "mine", b"1"),
        lambda: library.files(UID, "heat"),
        lambda: library.delete(UID, "heat", "theirs"),
    ):
        refused("notFound", what)
    assert os.listdir(folder(tmp_path, OTHER)) == ["theirs"]


def test_links_and_other_things_are_no_files_of_a_library(library: Library, tmp_path: Path) -> None:
    put(library, "a", b"1")
    (tmp_path / "secret").write_bytes(b"secret")
    (folder(tmp_path) / "link").symlink_to(tmp_path / "secret")
    (folder(tmp_path) / "hard").hardlink_to(tmp_path / "secret")
    (folder(tmp_path) / "folder").mkdir()
    os.mkfifo(folder(tmp_path) / "pipe")
    assert [f["name"] for f in library.files(UID, "heat")] == ["a"]
    refused("notFound", library.open, UID, "heat", "hard")
    library.delete(UID, "heat", "hard")
    refused("notFound", library.delete, UID, "heat", "link")
    put(library, "link", b"2")
    assert ((tmp_path / "secret").read_bytes(), (folder(tmp_path) / "link").is_symlink()) == (
        b"secret",
        False,
    )
    refused("conflict", put, library, "folder", b"3")
    assert sorted(os.listdir(folder(tmp_path))) == ["a", "folder", "link", "pipe"]


def test_a_digest_is_of_what_the_file_holds_now(library: Library, tmp_path: Path) -> None:
    put(library, "a", b"one")
    path = folder(tmp_path) / "a"
    for content in (b"two", b"three"):
        path.write_bytes(content)
        os.utime(path, (1.0, 1.0))
        assert library.files(UID, "heat")[0]["sha256"] == hashlib.sha256(content).hexdigest()


def test_a_file_is_read_once_for_its_digest(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(library, "a", b"one")
    fresh = Library(str(tmp_path / "user"), limit=1)
    read: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, offset: read.append(fd) or pread(fd, n, offset))
    first = fresh.files(UID, "heat")
    times = len(read)
    assert (fresh.files(UID, "heat"), len(read)) == (first, times) and times > 0
    assert library.files(UID, "heat") == first and len(read) == times, "an upload is known already"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "storageUnavailable"),
        (errno.EROFS, "storageUnavailable"),
        (errno.EIO, "storageUnavailable"),
    ],
)
def test_a_disk_that_refuses_is_told_and_leaves_nothing(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    def broken(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    put(library, "a", b"old")
    for call in ("write", "fsync"):
        with monkeypatch.context() as m:
            m.setattr(os, call, broken)
            refused(code, put, library, "a", b"new")
    assert os.listdir(folder(tmp_path)) == ["a"]
    assert (folder(tmp_path) / "a").read_bytes() == b"old"


# ---- event loop


async def test_an_upload_that_is_abandoned_in_the_middle_leaves_nothing(
    library: Library, tmp_path: Path
) -> None:
    uploads = Uploads(library)
    receiver = await uploads.begin(UID, "heat", "a")
    await receiver.take(b"x" * 100)
    receiver.abandon()
    receiver.abandon()
    await uploads.close()
    assert os.listdir(folder(tmp_path)) == []
    assert uploads._in_progress == {}


async def test_a_piece_on_its_way_to_the_disk_does_not_meet_a_closed_file(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a closed file descriptor may belong to another file by then."""
    monkeypatch.setattr(uploads_module, "_GATHERED", 1)
    uploads = Uploads(library)
    receiver = await uploads.begin(UID, "heat", "a")
    order: list[str] = []
    write, close = receiver._upload.write, receiver._upload.close

    def slow(data: bytes) -> None:
        time.sleep(0.1)
        write(data)
        order.append("written")

    def closed() -> None:
        order.append("closed")
        close()

    monkeypatch.setattr(receiver._upload, "write", slow)
    monkeypatch.setattr(receiver._upload, "close", closed)
    writing = asyncio.ensure_future(receiver.take(b"xx"))
    await asyncio.sleep(0)
    receiver.abandon()
    await writing
    await uploads.close()
    assert order == ["written", "closed"]


async def test_a_user_uploads_only_so_many_files_at_once(library: Library) -> None:
    uploads = Uploads(library)
    receivers = [await uploads.begin(UID, "heat", f"f{n}") for n in range(PER_USER)]
    with pytest.raises(Refusal, match="tooManyRequests"):
        await uploads.begin(UID, "heat", "more")
    theirs = await uploads.begin(OTHER, "heat", "f")
    assert (await receivers[0].finish())["size"] == 0
    receivers[0].abandon()
    await uploads.close()
    receivers.append(await uploads.begin(UID, "heat", "more"))
    for r in (*receivers, theirs):
        r.abandon()
    await uploads.close()
    assert [f["name"] for f in await uploads.files(UID, "heat")] == ["f0"]


def test_files_of_nothing_but_holes_hold_nobody_up(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_module, "DIGESTED_AT_ONCE", 25_000)
    put(library, "mine", b"one")
    for name, size in (("a", 12_000), ("b", 12_000), ("c", 12_000), ("endless", 2**40)):
        (folder(tmp_path) / name).touch()
        os.truncate(folder(tmp_path) / name, size)
    assert "not hashed yet" in refused("conflict", library.files, UID, "heat")
    assert [f["name"] for f in library.files(UID, "heat")] == ["a", "b", "c", "mine"], (
        "each look gets further"
    )


def test_an_upload_replaces_the_file_that_it_names_only(library: Library) -> None:
    """Two uploads of one reader: the second one is refused, and changes nothing."""

    def put(text: bytes, over: str | None) -> str:
        upload = library.upload(UID, "heat", "a.txt", over)
        try:
            upload.write(text)
            return str(upload.finish()["etag"])
        finally:
            upload.close()

    first = put(b"one", "none")
    for over in ("none", '"1-1"'):
        with pytest.raises(Refusal, match="has changed since it was read"):
            put(b"other", over)
    second = put(b"second", first)
    with pytest.raises(Refusal, match="has changed since it was read"):
        put(b"late", first)
    fd, info = library.open(UID, "heat", "a.txt")
    assert os.pread(fd, 100, 0) == b"second" and etag(info.st_size, info.st_mtime_ns) == second
    os.close(fd)
    put(b"any", None)
    library.delete(UID, "heat", "a.txt")
    with pytest.raises(Refusal, match="has changed since it was read"):
        put(b"gone", second)
