"""File system facts for a path (network or local), and atomic replacement of small files.

Standard library only. Nothing here waits for a remote server: the type comes from the mount table,
without access to the path.
"""

from __future__ import annotations

import os

from . import failpoints

#: File system types that other machines may write to, where locks, renames and memory maps are
#: unreliable.
NETWORK = frozenset(
    (
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fhgfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb2",
        "smb3",
        "smbfs",
        "virtiofs",
        "wekafs",
    )
)
#: Network file systems behind FUSE (`fuse.<name>`).
_NETWORK_FUSE = frozenset(
    (
        "beegfs",
        "ceph",
        "curlftpfs",
        "davfs",
        "davfs2",
        "gcsfuse",
        "glusterfs",
        "juicefs",
        "mfs",
        "moosefs",
        "nfs",
        "rclone",
        "s3fs",
        "seaweedfs",
        "smbnetfs",
        "sshfs",
        "weed",
    )
)


def network_file_system(path: str, mounts: str | None = None) -> str | None:
    """Return the type of the network file system of `path` (which need not exist), such as "nfs4";
    None for a local one.

    mounts: text of a /proc/pid/mountinfo; this process's own by default.
    """
    kind = file_system(path, mounts)
    if kind in NETWORK:
        return kind
    if kind.startswith(("fuse.", "fuseblk.")) and kind.split(".", 1)[1] in _NETWORK_FUSE:
        return kind
    return None


def file_system(path: str, mounts: str | None = None) -> str:
    """Return the file system type of `path` ("ext4", "fuse.sshfs"), or "" if the table has none."""
    if mounts is None:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
            mounts = f.read()
    target = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = _unescaped(fields[4])
        # a later mount on the same point hides the earlier one
        if len(point) >= len(best) and (
            target == point or target.startswith(point.rstrip("/") + "/")
        ):
            best, kind = point, right.split(" ", 1)[0]
    return kind


def foreign_owner(path: str) -> str | None:
    """Return the name of the owner of `path` if it is not this process's user, else None."""
    uid = os.stat(path).st_uid
    return None if uid == os.geteuid() else user_name(uid)


def user_name(uid: int) -> str:
    """Return the user's name as `ls -l` shows it."""
    import pwd  # rarely needed

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def write_atomically(
    path: str,
    data: bytes,
    mode: int = 0o600,
    *,
    sync: bool = False,
    points: tuple[str, str] | None = None,
    owner: tuple[int, int] | None = None,
) -> None:
    """Create or replace a file: readers see the old or the complete new content. Raise OSError;
    then no temporary file is left.

    sync: also survive a power failure. If two processes write one path at the same time, the later
    one wins. points: crash points before and after the rename. owner: uid and gid of the file; None
    for those of this process.
    """
    temporary = f"{path}.{os.getpid()}.new"
    fd = _fresh(temporary, mode)
    try:
        try:
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(fd, *owner)
            _write_all(fd, data)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        if points is not None:
            failpoints.reached(points[0])
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    if points is not None:
        failpoints.reached(points[1])
    if sync:
        sync_folder(os.path.dirname(path) or ".")


def create(path: str, data: bytes, mode: int = 0o600) -> bool:
    """Create a file that does not exist. Return False if it exists. Not atomic: another process may
    see a part of it. Raise OSError; then the file does not exist.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        return False
    try:
        _write_all(fd, data)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)
    return True


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _fresh(path: str, mode: int) -> int:
    """Create a new file. An existing file at this path (left by a killed process, or created by a
    job) is removed, not opened.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, mode)


def make_folder(path: str, mode: int = 0o700) -> None:
    """Create a folder and missing parents so that they survive a power failure. Raise OSError."""
    missing, path = [], os.path.abspath(path)
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, mode if folder == missing[0] else 0o777)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
        sync_folder(os.path.dirname(folder))


def sync_folder(path: str) -> None:
    """Write changes of this folder's entries to the disk. Raise OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unescaped(text: str) -> str:
    """Decode the octal escapes of mountinfo (space, tab, newline, backslash)."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
