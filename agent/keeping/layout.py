"""Where the keeper's files lie in an agent's folder, and how they are read and written. No decisions.

    <folder>/keeper.lock, keeper.json     one keeper at a time; who it is
    <folder>/ledger/<name>                one entry (its token) per execution that the agent has not forgotten
    <folder>/run/<name>/                  the evidence of one execution; making it consumes the fencing token
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat

from ...protocol import reports
from ...runtime.filesystems import write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCRIPT, LOCK, SIGNAL = "script.sh", "lock", "signal"
STDOUT, STDERR = "stdout.log", "stderr.log"
START, STOP, EXIT, EXIT_CODE = "start.json", "stop.json", "exit.json", "exit-code"
MESSAGE = "termination-message"
#: what an app's job command is to do, and what a job says of itself while it runs, a line of JSON a time
INPUT, REPORT = "input.json", "report.jsonl"
#: what a task of many is told of all of them; it lies in its run directory
JOB = "job.json"
DROPPED = ".dropped"

MESSAGE_BYTES = 4096
_LAST_BYTES, _LAST_LINES = 2048, 20
_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,249}\Z")


def is_name(name: object) -> bool:
    """Can this name a folder of evidence?"""
    return isinstance(name, str) and _NAME.match(name) is not None


class Layout:
    """Paths below one agent's folder. The folder's path holds no symbolic links, so that /proc shows the same ones."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.realpath(folder)
        self.runs = os.path.join(self.folder, "run")
        self.ledger = os.path.join(self.folder, "ledger")

    def make(self) -> None:
        for path in (self.folder, self.runs, self.ledger):
            os.makedirs(path, mode=0o700, exist_ok=True)

    def evidence(self, name: str) -> str:
        return f"{self.runs}/{name}"

    def enter(self, name: str, token: str) -> None:
        """Write the ledger's entry."""
        write(f"{self.ledger}/{name}", token.encode())

    def strike(self, name: str) -> None:
        """Take the entry away; there may be none."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.ledger}/{name}")

    def entries(self) -> list[tuple[str, str]]:
        """(name, token) of every entry, in order of names."""
        names = sorted(n for n in os.listdir(self.ledger) if is_name(n))
        return [(n, (read(f"{self.ledger}/{n}", 4096) or b"").decode("utf-8", "replace")) for n in names]


def write(path: str, data: bytes, mode: int = 0o600) -> None:
    """Create or overwrite; for files whose half nobody takes for the whole."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def write_json(path: str, value: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(value).encode())


def read(path: str, limit: int = 1 << 20) -> bytes | None:
    """The first `limit` bytes of a regular file; None where there is none. A job may have put anything in its place.

    Raises OSError only where this process is short of something: then the file may well be there.
    """
    fd = _opened(path)
    if fd is None:
        return None
    try:
        return os.read(fd, limit) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    finally:
        os.close(fd)


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _SHORTAGE:
            raise
        return None


def read_json(path: str) -> dict[str, Any] | None:
    """An object from a JSON file; None where there is none or it is something else."""
    data = read(path)
    try:
        value = json.loads(data) if data else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def last_lines(path: str) -> str | None:
    """The end of a log, for people: at most 20 lines and 2 KiB."""
    end = _tail(path, _LAST_BYTES)
    if end is None:
        return None
    lines = end[1].decode("utf-8", "replace").splitlines()
    if end[0] and len(lines) > 1:
        lines = lines[1:]
    return "\n".join(lines[-_LAST_LINES:]) or None


def last_report(path: str) -> dict[str, Any] | None:
    """The newest report in a file of them; None where there is none."""
    end = _tail(path, 2 * reports.LIMIT)
    return None if end is None else reports.newest(end[1], from_start=end[0] == 0)


def _tail(path: str, limit: int) -> tuple[int, bytes] | None:
    """(where it begins, the last `limit` bytes) of a regular file that has any."""
    fd = _opened(path)
    if fd is None:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return None
        begin = max(0, status.st_size - limit)
        return begin, os.pread(fd, limit, begin)
    finally:
        os.close(fd)
