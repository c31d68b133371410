"""Detection of out-of-memory kills by the kernel's counters, and descriptions of failed calls.

Three counters exist: of the execution's own cgroup, of the cgroup that contains the keeper and all
its processes, and of the machine. Each rises before the killed process gets its signal, so a
counter that has not risen by the end proves that there was no kill.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import time

from . import cgroups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: What a shell reports for a command killed by SIGKILL.
_KILLED = 128 + signal.SIGKILL

_WORDS = {
    errno.EMFILE: (
        "noDescriptors",
        "the keeper has no file descriptor left (ulimit -n is {descriptors})",
    ),
    errno.ENFILE: ("noDescriptors", "this machine has no file descriptor left"),
    errno.ENOMEM: ("noMemory", "there is no memory left to start it"),
    errno.ENOSPC: ("diskFull", "the disk is full"),
    errno.EDQUOT: ("diskFull", "the user's disk quota is used up"),
    errno.EROFS: ("notWritable", "the disk is read-only"),
}


#: Age up to which a reading is recent (seconds): one execution ends and the next one starts.
_RECENT_SECS = 0.001
_last_reading: tuple[float, str | None, dict[str, int | None]] = (float("-inf"), None, {})


def read_oom_counters(around: str | None, *, recent: bool = False) -> dict[str, int | None]:
    """Return the values of the two counters that several executions share: the current ones, or
    recent ones. The kernel adds up many counters for each reading.
    """
    global _last_reading
    at, place, counters = _last_reading
    now = time.monotonic()
    if not recent or place != around or now - at > _RECENT_SECS:
        counters = {"machine": cgroups.machine_oom_kills(), "around": cgroups.oom_kills(around)}
        _last_reading = (now, around, counters)
    return counters


def out_of_memory(
    before: dict[str, Any] | None,
    after: dict[str, int | None],
    own: int | None,
    *,
    killed: bool,
    alone: bool = False,
) -> bool | None:
    """Return whether memory was the cause of the end; None if that cannot be known.

    before, after: see `read_oom_counters`. own: the counter of its own cgroup, which started at 0.
    killed: SIGKILL (not sent by us) ended it. alone: `around` belongs to a container and no other
    execution ran meanwhile; there the kernel kills jobs before keeper and agent.

    None: a process in `around` was killed, but it may not belong to this execution.
    """
    if own:
        return True
    if has_risen(before, after, "machine") is False or own == 0:
        return False
    match has_risen(before, after, "around"):
        case False:
            return False
        case True if killed or alone:
            return True
        case _:
            return None


def was_killed(exit_: dict[str, Any], *, by_us: bool) -> bool:
    """Return whether SIGKILL (not sent by us) ended it, or, by its exit code, its last child."""
    return not by_us and (exit_.get("signal") == signal.SIGKILL or exit_.get("code") == _KILLED)


def has_risen(
    before: dict[str, Any] | None, after: dict[str, int | None], which: str
) -> bool | None:
    """Return whether this counter has risen; None if it cannot be read."""
    was, is_ = (before or {}).get(which), after.get(which)
    return None if not isinstance(was, int) or is_ is None else is_ > was


def describe_fault(error: OSError, *, spawning: bool = False) -> tuple[str | None, str]:
    """Return (error code or None, sentence) for a failed start.

    spawning: the call that creates the process failed.
    """
    if spawning and error.errno == errno.EAGAIN:
        most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        limit = "no user limit" if most == resource.RLIM_INFINITY else f"ulimit -u is {most}"
        return (
            "noProcesses",
            f"cannot create another process: the user, its cgroup or the machine is at its limit ({limit})",
        )
    if (
        spawning
        and error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC)
        and not os.access("/bin/sh", os.X_OK)
    ):
        return "noShell", f"the shell for its script cannot be run: {error.strerror}: /bin/sh"
    where = f": {error.filename}" if error.filename else ""
    if error.errno in _WORDS:
        word, sentence = _WORDS[error.errno]
        sentence = sentence.format(descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        return word, f"{sentence}: {error.strerror}{where}"
    return "notWritable" if error.errno in (
        errno.EACCES,
        errno.EPERM,
    ) else None, f"{error.strerror or error}{where}"
