"""What lies under a path: is it a network file system; and how a small file is replaced as a whole.

Standard library only. Nothing here waits for a server that may be away: the mount table is read,
the path is not touched.
"""

from __future__ import annotations

import os

from . import failpoints

#: Types of file systems that other machines may write to as well, where locks, renames and memory
#: maps cannot be relied on.
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
#: The same behind FUSE (`fuse.<name>`).
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
    """The name of the network file system that `path` (which need not exist yet) lies on, such as
    "nfs4"; None for a local one.

    mounts: the text of a /proc/pid/mountinfo; this process's own by default.
    """
    kind = file_system(path, mounts)
    if kind in NETWORK:
        return kind
    if kind.startswith(("fuse.", "fuseblk.")) and kind.split(".", 1)[1] in _NETWORK_FUSE:
        return kind
    return None


def file_system(path: str, mounts: str | None = None) -> str:
    """The type of the file system that `path` lies on ("ext4", "fuse.sshfs"); "" where the table
    does not say.
    """
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
    """The name of the user to whom `path` belongs, where that is not the one this process runs as."""
    uid = os.stat(path).st_uid
    return None if uid == os.geteuid() else user_name(uid)


def user_name(uid: int) -> str:
    """As `ls -l` shows it."""
    import pwd  # not needed in everyday life

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
) -> None:
    """Create or replace a file: readers see the old one or the whole new one. Raises OSError and
    leaves no leftovers then.

    sync: also survive a power failure. Of two processes that write one path at the same time the
    later wins. points: crash points before and after the file gets its name.
    """
    temporary = f"{path}.{os.getpid()}.new"
    fd = _fresh(temporary, mode)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
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


def _fresh(path: str, mode: int) -> int:
    """A file of one's own: what lies there, of one that was killed or put there by a job, is
    neither written to nor waited for.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, mode)


def make_folder(path: str, mode: int = 0o700) -> None:
    """Make a folder where there is none, and those above it that are missing, to survive a power
    failure. Raises OSError.
    """
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
    """What was made, renamed and removed in it is on the disk when this returns. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unescaped(text: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
