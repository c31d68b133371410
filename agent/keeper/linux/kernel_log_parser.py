"""Parser of kernel log records, and search for lines about processes of a job. Pure.

A record of /dev/kmsg is `priority,number,microseconds,flags;text`. Users with write access can add
lines, but not with the kernel's facility. A process may have almost any name, so no pattern relies
on text behind a name. Standard library only, as the keeper imports it.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: Limits per execution: lines kept, and characters of a line (see protocol.exits).
MOST_LINES, MOST_CHARS = 5, 300
#: The kernel's log clock and the monotonic clock drift apart: by this much per second, plus slack.
_DRIFT, _SLACK_SECS = 1e-4, 2.0

#: Lines about the death of a process. The group is its pid, or the thread id if a thread caused it.
_ABOUT_ONE = tuple(
    re.compile(pattern)
    for pattern in (
        # killed for lack of memory; older kernels log the chosen process first
        r"(?:Memory cgroup out of memory|Out of memory(?: \(oom_kill_allocating_task\))?): Kill(?:ed)? process (\d+) \(",
        r"Killed process (\d+) \(",
        r"oom-kill:constraint=.*,pid=(\d+),uid=\d+$",
        r"oom_reaper: reaped process (\d+) \(",
        # a name has at most 15 characters: none can contain the text behind these numbers
        r".{1,15}\[(\d+)\]: segfault at [0-9a-f]+ ip ",
        r"traps: .{1,15}\[(\d+)\] (?:trap |general protection)",
        r".{1,15}\[(\d+)\]: unhandled (?:level \d |signal \d|exception)",
        r".{1,15}\[(\d+)\]: bad frame in ",
        r"Memory failure: 0x[0-9a-f]+: .*:(\d+) due to hardware memory corruption",
        r"mce: Killing .*:(\d+) due to hardware memory corruption",
        r"audit: type=1701 .* pid=(\d+) comm=",
    )
)
#: Cheap filter: every relevant line contains one of these words, most other lines none.
_WORTH_IT = re.compile(
    rb"[Kk]ill|segfault|traps: |unhandled|bad frame|reaped|type=1701|fork rejected"
)
_KILLED_IN = re.compile(r"oom-kill:constraint=|Task in /|Tasks in /|cgroup: fork rejected")


class Record:
    """One line of the log. at: seconds since boot, by the kernel's own clock."""

    __slots__ = ("at", "pid", "text")

    def __init__(self, at: float, text: str, pid: int | None) -> None:
        self.at, self.text, self.pid = at, text, pid


def parse_record(raw: bytes) -> Record | None:
    """Return the record, or None if it is not about a process or not written by the kernel."""
    if _WORTH_IT.search(raw) is None:
        return None
    head, semicolon, rest = raw.partition(b";")
    fields = head.split(b",")
    if (
        not semicolon
        or len(fields) < 3
        or not (fields[0].isdigit() and fields[2].isdigit())
        or int(fields[0]) >> 3
    ):
        return None
    text = rest.split(b"\n", 1)[0].decode("ascii", "backslashreplace")
    pid = pid_of(text)
    return (
        None
        if pid is None and not _KILLED_IN.match(text)
        else Record(int(fields[2]) / 1e6, text, pid)
    )


def pid_of(text: str) -> int | None:
    """Return the pid of the process whose death this line reports."""
    for pattern in _ABOUT_ONE:
        match = pattern.match(text)
        if match is not None:
            return int(match[1])
    return None


def lines_about(
    records: Iterable[Record], pids: Collection[int], cgroup: str | None, since: float, until: float
) -> tuple[str, ...]:
    """Return the newest lines, logged between `since` and `until` (monotonic), about one of these
    processes or this cgroup.

    pids: empty if they differ from the kernel's pid namespace. cgroup: end of its path. A process
    killed in that cgroup belongs to it, so other lines about that process count as well.
    """
    slack = _SLACK_SECS + _DRIFT * until
    window = [r for r in records if since - slack <= r.at <= until + slack]
    inside = None if cgroup is None else re.compile(re.escape(cgroup) + r"(?=[/, ]|$)")
    own = {
        *pids,
        *(
            r.pid
            for r in window
            if r.pid is not None and inside is not None and inside.search(_victims(r.text))
        ),
    }
    lines = [
        r.text
        for r in window
        if r.pid in own or (inside is not None and inside.search(_victims(r.text)) is not None)
    ]
    return tuple(_shorten(line) for line in lines[-MOST_LINES:])


def _victims(text: str) -> str:
    """Return the part of a line that names the cgroup of the killed process.

    The limit that caused the kill may belong to a cgroup shared with others.
    """
    begin = text.find("task_memcg=/")
    return text[begin:] if begin >= 0 else text.partition(" killed as a result of limit of ")[0]


def _shorten(line: str) -> str:
    """Shorten a long line in its middle."""
    return (
        line
        if len(line) <= MOST_CHARS
        else line[: MOST_CHARS // 2 - 3] + "..." + line[-(MOST_CHARS // 2) :]
    )
