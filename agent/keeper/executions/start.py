"""Starting one execution: evidence first (which consumes its token), then the process, then a note
of who it is.

The job gets nothing of the keeper's: clean environment, default signals, and of its descriptors
only its own output files and its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time

from ....runtime import failpoints, processes
from ....runtime.execution.folder import (
    INPUT,
    JOB,
    LOCK,
    REPORT,
    SCRIPT,
    SIGNAL,
    START,
    STDERR,
    STDOUT,
    write,
)
from ..linux.oom_detection import counted, fault
from ..linux.spawn import NotInside, spawned, spawned_inside
from ..loop.log import say
from .ledger import KeeperLedger
from .state import Execution

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..linux.cgroups import Cgroup, Cgroups
    from ..loop.write_retry import WriteRetryQueue

SHELL = "/bin/sh"
#: What the script finds open besides 0, 1 and 2: the command's stderr (its own stderr goes to the
#: file `signal`).
STDERR_FD = 3
#: The lock stays open in every process of the job that does not close it on purpose. One digit:
#: every shell can name it.
LOCK_FD = 9

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class StartFailed(Exception):
    """The sentence says why, `fault` in a word. `consumed`: does evidence lie there that keeps the
    token from being used again?
    """

    def __init__(self, sentence: str, *, consumed: bool, fault: str | None = None) -> None:
        super().__init__(sentence)
        self.consumed, self.fault = consumed, fault


class Launcher:
    """Made once; knows which signals this process ignores, because a child would inherit that."""

    def __init__(
        self,
        layout: KeeperLedger,
        boot_id: str,
        life_id: str,
        cgroups: Cgroups,
        owed: WriteRetryQueue,
    ) -> None:
        self._layout, self._cgroups, self._owed = layout, cgroups, owed
        self._boot_id, self._life_id = boot_id, life_id
        self._said: set[str] = set()
        catchable = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
        self._ignored = [s for s in catchable if signal.getsignal(s) is signal.SIG_IGN]

    def consume(self, e: Execution) -> None:
        """From here on this token counts as started. Raises StartFailed (not consumed)."""
        try:
            self._layout.enter(e.name, e.token)
            os.mkdir(e.folder, 0o700)
        except OSError as error:
            if not isinstance(
                error, FileExistsError
            ):  # that one is somebody's whose entry must stay
                self._layout.strike(e.name)
            word, sentence = fault(error)
            raise StartFailed(
                f"its evidence cannot be written: {sentence}", consumed=False, fault=word
            ) from None

    def start(self, e: Execution, order: dict[str, Any]) -> None:
        """Consume the token and start the process. Raises StartFailed; then nothing runs."""
        self.consume(e)
        failpoints.reached("keeper.consumed")
        spawning = False
        try:
            self._prepare(e, order)
            spawning = True
            self._spawn(e, order["script"])
            failpoints.reached("keeper.spawned")
        except (
            OSError,
            ValueError,
        ) as error:  # ValueError: text that no file name or script can hold
            close_lock(e)
            if e.cgroup is not None:
                e.cgroup.remove()
            word, sentence = (
                fault(error, spawning=spawning)
                if isinstance(error, OSError)
                else (None, str(error))
            )
            raise StartFailed(sentence, consumed=True, fault=word) from None
        self.note(e)
        failpoints.reached("keeper.noted")

    def note(self, e: Execution) -> None:
        """Write down who its main process is. A failure costs the next keeper a search."""
        said = {
            "token": e.token,
            "pid": e.pid,
            "startTicks": e.ticks,
            "startedAt": e.started_at,
            "startedMono": e.started_mono,
            "bootId": self._boot_id,
            "life": self._life_id,
            "limit": e.limit,
            "grace": e.grace,
            "runDir": e.run_dir,
            "counted": e.counted,
            "cgroup": None if e.cgroup is None else e.cgroup.said(),
        }
        self._owed.write(f"{e.folder}/{START}", said)

    def _prepare(self, e: Execution, order: dict[str, Any]) -> None:
        e.cgroup = self._cgroup(e.name)
        self._limit(e, order.get("memory"))
        moves_in = e.cgroup is not None and not self._inside(e.cgroup)
        _write_script(e, order["script"], moves_in=moves_in)
        if order.get("input") is not None:
            write(f"{e.folder}/{INPUT}", order["input"].encode())
            write(f"{e.folder}/{REPORT}", b"")  # who waits for reports has something to look at
            failpoints.reached("keeper.given")
        e.lock_fd = os.open(f"{e.folder}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(e.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert e.run_dir is not None
        os.makedirs(e.run_dir, mode=0o700, exist_ok=True)
        if not os.access(e.run_dir, os.W_OK | os.X_OK):
            raise PermissionError(13, "the run directory is not writable", e.run_dir)
        if order.get("job") is not None:
            with contextlib.suppress(
                FileNotFoundError
            ):  # never through a link that an earlier attempt left
                os.unlink(f"{e.run_dir}/{JOB}")
            write(f"{e.run_dir}/{JOB}", order["job"].encode())
        _link(e)

    def _cgroup(self, name: str) -> Cgroup | None:
        try:
            return self._cgroups.make(name)
        except OSError as error:
            self._once(
                "made",
                f"no cgroup can be made for {name}: {error.strerror}; jobs start without, and are found by other means",
            )
            return None

    def _limit(self, e: Execution, memory: int | None) -> None:
        """What it asked for is what it may have, where the kernel can be told so."""
        if memory is None or e.cgroup is None:
            return
        try:
            e.cgroup.limit_memory(memory)
        except OSError as error:
            self._once(
                "memory",
                f"the memory of {e.name} cannot be limited: {error.strerror}; jobs start without a limit",
            )

    def _inside(self, cgroup: Cgroup) -> bool:
        return cgroup.version == 2 and self._cgroups.born_inside

    def _spawn(self, e: Execution, text: str) -> None:
        folder = e.folder
        opened = [
            (0, "/dev/null", os.O_RDONLY, 0),
            (1, f"{folder}/{STDOUT}", _APPEND, 0o600),
            (2, f"{folder}/{SIGNAL}", _APPEND, 0o600),
            (STDERR_FD, f"{folder}/{STDERR}", _APPEND, 0o600),
        ]
        how = (
            SHELL,
            ["sh", f"{folder}/{SCRIPT}"],
            e.mark(),
            opened,
            e.lock_fd,
            LOCK_FD,
            self._ignored,
        )
        counts_itself = e.cgroup is not None and e.cgroup.memory is not None
        e.counted = counted(None if counts_itself else self._cgroups.around)
        wall, mono = time.time(), time.monotonic()
        pid = 0
        if e.cgroup is not None and self._inside(e.cgroup):
            try:
                pid = spawned_inside(e.cgroup.folder, *how)
            except NotInside as error:
                self._cgroups.born_inside = False
                self._once(
                    "inside",
                    f"no process can be made inside a cgroup ({error}); each one moves itself in",
                )
                _write_script(e, text, moves_in=True)
        pid = pid or spawned(*how)
        e.began(pid, processes.start_ticks(pid), wall, mono)

    def _once(self, what: str, sentence: str) -> None:
        if what not in self._said:
            self._said.add(what)
            say(sentence)


def _write_script(e: Execution, text: str, *, moves_in: bool) -> None:
    """moves_in: its first act is to move itself into its cgroup."""
    first, newline, rest = text.partition("\n")
    if moves_in and e.cgroup is not None:
        text = (
            first + newline + e.cgroup.entry() + rest
            if first.startswith("#!")
            else e.cgroup.entry() + text
        )
    write(f"{e.folder}/{SCRIPT}", text.encode("utf-8", "surrogateescape"), 0o700)


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
        say(f"the run directory of {e.token} does not link to its evidence: {fault(error)[1]}")
