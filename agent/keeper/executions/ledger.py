"""Paths and names of the keeper's files in an agent's folder, and its ledger. No decisions.

<folder>/keeper.lock, keeper.json     lock: one keeper at a time; identity of the keeper
<folder>/container.log                ends of its containers, a JSON line each, from the driver; only in containers
<folder>/ledger.jsonl                 the executions that the agent has not forgotten (see runtime.execution.keeper_ledger)
<folder>/exits/<time>.jsonl           ends of forgotten executions, from earlier contents of the ledger
<folder>/spare/<number>               empty files for the next executions (see spare_files)
<folder>/run/<name>/                  evidence of one execution (see runtime.execution.folder); creating it consumes the fencing token
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time

from ....protocol.launch.keeper_messages import is_valid_name
from ....runtime import processes
from ....runtime.execution import keeper_ledger
from ....runtime.filesystems import write_atomically
from .spare_files import SpareFiles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_TICKS_PER_SEC = os.sysconf("SC_CLK_TCK")
#: The file is rewritten when it has this many lines, and most are about forgotten executions.
_LONG = 4096


class KeeperLedger:
    """Paths below one agent's folder, and its ledger. The folder's path holds no symbolic links, so
    that /proc shows the same paths.
    """

    def __init__(self, folder: str) -> None:
        self.folder = os.path.realpath(folder)
        self.runs = os.path.join(self.folder, "run")
        self.spare = SpareFiles(os.path.join(self.folder, "spare"))
        self.container_log = os.path.join(self.folder, "container.log")
        self._path = os.path.join(self.folder, keeper_ledger.FILE)
        self._boot_id = processes.boot_id()
        self._fd, self._size, self._count = -1, 0, 0
        #: lines about executions that are not forgotten, and about the agent
        self._lines: dict[str, list[bytes]] = {}
        self._agent: list[bytes] = []

    def make(self) -> None:
        for path in (self.folder, self.runs):
            os.makedirs(path, mode=0o700, exist_ok=True)

    def open(self) -> dict[str, keeper_ledger.Entry]:
        """Return what earlier keepers recorded, by name, and rewrite the file without the rest.

        Only the keeper that holds the lock may call this. Raises OSError.
        """
        found = {
            name: entry
            for name, entry in sorted(keeper_ledger.load(self.folder).entries.items())
            if is_valid_name(name)
        }
        for name, entry in found.items():
            self._lines[name] = [_use(name, entry.token, entry.ticks, entry.boot)]
            if entry.start is not None:
                self._lines[name].append(_line({"start": name, **entry.start}))
            if entry.exit is not None:
                self._lines[name].append(_line({"end": name, "exit": entry.exit}))
        self._rewrite()
        self.spare.open()
        earlier = os.path.join(self.folder, keeper_ledger.EARLIER)
        with contextlib.suppress(OSError):  # of an earlier version
            for name in os.listdir(earlier):
                os.unlink(f"{earlier}/{name}")
            os.rmdir(earlier)
        return found

    def evidence(self, name: str) -> str:
        return f"{self.runs}/{name}"

    # ---- records; each raises OSError, then nothing is written

    def add_entry(self, name: str, token: str) -> None:
        """Record that a token is about to be used."""
        ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_SEC)
        line = _use(name, token, ticks, self._boot_id)
        self._append(line)
        self._lines[name] = [line]

    def record_start(self, name: str, record: dict[str, Any]) -> None:
        line = _line({"start": name, **record})
        self._append(line)
        self._lines[name] = [*self._lines.get(name, [])[:1], line]

    def record_end(self, name: str, exit_: dict[str, Any]) -> None:
        """Record the exit of an execution that succeeded."""
        line = _line({"end": name, "exit": exit_})
        self._append(line)
        self._lines.setdefault(name, []).append(line)

    def record_agent(self, pid: int, ticks: int | None) -> None:
        line = _line({"agent": pid, "startTicks": ticks})
        self._append(line)
        self._agent = [line]

    def remove_entries(self, names: Sequence[str]) -> None:
        """Record that executions are forgotten."""
        known = [name for name in names if name in self._lines]
        if known:
            self._append(_line({"forget": known}))
            for name in known:
                del self._lines[name]

    # ---- inside

    def _append(self, line: bytes) -> None:
        if self._count > _LONG and 4 * len(self._lines) < self._count:
            with contextlib.suppress(OSError):  # for example a full disk: append
                self._rewrite()
        written = os.write(self._fd, line)
        if written < len(line):
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        self._size += written
        self._count += 1

    def _rewrite(self) -> None:
        self._archive_ends()
        lines = [*self._agent, *(line for lines in self._lines.values() for line in lines)]
        write_atomically(self._path, b"".join(lines))
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size, self._count = fd, os.fstat(fd).st_size, len(lines)

    def _archive_ends(self) -> None:
        """Copy the ends of forgotten executions to a file of their own. A crash before the ledger is
        replaced only leaves them there twice.
        """
        ends = keeper_ledger.ends(self._path)
        forgotten = [line for line in ends if keeper_ledger.name_of(line) not in self._lines]
        if forgotten:
            folder = os.path.join(self.folder, keeper_ledger.EXITS)
            os.makedirs(folder, mode=0o700, exist_ok=True)
            write_atomically(f"{folder}/{time.time_ns()}.jsonl", b"".join(forgotten))


def _use(name: str, token: str, ticks: int | None, boot: str | None) -> bytes:
    return _line({"use": name, "token": token, "ticks": ticks, "boot": boot})


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"
