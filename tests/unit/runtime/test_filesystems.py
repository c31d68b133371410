"""Network file systems are detected from the mount table alone, and small files are replaced
atomically.
"""

import os
from pathlib import Path

import pytest

from jobscribe.runtime.filesystems import (
    NETWORK,
    file_system,
    network_file_system,
    write_atomically,
)

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /home rw,relatime shared:2 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/local rw - xfs /dev/sdb rw
32 22 0:42 / /mnt/with\\040space rw - fuse.sshfs user@host:/ rw
33 22 0:43 / /mnt/glue rw - fuse.mergerfs a:b rw
34 22 0:44 / /scratch rw - lustre 10.0.0.1@tcp:/x rw
35 22 0:45 / /over rw - nfs server:/over rw
36 22 0:46 / /over rw - tmpfs tmpfs rw
37 22 0:47 / /proc/only/six
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/somebody/root", "nfs4"),
        ("/home", "nfs4"),
        ("/home/local/x", None),
        ("/homeless", None),
        ("/", None),
        ("/mnt/with space/a", "fuse.sshfs"),
        ("/mnt/glue/a", None),
        ("/scratch/deep/er", "lustre"),
        ("/over/x", None),
    ],
)
def test_the_longest_mount_point_decides(path: str, kind: str | None) -> None:
    assert network_file_system(path, MOUNTS) == kind


@pytest.mark.parametrize(
    "kind",
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "lustre",
        "gpfs",
        "beegfs",
        "glusterfs",
        "ceph",
        "afs",
        "9p",
        "fuse.sshfs",
        "fuse.glusterfs",
    ],
)
def test_network_file_systems_are_known(kind: str) -> None:
    assert (
        network_file_system(
            "/net/x",
            f"1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / /net rw shared:5 master:1 - {kind} s:/ rw",
        )
        == kind
    )


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "fuse.mergerfs", "f2fs"]
)
def test_local_ones_are_not_refused(kind: str) -> None:
    assert (
        network_file_system(
            "/net/x", f"1 0 0:1 / / rw - nfs x rw\n2 1 0:2 / /net rw - {kind} s:/ rw"
        )
        is None
    )


def test_this_machine_and_a_link_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc")
    assert file_system(str(tmp_path / "link" / "self")) == "proc"
    assert file_system(str(tmp_path / "not" / "there")) == file_system(str(tmp_path))
    mounted = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    assert file_system(str(tmp_path)) not in NETWORK
    assert (file_system(str(tmp_path)) == "") == (
        not mounted & {"/", *map(str, tmp_path.parents)}
    )  # a bare chroot has no mount information
    assert file_system("/x", "") == ""


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_replaced_whole_with_its_mode(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "f"
    os.umask(0o022)
    write_atomically(str(path), b"one", sync=sync)
    with path.open("rb") as old:
        write_atomically(str(path), b"two" * 100_000, sync=sync)
        assert old.read() == b"one"
    assert path.read_bytes() == b"two" * 100_000 and path.stat().st_mode & 0o777 == 0o600
    write_atomically(str(tmp_path / "open"), b"", 0o644)
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o644
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "open"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    write_atomically(str(path), b"one")

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            write_atomically(str(path), b"two")
    assert path.read_bytes() == b"one" and [p.name for p in tmp_path.iterdir()] == ["f"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_atomically(str(tmp_path / "folder"), b"two")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "folder"]


@pytest.mark.parametrize("there", ["pipe", "link", "second name", "rest"])
def test_what_lies_at_the_temporary_name_is_neither_written_to_nor_waited_for(
    tmp_path: Path, there: str
) -> None:
    """A job may have created that file in its own folder."""
    path, other = tmp_path / "f", tmp_path / "other"
    temporary = tmp_path / f"f.{os.getpid()}.new"
    other.write_bytes(b"another's")
    match there:
        case "pipe":
            os.mkfifo(temporary)
        case "link":
            temporary.symlink_to(other)
        case "second name":
            temporary.hardlink_to(other)
        case _:
            temporary.write_bytes(b"of one that was killed")
    write_atomically(str(path), b"one")
    assert (
        path.read_bytes() == b"one"
        and not path.is_symlink()
        and other.read_bytes() == b"another's"
        and not temporary.exists()
    )
