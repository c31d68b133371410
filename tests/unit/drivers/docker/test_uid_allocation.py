"""Allocation of unix user ids on the hosts: one permanent id per user, only from the configured
range, and ownership of the user's files.
"""

import concurrent.futures
import json
import os
import stat
from pathlib import Path

import pytest

from jobscribe.drivers.docker.containers.uid_allocation import UnixUsers
from jobscribe.protocol.errors import CODES, Refusal

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give files to other unix users: run the tests as root"
)
SPAN = (200_000, 200_004)


def users(folder: Path, span: tuple[int, int] | None = SPAN) -> UnixUsers:
    return UnixUsers(folder / "unix-users.json", span)


@as_root
def test_everybody_gets_a_number_of_their_own_the_lowest_that_is_free(tmp_path: Path) -> None:
    u = users(tmp_path)
    assert [u.ids(uid) for uid in ("User0001", "User0002", "User0001", "User0003")] == [
        (200_000, 200_000),
        (200_001, 200_001),
        (200_000, 200_000),
        (200_002, 200_002),
    ]


@as_root
def test_numbers_are_for_good(tmp_path: Path) -> None:
    first = users(tmp_path)
    given = {uid: first.ids(uid) for uid in ("User0001", "User0002")}
    again = users(tmp_path)
    assert again.ids("User0003") == (200_002, 200_002)
    assert {uid: again.ids(uid) for uid in given} == given
    file = tmp_path / "unix-users.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_bytes()) == {
        "users": {"User0001": 200_000, "User0002": 200_001, "User0003": 200_002}
    }
    assert [p.name for p in tmp_path.iterdir()] == ["unix-users.json"]


@as_root
def test_a_number_counts_only_when_it_is_written_down(tmp_path: Path) -> None:
    """An id that a crash could lose must not be used."""
    u = users(tmp_path)
    u.ids("User0001")
    os.rename(tmp_path / "unix-users.json", tmp_path / "kept")
    (tmp_path / "unix-users.json").mkdir()
    with pytest.raises(OSError, match="unix-users"):
        u.ids("User0002")
    (tmp_path / "unix-users.json").rmdir()
    os.rename(tmp_path / "kept", tmp_path / "unix-users.json")
    assert u.ids("User0003") == (200_001, 200_001)


@as_root
def test_a_span_that_moved_leaves_everybody_their_number(tmp_path: Path) -> None:
    old = users(tmp_path).ids("User0001")
    moved = users(tmp_path, (300_000, 300_009))
    assert moved.ids("User0001") == old and moved.ids("User0002") == (300_000, 300_000)


@as_root
def test_a_span_that_is_used_up_is_said_with_what_to_do(tmp_path: Path) -> None:
    u = users(tmp_path)
    for n in range(5):
        u.ids(f"User000{n}")
    with pytest.raises(Refusal) as refused:
        u.ids("User0009")
    assert refused.value.code == "agentUnavailable"
    assert (
        refused.value.sentence
        == "all 5 unix users of 200000 to 200004 are taken: extend unix_users in the pool's file"
    )
    assert u.ids("User0004") == (200_004, 200_004)


@as_root
@pytest.mark.parametrize(
    "span", [(0, 10), (999, 2000), (1, 1), (2000, 1999), (-5, 3000), (1000, 2**31)]
)
def test_the_systems_own_users_are_nobodys(tmp_path: Path, span: tuple[int, int]) -> None:
    with pytest.raises(Refusal) as refused:
        users(tmp_path, span)
    assert refused.value.code == "badConfig" in CODES and "1000" in refused.value.sentence


@as_root
def test_root_is_nobodys_user_either(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="badConfig: the supervisor runs as root"):
        users(tmp_path, None)


def test_without_a_span_everybody_is_the_supervisors_own_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    monkeypatch.setattr(os, "getegid", lambda: 4321)
    u = users(tmp_path, None)
    assert u.ids("User0001") == u.ids("User0002") == (1234, 4321)
    file = tmp_path / "x"
    file.touch()
    before = file.stat()
    u.chown(str(file), "User0001")
    assert (file.stat().st_uid, file.stat().st_gid) == (before.st_uid, before.st_gid)
    assert not (tmp_path / "unix-users.json").exists()


def test_a_span_is_refused_to_who_cannot_give_files_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(Refusal) as refused:
        users(tmp_path)
    assert refused.value.code == "badConfig"
    assert (
        refused.value.sentence
        == "unix_users is 200000 to 200004, but only root can change file owners: remove the setting, or run as root"
    )


@as_root
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"users": {"User0001": "x"}}',
        b'{"users": {"User0001": 200000, "User0002": 200000}}',
        b'{"users": {"User0001": 0}}',
        b'{"users": {"User0001": 999}}',
        b'{"users": {}, "more": 1}',
    ],
)
def test_a_damaged_file_gives_nobody_a_number(tmp_path: Path, content: bytes) -> None:
    """Otherwise two users could share an id on the hosts."""
    (tmp_path / "unix-users.json").write_bytes(content)
    with pytest.raises(Refusal) as refused:
        users(tmp_path).ids("User0003")
    assert refused.value.code == "badConfig" and "unix-users.json" in refused.value.sentence
    assert (tmp_path / "unix-users.json").read_bytes() == content


@as_root
def test_many_at_once_never_get_one_number(tmp_path: Path) -> None:
    u = users(tmp_path, (200_000, 200_099))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        given = list(pool.map(u.ids, [f"User{n:04}" for n in range(50)] * 2))
    assert given[:50] == given[50:] and len(set(given)) == 50


# ---- files


@as_root
def test_folders_are_their_users_alone(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    u, path = users(tmp_path), tmp_path / "deep" / "er" / "User0001"
    for _ in range(2):
        u.make_owned_folder(str(path), "User0001")
        status = path.stat()
        assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (
            200_000,
            200_000,
            0o700,
        )
    assert (tmp_path / "deep").stat().st_uid == 0


@as_root
def test_a_folder_that_was_the_supervisors_is_given_away_with_what_is_in_it(tmp_path: Path) -> None:
    u, path = users(tmp_path), tmp_path / "User0001"
    (path / "sub").mkdir(parents=True)
    (path / "sub" / "file").touch()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    os.symlink(outside, path / "link")
    (path / "others").touch()
    os.chown(path / "others", 4444, 4444)
    u.make_owned_folder(str(path), "User0001")
    assert [
        p.lstat().st_uid for p in (path, path / "sub", path / "sub" / "file", path / "link")
    ] == [200_000] * 4
    assert (path / "others").stat().st_uid == 4444
    assert outside.stat().st_uid == (outside / "file").stat().st_uid == 0


@as_root
def test_a_link_in_a_folders_place_is_not_followed(tmp_path: Path) -> None:
    u, outside = users(tmp_path), tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    os.symlink(outside, tmp_path / "User0001")
    with pytest.raises(OSError, match="User0001"):
        u.make_owned_folder(str(tmp_path / "User0001"), "User0001")
    assert outside.stat().st_uid == (outside / "file").stat().st_uid == 0


@as_root
def test_one_path_is_given_away_and_of_a_link_the_link(tmp_path: Path) -> None:
    u = users(tmp_path)
    (tmp_path / "file").touch()
    os.symlink(tmp_path / "file", tmp_path / "link")
    u.chown(str(tmp_path / "link"), "User0001")
    assert ((tmp_path / "link").lstat().st_uid, (tmp_path / "file").stat().st_uid) == (200_000, 0)
