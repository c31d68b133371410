"""What the kernel's log says of processes: its records, and which of its lines name one of ours.
Pure.

A record of /dev/kmsg is `priority,number,microseconds,flags;text`. Anybody who may write there can
add lines of his own, but not as the kernel. A process can be called almost anything, so a name is
never taken for what the kernel says behind or before it. Standard library only: the keeper reads
it.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: So many lines of one end are kept, of so many characters (see protocol.exits).
MOST_LINES, MOST_CHARS = 5, 300
#: The kernel's clock and the monotonic one are set by different hands: they part by so much in a
#: second, and a little anyway.
_DRIFT, _SLACK_SECS = 1e-4, 2.0

#: Lines that name a process whose end they tell of, by its number (of a thread, where a thread did
#: it).
_ABOUT_ONE = tuple(
    re.compile(pattern)
    for pattern in (
        # killed for want of memory; older kernels say whom they choose first
        r"(?:Memory cgroup out of memory|Out of memory(?: \(oom_kill_allocating_task\))?): Kill(?:ed)? process (\d+) \(",
        r"Killed process (\d+) \(",
        r"oom-kill:constraint=.*,pid=(\d+),uid=\d+$",
        r"oom_reaper: reaped process (\d+) \(",
        # a name has 15 characters at most: none can hold what stands behind these numbers
        r".{1,15}\[(\d+)\]: segfault at [0-9a-f]+ ip ",
        r"traps: .{1,15}\[(\d+)\] (?:trap |general protection)",
        r".{1,15}\[(\d+)\]: unhandled (?:level \d |signal \d|exception)",
        r".{1,15}\[(\d+)\]: bad frame in ",
        r"Memory failure: 0x[0-9a-f]+: .*:(\d+) due to hardware memory corruption",
        r"mce: Killing .*:(\d+) due to hardware memory corruption",
        r"audit: type=1701 .* pid=(\d+) comm=",
    )
)
#: One of these is in every line that is of interest, and in few others: most of the log is thrown
#: away for the price of this.
_WORTH_IT = re.compile(
    rb"[Kk]ill|segfault|traps: |unhandled|bad frame|reaped|type=1701|fork rejected"
)
_KILLED_IN = re.compile(r"oom-kill:constraint=|Task in /|Tasks in /|cgroup: fork rejected")


class Record:
    """One line. at: seconds since boot, by the kernel's own clock."""

    __slots__ = ("at", "pid", "text")

    def __init__(self, at: float, text: str, pid: int | None) -> None:
        self.at, self.text, self.pid = at, text, pid


def record(raw: bytes) -> Record | None:
    """None for what tells nothing of any process, or is not the kernel's own."""
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
    pid = named(text)
    return (
        None
        if pid is None and not _KILLED_IN.match(text)
        else Record(int(fields[2]) / 1e6, text, pid)
    )


def named(text: str) -> int | None:
    """The process whose end this line tells of."""
    for pattern in _ABOUT_ONE:
        match = pattern.match(text)
        if match is not None:
            return int(match[1])
    return None


def about(
    records: Iterable[Record], pids: Collection[int], cgroup: str | None, since: float, until: float
) -> tuple[str, ...]:
    """Of what was logged between these two moments (monotonic), the lines that name one of these
    processes, or this cgroup.

    pids: empty where they are not those that the kernel writes. cgroup: how its path ends. Who was
    killed in that cgroup is one of it, and what is said of him besides counts as well. Where there
    are more, the newest.
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
    return tuple(_cut(line) for line in lines[-MOST_LINES:])


def _victims(text: str) -> str:
    """That part of a line in which its cgroup is the one that somebody was killed in; a limit may
    hold for others as well.
    """
    begin = text.find("task_memcg=/")
    return text[begin:] if begin >= 0 else text.partition(" killed as a result of limit of ")[0]


def _cut(line: str) -> str:
    """What stands in the middle is the least."""
    return (
        line
        if len(line) <= MOST_CHARS
        else line[: MOST_CHARS // 2 - 3] + "..." + line[-(MOST_CHARS // 2) :]
    )
