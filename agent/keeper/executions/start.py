"""Start of one execution: first its evidence (which consumes its token), then the process, then a
record of its pid.

The job inherits nothing from the keeper: it gets a clean environment, default signals, and only its
own output files and its lock as descriptors.
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
from ..linux.oom_detection import describe_fault, read_oom_counters
from ..linux.spawn import NotInside, spawn, spawn_in_cgroup
from ..loop.log import log
from .ledger import KeeperLedger
from .state import Execution

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..linux.cgroups import Cgroup, Cgroups
    from ..loop.write_retry import WriteRetryQueue

SHELL = "/bin/sh"
#: Descriptor of the command's stderr in the script; the script's own stderr is the file `signal`.
STDERR_FD = 3
#: Descriptor of the lock in every process of the job. One digit: every shell can name it.
LOCK_FD = 9

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class StartFailed(Exception):
    """A start failed. The message says why, `fault` is its code.

    consumed: evidence exists that keeps the token from being used again.
    """

    def __init__(self, sentence: str, *, consumed: bool, fault: str | None = None) -> None:
        super().__init__(sentence)
        self.consumed, self.fault = consumed, fault


class Launcher:
    """Starts executions; resets the signals that this process ignores, as a child would inherit
    that.
    """

    def __init__(
        self,
        layout: KeeperLedger,
        boot_id: str,
        life_id: str,
        cgroups: Cgroups,
        writes: WriteRetryQueue,
    ) -> None:
        self._layout, self._cgroups, self._writes = layout, cgroups, writes
        self._boot_id, self._life_id = boot_id, life_id
        self._logged: set[str] = set()
        catchable = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
        self._ignored = [s for s in catchable if signal.getsignal(s) is signal.SIG_IGN]

    def consume(self, e: Execution) -> None:
        """Mark the token as started. Raises StartFailed (not consumed)."""
        try:
            self._layout.add_entry(e.name, e.token)
            os.mkdir(e.folder, 0o700)
        except OSError as error:
            if not isinstance(error, FileExistsError):  # then another execution owns the entry
                self._layout.remove_entry(e.name)
            word, sentence = describe_fault(error)
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
        except (OSError, ValueError) as error:  # ValueError: text invalid in a file name or script
            close_lock(e)
            if e.cgroup is not None:
                e.cgroup.remove()
            word, sentence = (
                describe_fault(error, spawning=spawning)
                if isinstance(error, OSError)
                else (None, str(error))
            )
            raise StartFailed(sentence, consumed=True, fault=word) from None
        self.record_start(e)
        failpoints.reached("keeper.noted")

    def record_start(self, e: Execution) -> None:
        """Write the pid and settings for the next keeper, which must search without them."""
        record = {
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
            "counted": e.oom_counters,
            "cgroup": None if e.cgroup is None else e.cgroup.record(),
        }
        self._writes.write(f"{e.folder}/{START}", record)

    def _prepare(self, e: Execution, order: dict[str, Any]) -> None:
        e.cgroup = self._cgroup(e.name)
        self._limit_memory(e, order.get("memory"))
        moves_in = e.cgroup is not None and not self._starts_inside(e.cgroup)
        _write_script(e, order["script"], moves_in=moves_in)
        if order.get("input") is not None:
            write(f"{e.folder}/{INPUT}", order["input"].encode())
            write(f"{e.folder}/{REPORT}", b"")  # so that it can be watched from the start
            failpoints.reached("keeper.given")
        e.lock_fd = os.open(f"{e.folder}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(e.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert e.run_dir is not None
        os.makedirs(e.run_dir, mode=0o700, exist_ok=True)
        if not os.access(e.run_dir, os.W_OK | os.X_OK):
            raise PermissionError(13, "the run directory is not writable", e.run_dir)
        if order.get("job") is not None:
            # never write through a link that an earlier attempt left
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{e.run_dir}/{JOB}")
            write(f"{e.run_dir}/{JOB}", order["job"].encode())
        _link(e)

    def _cgroup(self, name: str) -> Cgroup | None:
        try:
            return self._cgroups.make(name)
        except OSError as error:
            self._log_once(
                "made",
                f"cannot create a cgroup for {name}: {error.strerror}; jobs start without one and are tracked by other means",
            )
            return None

    def _limit_memory(self, e: Execution, memory: int | None) -> None:
        """Limit the memory of its cgroup to what the job requested, if the kernel supports that."""
        if memory is None or e.cgroup is None:
            return
        try:
            e.cgroup.limit_memory(memory)
        except OSError as error:
            self._log_once(
                "memory",
                f"cannot limit the memory of {e.name}: {error.strerror}; jobs start without a limit",
            )

    def _starts_inside(self, cgroup: Cgroup) -> bool:
        return cgroup.version == 2 and self._cgroups.can_spawn_inside

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
            e.environment_mark(),
            opened,
            e.lock_fd,
            LOCK_FD,
            self._ignored,
        )
        counts_itself = e.cgroup is not None and e.cgroup.memory is not None
        e.oom_counters = read_oom_counters(None if counts_itself else self._cgroups.around)
        wall, mono = time.time(), time.monotonic()
        pid = 0
        if e.cgroup is not None and self._starts_inside(e.cgroup):
            try:
                pid = spawn_in_cgroup(e.cgroup.folder, *how)
            except NotInside as error:
                self._cgroups.can_spawn_inside = False
                self._log_once(
                    "inside",
                    f"cannot create a process inside a cgroup ({error}); each job moves itself in",
                )
                _write_script(e, text, moves_in=True)
        pid = pid or spawn(*how)
        e.record_main(pid, processes.start_ticks(pid), wall, mono)

    def _log_once(self, what: str, sentence: str) -> None:
        if what not in self._logged:
            self._logged.add(what)
            log(sentence)


def _write_script(e: Execution, text: str, *, moves_in: bool) -> None:
    """Write the job's script. moves_in: its first command moves its shell into the cgroup."""
    first, newline, rest = text.partition("\n")
    if moves_in and e.cgroup is not None:
        text = (
            first + newline + e.cgroup.enter_command() + rest
            if first.startswith("#!")
            else e.cgroup.enter_command() + text
        )
    write(f"{e.folder}/{SCRIPT}", text.encode("utf-8", "surrogateescape"), 0o700)


def close_lock(e: Execution) -> None:
    """Close the keeper's descriptor of the lock."""
    if e.lock_fd >= 0:
        os.close(e.lock_fd)
        e.lock_fd = -1


def _link(e: Execution) -> None:
    """Link the run directory to the evidence. A failure is only logged: the link is a convenience."""
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
        log(
            f"cannot link the run directory of {e.token} to its evidence: {describe_fault(error)[1]}"
        )
