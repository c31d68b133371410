"""CPU time and memory of this process and of all its descendants, exited ones included. Needs only
the standard library, because it runs in the environment of each contestant.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

_PR_SET_CHILD_SUBREAPER = 36
_TICKS = os.sysconf("SC_CLK_TCK")
#: Key of the CPU time of processes that have exited.
EXITED = "exited"


class Process(NamedTuple):
    """exited_secs: CPU time of children that have exited, and of theirs."""

    pid: int
    parent: int
    own_secs: float
    exited_secs: float


def adopt_orphans() -> None:
    """Keep descendants whose parents exit below this process, so that none leaves the tree."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def tree() -> list[Process]:
    """Return this process first, then all its descendants."""
    children: dict[int, list[Process]] = {}
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            user, system, exited_user, exited_system = (int(f) / _TICKS for f in fields[11:15])
            process = Process(
                int(path.parent.name), int(fields[1]), user + system, exited_user + exited_system
            )
            children.setdefault(process.parent, []).append(process)
            if process.pid == os.getpid():
                found.append(process)
    for process in found:
        found += children.get(process.pid, [])
    return found


def cpu_secs() -> Counter[str]:
    """Return the CPU time until now by process title, and of all exited processes in `EXITED`."""
    out: Counter[str] = Counter()
    for process in tree():
        out[_title(process.pid)] += process.own_secs  # type: ignore[assignment]
        out[EXITED] += process.exited_secs  # type: ignore[assignment]
    return out


def pss_mib() -> dict[str, float]:
    """Return the proportional memory in MiB by process title."""
    out: Counter[str] = Counter()
    for process in tree():
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    out[_title(process.pid)] += int(line.split()[1]) / 1024  # type: ignore[assignment]
    return dict(out)


def end_descendants(secs: float = 5.0) -> None:
    deadline = time.monotonic() + secs
    while len(left := tree()[1:]) > 0:
        number = signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        time.sleep(0.1)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _title(pid: int) -> str:
    """Return the name of the program; for jobscribe and Python, with the first argument."""
    if pid == os.getpid():
        return "client"
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        text = ""
    words = [word.rpartition("/")[2] for word in text.split()[:2]] or [EXITED]
    return (
        " ".join(words) if words[0].startswith(("jobscribe", "python")) else words[0].split(":")[0]
    )
