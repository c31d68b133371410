"""Archive of an agent's previous log and of the output of its start, beside the user's runs.

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
    """Store both logs. Follows no link, as the user may write to the folder. Raises OSError."""
    fd = _folder(user_root, (uid, "agent-sbatch", host))
    try:
        stamp = time.strftime("%Y%m%d%H%M%S", time.gmtime(now))
        while _exists(fd, f"{stamp}-start.log"):  # a second start within a second gets a later name
            now += 1
            stamp = time.strftime("%Y%m%d%H%M%S", time.gmtime(now))
        for kind, data in (("remote", remote), ("start", start)):
            _write(fd, f"{stamp}-{kind}.log", _redact(data, redactor))
        _prune(fd)
    finally:
        os.close(fd)


def _redact(data: bytes, redactor: Redactor) -> bytes:
    """Return the text without secrets. A long text keeps only its end."""
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


def _exists(fd: int, name: str) -> bool:
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
    """Delete the oldest files of each kind. Names sort by time."""
    for kind in ("-remote.log", "-start.log"):
        for name in sorted(n for n in os.listdir(fd) if n.endswith(kind))[:-KEPT]:
            with contextlib.suppress(OSError):
                if stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=fd)
