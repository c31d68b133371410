"""Tracking and stopping of all descendants of a process, including orphans."""

import ctypes
import os
import time

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def adopt() -> None:
    """Become the subreaper: orphans among the descendants become children of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def stop_all(grace_secs: float) -> int:
    """End every descendant with SIGTERM, and after `grace_secs` with SIGKILL. Return the number of
    killed processes.
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
    """Return the running descendants, and reap ended children."""
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
