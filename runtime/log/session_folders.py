"""Log files of a data directory by session: each start of a supervisor has its own folder.

    <root>/log/sessions/<utc>-<4 characters>/supervisor.log, server.log     (0700; .1, .2, ... are rotated files)
    <root>/log/latest -> sessions/<the newest>                               replaced by rename: always exists
    <root>/log/supervisor.log -> latest/supervisor.log, and server.log

All readers of these logs use `log_files`. Data directories of versions without sessions have plain
files instead of the links; the next supervisor converts them to a session.
"""

import contextlib
import os
import re
import secrets
import shutil
import string
import time
from collections.abc import Callable
from typing import NamedTuple

from .destinations import RotatingFile

NAMES = ("supervisor", "server")
#: Interval in seconds at which a front end checks for a new session.
LOOK_SECS = 1.0
_STAMP = "%Y%m%dT%H%M%SZ"
_SESSION = re.compile(r"\d{8}T\d{6}Z-[a-z0-9]{4}")
_LETTERS = string.ascii_lowercase + string.digits
#: A rotated file has a number of at most this many digits.
_ROTATED = re.compile(r"\.log(?:\.(\d{1,4}))?")


class Removed(NamedTuple):
    """Sessions removed because of their age or size."""

    sessions: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.sessions} older sessions of the log were removed ({self.bytes} bytes): see log.sessions_kept and log.total_bytes"


def log_files(root: str, name: str) -> list[str]:
    """Return all files of one log ("supervisor" or "server"), oldest first: rotated files of each
    session, then its current file.

    Links are excluded, so each file occurs once. Empty if there are none.
    """
    log = os.path.join(root, "log")
    folders = [os.path.join(log, "sessions", session) for session in sessions(root)]
    # plain files are from a version without sessions, or from a front end that started before the
    # first supervisor
    return [file for folder in (log, *folders) for file in _files_in(folder, name)]


def sessions(root: str) -> list[str]:
    """Return the names of sessions, oldest first. The target of `latest` is the last, whatever the
    clock did.
    """
    try:
        names = sorted(
            n for n in os.listdir(os.path.join(root, "log", "sessions")) if _SESSION.fullmatch(n)
        )
    except OSError:
        return []
    newest = latest(root)
    return [n for n in names if n != newest] + [n for n in names if n == newest]


def latest(root: str) -> str | None:
    """Return the name of the newest session."""
    try:
        return os.path.basename(os.readlink(os.path.join(root, "log", "latest")))
    except OSError:
        return None


def begin(root: str, *, now: float | None = None) -> str:
    """Create a session, point `latest` to it, and return its folder. Raise OSError."""
    log = os.path.join(root, "log")
    os.makedirs(os.path.join(log, "sessions"), 0o700, exist_ok=True)
    _convert_plain_files(log)
    session = _make(log, time.time() if now is None else now)
    _replace_link(log, "latest", os.path.join("sessions", session))
    for name in NAMES:
        _link_to_latest(log, f"{name}.log")
    return os.path.join(log, "sessions", session)


def prune(root: str, *, kept: int, total_bytes: int) -> Removed:
    """Remove the oldest sessions until at most `kept` sessions and `total_bytes` bytes are left;
    never the newest. Never raises.
    """
    names = sessions(root)
    folders = [os.path.join(root, "log", "sessions", name) for name in names]
    sizes = [_size(folder) for folder in folders]
    count = freed = 0
    for folder, size in list(zip(folders, sizes, strict=True))[:-1]:
        if len(folders) - count <= kept and sum(sizes) - freed <= total_bytes:
            break
        shutil.rmtree(folder, ignore_errors=True)
        if os.path.isdir(folder):
            continue
        count, freed = count + 1, freed + size
    return Removed(count, freed)


class Following:
    """A destination that writes into the newest session and switches when another begins. Before
    the first session it writes to a plain file.

    open_file: opens the file at a path.
    """

    def __init__(
        self,
        root: str,
        name: str,
        open_file: Callable[[str], RotatingFile],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._name, self._open_file, self._monotonic = root, name, open_file, monotonic
        self._folder = self._newest()
        self._file = open_file(self._path())
        self._look_at = monotonic() + LOOK_SECS

    def put(self, text: str) -> None:
        now = self._monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECS
            newest = self._newest()
            if newest != self._folder:
                self._folder = newest
                self._file.close()
                self._file = self._open_file(self._path())
        self._file.put(text)

    def close(self) -> None:
        self._file.close()

    @property
    def session(self) -> str | None:
        """Name of the session that is written to; None for the plain file."""
        name = os.path.basename(self._folder)
        return name if _SESSION.fullmatch(name) else None

    def _newest(self) -> str:
        session = latest(self._root)
        log = os.path.join(self._root, "log")
        return log if session is None else os.path.join(log, "sessions", session)

    def _path(self) -> str:
        return os.path.join(self._folder, f"{self._name}.log")


def _files_in(folder: str, name: str) -> list[str]:
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                match = _ROTATED.fullmatch(entry.name.removeprefix(name))
                if (
                    entry.name.startswith(name)
                    and match is not None
                    and entry.is_file(follow_symlinks=False)
                ):
                    found.append((-int(match[1] or 0), entry.path))
    except OSError:
        return []
    return [path for _, path in sorted(found)]


def _make(log: str, now: float) -> str:
    """Create a session folder. Names stay in order, even for two within a second."""
    names = [n for n in os.listdir(os.path.join(log, "sessions")) if _SESSION.fullmatch(n)]
    while any(n.startswith(_stamp(now)) for n in names):
        now += 1
    while True:
        session = f"{_stamp(now)}-{''.join(secrets.choice(_LETTERS) for _ in range(4))}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.join(log, "sessions", session), 0o700)
            return session


def _stamp(at: float) -> str:
    return time.strftime(_STAMP, time.gmtime(at))


def _convert_plain_files(log: str) -> None:
    """Convert plain files in the place of the links to a session of their own, named by the time of
    their last change.
    """
    plain = [path for name in NAMES for path in _files_in(log, name)]
    if not plain:
        return
    session = _make(log, max(map(_modified_at, plain)))
    for path in plain:
        # another supervisor that starts at the same time may have moved it
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, os.path.join(log, "sessions", session, os.path.basename(path)))


def _modified_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


def _replace_link(log: str, name: str, target: str) -> None:
    """Replace a link atomically: a reader always gets the old or the new target."""
    fresh = os.path.join(log, f".{name}-{secrets.token_hex(4)}")
    os.symlink(target, fresh)
    try:
        os.rename(fresh, os.path.join(log, name))
    except BaseException:
        os.unlink(fresh)
        raise


def _link_to_latest(log: str, name: str) -> None:
    path, target = os.path.join(log, name), os.path.join("latest", name)
    while True:
        try:
            os.symlink(target, path)
            return
        except FileExistsError:
            pass
        if os.path.islink(path):
            if os.readlink(path) != target:
                _replace_link(log, name, target)
            return
        _convert_plain_files(log)  # a front end has just begun to write


def _size(folder: str) -> int:
    total = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_size
    return total
