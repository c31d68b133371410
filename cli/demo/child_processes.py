"""The processes that the demo started, also those that have left their parents: they are all ours
to stop at the end.
"""

import ctypes
import os
import time

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def adopt() -> None:
    """From now on orphans among our descendants become our children, not init's, and stay findable."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def stop_all(grace_secs: float) -> int:
    """End every descendant: SIGTERM, and after the grace SIGKILL. Returns how many had to be
    killed.
    """
    deadline = time.monotonic() + grace_secs
    for process in _living():
        _signal(process, kill=False)
    while _living() and time.monotonic() < deadline:
        time.sleep(0.05)
    killed = 0
    while left := _living():
        for process in left:
            _signal(process, kill=True)
        killed += len(left)
        time.sleep(0.05)
    return killed


def _living() -> list[psutil.Process]:
    """Descendants that still run; what has ended is reaped."""
    out = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                out.append(process)
            elif process.ppid() == os.getpid():
                os.waitpid(process.pid, os.WNOHANG)
        except (psutil.NoSuchProcess, ChildProcessError):
            continue
    return out


def _signal(process: psutil.Process, *, kill: bool) -> None:
    try:
        process.kill() if kill else process.terminate()
    except psutil.NoSuchProcess:
        return
