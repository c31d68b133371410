"""Starting one execution: evidence first (which consumes its token), then the process, then a note of who it is.

The job gets nothing of the keeper's: clean environment, default signals, and of its descriptors only its own output files
and its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time

from ...runtime import crashpoints, processes
from .execution import Execution
from .layout import INPUT, LOCK, REPORT, SCRIPT, SIGNAL, START, STDERR, STDOUT, Layout, try_write_json, write
from .say import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SHELL = "/bin/sh"
#: What the script finds open besides 0, 1 and 2: the command's stderr (its own stderr goes to the file `signal`).
STDERR_FD = 3
#: The lock stays open in every process of the job that does not close it on purpose. One digit: every shell can name it.
LOCK_FD = 9

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class StartFailed(Exception):
    """The sentence says why. `consumed`: does evidence lie there that keeps the token from being used again?"""

    def __init__(self, sentence: str, *, consumed: bool) -> None:
        super().__init__(sentence)
        self.consumed = consumed


class Launcher:
    """Made once; knows which signals this process ignores, because a child would inherit that."""

    def __init__(self, layout: Layout, boot_id: str) -> None:
        self._layout = layout
        self._boot_id = boot_id
        catchable = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
        self._ignored = [s for s in catchable if signal.getsignal(s) is signal.SIG_IGN]

    def consume(self, e: Execution) -> None:
        """From here on this token counts as started. Raises StartFailed (not consumed)."""
        try:
            self._layout.enter(e.name, e.token)
            os.mkdir(e.folder, 0o700)
        except OSError as error:
            if not isinstance(error, FileExistsError):  # that one is somebody's whose entry must stay
                self._layout.strike(e.name)
            raise StartFailed(f"its evidence cannot be written: {_sentence(error)}", consumed=False) from None

    def start(self, e: Execution, order: dict[str, Any]) -> None:
        """Consume the token and start the process. Raises StartFailed; then nothing runs."""
        self.consume(e)
        crashpoints.reached("keeper.consumed")
        try:
            self._prepare(e, order)
            self._spawn(e)
            crashpoints.reached("keeper.spawned")
        except (OSError, ValueError) as error:  # ValueError: text that no file name or script can hold
            close_lock(e)
            raise StartFailed(_sentence(error) if isinstance(error, OSError) else str(error), consumed=True) from None
        self.note(e)
        crashpoints.reached("keeper.noted")

    def note(self, e: Execution) -> None:
        """Write down who its main process is. A failure costs the next keeper a search."""
        said = {
            "token": e.token, "pid": e.pid, "startTicks": e.ticks, "startedAt": e.started_at, "startedMono": e.started_mono,
            "bootId": self._boot_id, "limit": e.limit, "grace": e.grace, "runDir": e.run_dir,
        }
        try_write_json(f"{e.folder}/{START}", said)

    def _prepare(self, e: Execution, order: dict[str, Any]) -> None:
        script: str = order["script"]
        write(f"{e.folder}/{SCRIPT}", script.encode("utf-8", "surrogateescape"), 0o700)
        if order.get("input") is not None:
            write(f"{e.folder}/{INPUT}", order["input"].encode())
            write(f"{e.folder}/{REPORT}", b"")  # who waits for reports has something to look at
        e.lock_fd = os.open(f"{e.folder}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(e.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert e.run_dir is not None
        os.makedirs(e.run_dir, mode=0o700, exist_ok=True)
        if not os.access(e.run_dir, os.W_OK | os.X_OK):
            raise PermissionError(13, "the run directory is not writable", e.run_dir)
        _link(e)

    def _spawn(self, e: Execution) -> None:
        folder = e.folder
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, f"{folder}/{STDOUT}", _APPEND, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, f"{folder}/{SIGNAL}", _APPEND, 0o600),
            (os.POSIX_SPAWN_OPEN, STDERR_FD, f"{folder}/{STDERR}", _APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, e.lock_fd, LOCK_FD),
        ]
        script = f"{folder}/{SCRIPT}"
        wall, mono = time.time(), time.monotonic()
        pid = os.posix_spawn(SHELL, ["sh", script], e.mark(), file_actions=actions, setsid=True, setsigmask=(), setsigdef=self._ignored)
        e.began(pid, processes.start_ticks(pid), wall, mono)


def close_lock(e: Execution) -> None:
    """Give back the keeper's copy of the lock."""
    if e.lock_fd >= 0:
        os.close(e.lock_fd)
        e.lock_fd = -1


def _link(e: Execution) -> None:
    """Let the run directory lead to the evidence. It is a convenience: a job starts without it."""
    own = f"{e.run_dir}/.jobscribe"
    parts = e.token.split("/")
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(own, 0o700)
        for name in (f"attempt-{parts[2] if len(parts) == 5 else e.name}", "latest"):
            try:
                os.symlink(e.folder, f"{own}/{name}")
            except FileExistsError:
                temporary = f"{own}/.{name}.{os.getpid()}"
                os.symlink(e.folder, temporary)
                os.rename(temporary, f"{own}/{name}")
    except OSError as error:
        say(f"the run directory of {e.token} does not link to its evidence: {_sentence(error)}")


def _sentence(error: OSError) -> str:
    """What happened to which file, for a person."""
    return f"{error.strerror or error}: {error.filename}" if error.filename else str(error.strerror or error)
