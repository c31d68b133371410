"""The keeper's ledger, `ledger.jsonl` in an agent's folder: its lines, and how to read it. Standard
library only. The keeper alone writes it.

    {"use": name, "token", "ticks": start, "boot"}  the token is about to be used
    {"start": name, "pid", "startTicks", ...}       its main process, and what the next keeper needs
    {"end": name, "exit": {...}}                    its exit, if it succeeded; others have exit.json
    {"forget": [name, ...]}                         the agent has stored their ends
    {"agent": pid, "startTicks"}                    the current agent

One JSON object per line, in the order of events. `ticks` are clock ticks since boot, as in
/proc/pid/stat. A line that is torn or has another form is ignored. When the file is rewritten, the
ends of forgotten executions go to a new file in the folder `exits`, which retention removes. Earlier
versions had a file `ledger/<name>` with the token for each execution, `start.json` in its evidence,
and `exit.json` for each success.
"""

from __future__ import annotations

import json
import os
import stat

from .folder import START, opened, read, read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

FILE, EXITS, EARLIER = "ledger.jsonl", "exits", "ledger"
_MOST_BYTES = 256 << 20
_END = b'{"end":"'


class Entry:
    """An execution that is not forgotten. ticks, boot: when its token was used, None if not
    recorded. start: the record of its main process, or None. exit: of a success, or None.
    """

    __slots__ = ("boot", "exit", "start", "ticks", "token")

    def __init__(self, token: str, ticks: int | None, boot: str | None = None) -> None:
        self.token, self.ticks, self.boot = token, ticks, boot
        self.start: dict[str, Any] | None = None
        self.exit: dict[str, Any] | None = None

    @property
    def main(self) -> tuple[int, int] | None:
        """Return pid and start time of the recorded main process."""
        pid, ticks = (
            (self.start.get("pid"), self.start.get("startTicks")) if self.start else (None, None)
        )
        return (pid, ticks) if isinstance(pid, int) and isinstance(ticks, int) else None


class Contents:
    """A ledger. entries: by name, in the order of their use. agent: pid and start time."""

    __slots__ = ("agent", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.agent: tuple[int, int] | None = None


def load(folder: str) -> Contents:
    """Read the ledger of an agent's folder. Raises OSError only for lack of resources."""
    out = Contents()
    for name in _earlier_names(folder):
        token = (read(f"{folder}/{EARLIER}/{name}", 4096) or b"").decode("utf-8", "replace")
        out.entries[name] = Entry(token, None)
    for line in (read(f"{folder}/{FILE}", _MOST_BYTES) or b"").splitlines():
        try:
            _apply(out, json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    for name, entry in out.entries.items():
        if entry.start is None:  # also written when the ledger could not be
            entry.start = read_json(f"{folder}/run/{name}/{START}")
    return out


def _apply(out: Contents, line: dict[str, Any]) -> None:
    if "use" in line:
        ticks, boot = line.get("ticks"), line.get("boot")
        out.entries[str(line["use"])] = Entry(
            str(line["token"]),
            ticks if isinstance(ticks, int) else None,
            boot if isinstance(boot, str) else None,
        )
    elif "start" in line:
        name = str(line.pop("start"))
        out.entries.setdefault(name, Entry(str(line["token"]), None)).start = line
    elif "end" in line:
        if isinstance(line["exit"], dict) and line["end"] in out.entries:
            out.entries[line["end"]].exit = line["exit"]
    elif "forget" in line:
        for name in line["forget"]:
            out.entries.pop(name, None)
    elif "agent" in line:
        out.agent = int(line["agent"]), int(line["startTicks"])


def ends(path: str) -> Iterator[bytes]:
    """Yield the complete lines about ends in a ledger or a file of ends, one at a time: the file may
    be large. Nothing if it is missing. Raises OSError only for lack of resources.
    """
    fd = opened(path)
    if fd is None:
        return
    with open(fd, "rb") as f:
        for line in f if stat.S_ISREG(os.fstat(fd).st_mode) else ():
            if line.startswith(_END) and line.endswith(b"}}\n"):
                yield line


def name_of(line: bytes) -> str:
    """Return the execution of a line about an end."""
    return line[len(_END) :].partition(b'"')[0].decode("utf-8", "replace")


def earlier_exit(folder: str, name: str) -> dict[str, Any] | None:
    """Return the exit of a forgotten execution that succeeded, or None."""
    start = _END + name.encode() + b'"'
    files = [f"{folder}/{FILE}", *sorted(exit_files(folder), reverse=True)]
    for line in (line for file in files for line in ends(file) if line.startswith(start)):
        try:
            exit_ = json.loads(line)["exit"]
        except (ValueError, RecursionError, KeyError):
            continue
        if isinstance(exit_, dict):
            return exit_
    return None


def exit_files(folder: str) -> list[str]:
    """Return the paths of the files with the ends of forgotten executions."""
    return [f"{folder}/{EXITS}/{name}" for name in _names(f"{folder}/{EXITS}")]


def _earlier_names(folder: str) -> list[str]:
    return sorted(_names(f"{folder}/{EARLIER}"))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
