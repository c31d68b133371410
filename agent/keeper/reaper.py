"""The reaper: the parent process of a keeper. If the keeper is killed, the kernel makes the
keeper's children children of the reaper, which waits for them and records their exits.

The next keeper finds an exit in the evidence, as `wait-status.json` (see
runtime.execution.wait_status). The reaper sleeps while its keeper runs. It ends when the keeper and
all processes that the keeper left have ended. A reaper and its keeper are in different sessions, so
that no signal to a process group reaches both. Standard library only, one thread.

The reaper also records exits while its keeper is stopped by a signal: nobody else sees the time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from ...runtime import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

_TITLE = "jobscribe reaper"
#: Pause (seconds) between two looks at the children of a stopped keeper.
_LOOK_SECS = 0.1
#: Pause (seconds) between two attempts to record an exit.
_AGAIN_SECS = 0.5


def fork_keeper(
    root: str, folder: str, *, keep: int = -1, ended: Callable[[int], None] | None = None
) -> None:
    """Fork; return in the child, which becomes the keeper. The caller becomes the reaper and never
    returns.

    folder: of the agent. keep: a descriptor that stays open in the reaper. ended: called in the
    reaper with the keeper's wait status.

    The fork must come before the keeper allocates memory: every page that one of them changes
    afterwards exists twice.
    """
    processes.become_subreaper()
    pid = os.fork()
    if pid:
        _run_reaper(pid, root, folder, keep, ended)


def _run_reaper(
    keeper: int, root: str, folder: str, keep: int, ended: Callable[[int], None] | None
) -> NoReturn:
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)  # the keeper decides when both end
        processes.set_dumpable(False)
        _close_inherited(keep)
        os.chdir("/")
        processes.set_title(_TITLE, root)
        status = _wait_for_keeper(keeper, folder)
        if ended is not None:
            with contextlib.suppress(OSError):
                ended(status)
        _wait_for_children(folder)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            with contextlib.suppress(OSError):  # SIGKILL has no handler
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
    finally:
        os._exit(code & 255)


def _close_inherited(keep: int) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    end = os.sysconf("SC_OPEN_MAX")
    if keep > 2:
        os.closerange(3, keep)
    os.closerange(max(keep + 1, 3), end)


def _wait_for_keeper(pid: int, folder: str) -> int:
    """Return the keeper's wait status when it has ended."""
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return status
        _record_while_stopped(pid, folder)


def _record_while_stopped(keeper: int, folder: str) -> None:
    """Record children of the stopped keeper that end. They stay zombies, for the keeper to reap."""
    from ...runtime.execution import wait_status
    from . import unreaped

    done: set[tuple[int, int]] = set()
    while True:
        with contextlib.suppress(OSError):  # no descriptor or memory is left
            found = processes.find(keeper)
            if found is None or found.state != processes.STOPPED:
                return
            for pid in processes.children(keeper):
                child = processes.find(pid)
                if child is not None and child.over and (pid, child.ticks) not in done:
                    status = wait_status.of_zombie(pid)
                    name = unreaped.recorded_mains(folder).get((pid, child.ticks))
                    if status is not None and name is not None:
                        unreaped.record_exit(folder, name, child, status)
                    done.add((pid, child.ticks))
        time.sleep(_LOOK_SECS)


def _wait_for_children(folder: str) -> None:
    """Reap everything that the keeper left. Record an exit before its process is reaped: as long as
    it is a zombie, the next keeper waits for the record.
    """
    from ...runtime.execution import wait_status
    from . import unreaped

    known: unreaped.Mains = {}
    looked = False
    while True:
        try:
            if not looked:  # while the main process lives, its environment names its execution
                known, looked = unreaped.all_mains(folder, known), True
            info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            assert info is not None
            child = processes.find(info.si_pid)
            if child is not None:
                main = child.pid, child.ticks
                if main not in known and child.session == child.pid:
                    # it may have been between fork and exec when its keeper was killed
                    known = unreaped.all_mains(folder, known)
                if main in known:
                    status = wait_status.from_waitid(info)
                    unreaped.record_exit(folder, known[main], child, status)
            os.waitpid(info.si_pid, 0)
        except ChildProcessError:
            return
        except OSError:  # a full disk, or no descriptor or memory: the exit must not be lost
            time.sleep(_AGAIN_SECS)
