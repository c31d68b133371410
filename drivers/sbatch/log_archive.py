"""What an agent's log on the cluster said before each start, and what the start itself said, kept
beside the user's runs here.

<user_root>/<uid>/agent-sbatch/<host>/<YYYYmmddHHMMSS>-remote.log and -start.log
"""

import contextlib
import os
import stat
import time
from collections.abc import Sequence

from ...protocol.redaction import Redactor

KEPT, MOST_BYTES = 20, 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def keep(
    user_root: str,
    uid: str,
    host: str,
    remote: bytes,
    start: bytes,
    redactor: Redactor,
    *,
    now: float,
) -> None:
    """The user may write to his folder: no link is followed. Raises OSError."""
    fd = _folder(user_root, (uid, "agent-sbatch", host))
    try:
        stamp = time.strftime("%Y%m%d%H%M%S", time.gmtime(now))
        while _there(fd, f"{stamp}-start.log"):  # two within a second; names stay in order
            now += 1
            stamp = time.strftime("%Y%m%d%H%M%S", time.gmtime(now))
        for what, data in (("remote", remote), ("start", start)):
            _write(fd, f"{stamp}-{what}.log", _shown(data, redactor))
        _prune(fd)
    finally:
        os.close(fd)


def _shown(data: bytes, redactor: Redactor) -> bytes:
    """Without secrets, and its end where it is long."""
    text = redactor.text(data.decode("utf-8", "replace")).encode()
    if len(text) <= MOST_BYTES:
        return text
    return b"...\n" + text[-(MOST_BYTES - 4) :].partition(b"\n")[2]


def _folder(root: str, parts: Sequence[str]) -> int:
    os.makedirs(root, 0o700, exist_ok=True)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=fd)
            below = os.open(part, _FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _there(fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _write(folder: int, name: str, data: bytes) -> None:
    fd = os.open(
        name,
        os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o600,
        dir_fd=folder,
    )
    with open(fd, "wb") as f:
        f.write(data)


def _prune(fd: int) -> None:
    """The names of one kind are in order of time."""
    for what in ("-remote.log", "-start.log"):
        for name in sorted(n for n in os.listdir(fd) if n.endswith(what))[:-KEPT]:
            with contextlib.suppress(OSError):
                if stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=fd)
