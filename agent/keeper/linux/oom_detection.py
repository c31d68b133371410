"""Was memory what an execution died of, as far as the kernel's own counters tell. And what a
failing call means, for people.

Three counters can be read: of the execution's own cgroup, of the one that everything of ours is in,
and of the machine. Each rises *before* the process that is killed gets its signal, so what has not
risen by the end has killed nothing.
"""

from __future__ import annotations

import errno
import os
import resource
import signal

from . import cgroups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: What a shell reports for a command whose end was SIGKILL.
_KILLED = 128 + signal.SIGKILL

_WORDS = {
    errno.EMFILE: (
        "noDescriptors",
        "the keeper has no descriptor left (ulimit -n is {descriptors})",
    ),
    errno.ENFILE: ("noDescriptors", "this machine has no descriptor left"),
    errno.ENOMEM: ("noMemory", "there is no memory left to start it"),
    errno.ENOSPC: ("diskFull", "the disk is full"),
    errno.EDQUOT: ("diskFull", "the user's disk quota is used up"),
    errno.EROFS: ("notWritable", "the disk is read-only"),
}


def counted(around: str | None) -> dict[str, int | None]:
    """The two counters that are not the execution's own, as they stand now."""
    machine = cgroups.machine_oom_kills()
    return {"machine": machine, "around": cgroups.oom_kills(around)}


def out_of_memory(
    before: dict[str, Any] | None,
    after: dict[str, int | None],
    own: int | None,
    *,
    killed: bool,
    alone: bool = False,
) -> bool | None:
    """before, after: see `counted`; own: the counter of its own cgroup, which began at 0.

    killed: did it die by a SIGKILL that was not ours? alone: is nothing around it but what the
    kernel spares as long as there are processes of jobs? So it is in a container, where they are
    the first to go, and no other execution ran meanwhile.

    None where it cannot be known: others were killed in the same surroundings, and whether it was
    one of its processes, too, nobody saw.
    """
    if own:
        return True
    if rose(before, after, "machine") is False or own == 0:
        return False
    match rose(before, after, "around"):
        case False:
            return False
        case True if killed or alone:
            return True
        case _:
            return None


def died_killed(exit_: dict[str, Any], *, by_us: bool) -> bool:
    """Was SIGKILL its end, or its last child's as far as its code tells, without our sending it?"""
    return not by_us and (exit_.get("signal") == signal.SIGKILL or exit_.get("code") == _KILLED)


def rose(before: dict[str, Any] | None, after: dict[str, int | None], which: str) -> bool | None:
    """Has this counter risen? None where it cannot be read."""
    was, is_ = (before or {}).get(which), after.get(which)
    return None if not isinstance(was, int) or is_ is None else is_ > was


def fault(error: OSError, *, spawning: bool = False) -> tuple[str | None, str]:
    """(a word for programs, a sentence for people) of a start that failed. spawning: while the
    process was made.
    """
    if spawning and error.errno == errno.EAGAIN:
        most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        limit = "no limit of the user" if most == resource.RLIM_INFINITY else f"ulimit -u is {most}"
        return (
            "noProcesses",
            f"no further process can be made: the user, its cgroup or the machine is at its limit ({limit})",
        )
    if (
        spawning
        and error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC)
        and not os.access("/bin/sh", os.X_OK)
    ):
        return "noShell", f"there is no shell to run its script with: {error.strerror}: /bin/sh"
    where = f": {error.filename}" if error.filename else ""
    if error.errno in _WORDS:
        word, sentence = _WORDS[error.errno]
        sentence = sentence.format(descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        return word, f"{sentence}: {error.strerror}{where}"
    return "notWritable" if error.errno in (
        errno.EACCES,
        errno.EPERM,
    ) else None, f"{error.strerror or error}{where}"
