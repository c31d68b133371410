"""The processes of an execution, from /proc. Only reads.

Python 3.8 or later, standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import NamedTuple

#: Variable with the token of its execution in each process.
MARK = b"JOBSCRIBE_TOKEN"
#: States of proc(5): ended; stopped, by a signal or by a debugger; in a wait that no signal ends.
OVER, STOPPED = frozenset("ZX"), frozenset("Tt")
STOPPED_BY_SIGNAL, UNINTERRUPTIBLE = "T", "D"
#: Limit of bytes read of a file in /proc.
_BYTES = 1 << 20
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*[a-z]*\Z")
_LIBRARY = re.compile(r"/libpython3[0-9.]*\.so")
_TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """A process. start: in clock ticks since the boot, which together with the pid identifies it.
    state: the letter of proc(5). cpu_secs: of all its threads.
    """

    pid: int
    parent: int
    session: int
    start: int
    state: str
    cpu_secs: float
    name: str


def read(path: str) -> bytes:
    """Return the content of a file in /proc; nothing if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(_BYTES)
    except OSError:
        return b""


def find(pid: int) -> Process | None:
    """Return the process; None if there is none."""
    text = read(f"/proc/{pid}/stat").decode("utf-8", "replace")
    before, separator, after = text.rpartition(")")
    fields = after.split()
    if not separator or len(fields) < 20:
        return None
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS
    name = before.partition("(")[2]
    return Process(
        pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0], round(cpu, 2), name
    )


def is_same(process: Process) -> bool:
    """Return whether the process lives. A zombie does not."""
    now = find(process.pid)
    return now is not None and now.start == process.start and now.state not in OVER


def of_execution(token: str) -> list[Process]:
    """Return the processes of an execution by pid: those with its mark in their environment, and
    their descendants. Those of this session are not part of it.
    """
    known = {p.pid: p for p in map(find, _pids()) if p is not None}
    own = os.getsid(0)
    mark = b"\0" + MARK + b"=" + token.encode() + b"\0"
    found = {p.pid for p in known.values() if mark in b"\0" + read(f"/proc/{p.pid}/environ")}
    more = True
    while more:
        added = {p.pid for p in known.values() if p.parent in found} - found
        found |= added
        more = bool(added)
    return [known[pid] for pid in sorted(found) if known[pid].session != own]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def command(pid: int) -> list[str]:
    """Return the arguments of a process; nothing for a zombie."""
    text = read(f"/proc/{pid}/cmdline").decode("utf-8", "replace")
    return text.rstrip("\0").split("\0") if text else []


def variable(pid: int, name: str) -> str:
    """Return a variable of the environment that the process was started with; "" without it."""
    for entry in read(f"/proc/{pid}/environ").split(b"\0"):
        key, _, value = entry.partition(b"=")
        if key == name.encode():
            return os.fsdecode(value)
    return ""


def is_python(process: Process) -> bool:
    """Return whether a process runs an interpreter of Python, also one in another program."""
    try:
        program = os.readlink(f"/proc/{process.pid}/exe")
    except OSError:
        program = next(iter(command(process.pid)), process.name)
    if _PYTHON.match(os.path.basename(program.replace(" (deleted)", ""))):
        return True
    return bool(_LIBRARY.search(read(f"/proc/{process.pid}/maps").decode("utf-8", "replace")))


def status(pid: int) -> dict[str, str]:
    """Return the fields of /proc/pid/status."""
    lines = read(f"/proc/{pid}/status").decode("utf-8", "replace").splitlines()
    return {k: v.strip() for k, _, v in (line.partition(":") for line in lines)}


def waits_in(pid: int) -> str:
    """Return the function of the kernel in which the process waits, and its system call by number;
    "" if neither is known.
    """
    function = read(f"/proc/{pid}/wchan").decode("ascii", "replace").strip()
    call = read(f"/proc/{pid}/syscall").decode("ascii", "replace").split()
    parts = [function] if function not in ("", "0") else []
    if call and call[0].lstrip("-").isdigit() and int(call[0]) >= 0:
        parts.append(f"system call {call[0]}")
    return ", ".join(parts)


def is_frozen(pid: int) -> bool:
    """Return whether the process, or a cgroup around it, is frozen."""
    for line in read(f"/proc/{pid}/cgroup").decode("utf-8", "replace").splitlines():
        number, _, path = line.partition(":")
        path = path.partition(":")[2]
        if number == "0" and path.startswith("/"):
            events = read(f"/sys/fs/cgroup{path.rstrip('/')}/cgroup.events")
            return b"frozen 1" in events
    return False


def program(name: str, processes: list[Process]) -> str | None:
    """Return the path of a program: on the PATH, beside this interpreter, or in the environments of
    these processes.
    """
    places = [os.environ.get("PATH", ""), os.path.dirname(sys.executable)]
    for process in processes:
        first = next(iter(command(process.pid)), "")
        places.append(os.path.dirname(first) if first.startswith("/") else "")
        places.append(variable(process.pid, "PATH"))
    folders = [f for place in places for f in place.split(":") if f.startswith("/")]
    return shutil.which(name, path=":".join(dict.fromkeys(folders)) or os.defpath)
