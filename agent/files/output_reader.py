"""Reader of the evidence of executions: output while it grows and when it is complete. Writes
nothing.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...protocol.jobs.execution_state import ExecutionState
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.wire.messages import Execution
from ...runtime import processes
from ...runtime.execution import wait_status
from ...runtime.execution.folder import DROPPED, EXIT_CODE, STOP, from_code, read_json, written_code
from .folder_watch import Change, Folders

#: Limit of bytes per read.
MAX_READ = 512 * 1024
#: Interval (seconds) of checks for the end of an execution, which may change no file.
_LOOK_AGAIN_SECS = 0.5
_FINAL = "exit.json"
#: Upper bound of file sizes.
_LARGEST = 2**62


class Chunk(NamedTuple):
    """`data` begins at `offset`; continue at `next_offset`. dropped: bytes skipped before `offset`.
    end: no data will follow.
    """

    data: bytes
    offset: int
    next_offset: int
    dropped: int
    end: bool


class Evidence:
    """Evidence of all executions of one agent. folder: parent of the evidence folders."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        #: shared by all readers: one descriptor serves all
        self.folders = Folders()
        #: when ended main processes were first seen as zombies, and still were in the last look
        #: (pid, ticks: monotonic seconds)
        self._zombies: dict[tuple[int, int], float] = {}

    def path(self, name: str, file: str) -> Path:
        return self.folder / name / file

    def size(self, name: str, stream: str) -> int:
        """Return the length of a stream so far, dropped bytes included; 0 if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            return self.path(name, f"{stream}.log").stat().st_size
        return 0

    def note_ends(self, executions: Sequence[Execution]) -> None:
        """Note when a main process ended that its keeper does not reap, and record the exit: the
        keeper may be killed. Call this all the time: a keeper may be silent for a while before that
        is known.
        """
        seen, self._zombies = self._zombies, {}
        for e in executions:
            if e.state != ExecutionState.RUNNING or e.pid is None or e.start_ticks is None:
                continue
            found = processes.find(e.pid)
            if found is not None and found.ticks == e.start_ticks and found.over:
                key = e.pid, e.start_ticks
                self._zombies[key] = seen.get(key, time.monotonic())
                if key in seen:
                    self._record(e.token.name, key, seen[key])

    def _record(self, name: str, main: tuple[int, int], mono: float) -> None:
        """Record the exit of a zombie, unless its reaper has done it."""
        folder, status = str(self.folder / name), wait_status.of_zombie(main[0])
        if status is not None and wait_status.read(folder, *main) is None:
            with contextlib.suppress(OSError):  # for example a full disk
                wait_status.write(folder, *main, status, mono)

    def exits(self, executions: Sequence[Execution]) -> list[Execution]:
        """Return executions whose main process has ended, with their exits from the evidence or
        from the zombie.

        For use while the keeper is silent.
        """
        self.note_ends(executions)
        return [e for e in map(self._exited, executions) if e is not None]

    def _exited(self, e: Execution) -> Execution | None:
        """Return the ended execution, or None if it still runs or has no known exit."""
        if (
            e.state != ExecutionState.RUNNING
            or e.exit is not None
            or e.pid is None
            or e.start_ticks is None
            or processes.alive(e.pid, e.start_ticks)
        ):
            return None
        folder = str(self.folder / e.token.name)
        known = self._known_exit(folder, e.pid, e.start_ticks)
        if known is None:
            return None
        ended, stop = known.pop("endedAt"), read_json(f"{folder}/{STOP}")
        exit_ = msgspec.convert(
            {
                **known,
                "startedAt": e.started_at,
                "endedAt": max(min(ended, time.time()), e.started_at or 0.0),
                "stopReason": str(stop.get("reason"))
                if stop is not None and stop.get("signaled", True)
                else None,
            },
            ExitInfo,
        )
        return msgspec.structs.replace(e, exit=exit_)

    def _known_exit(self, folder: str, pid: int, ticks: int) -> dict[str, Any] | None:
        """Return source, code or signal, and end: from the reaper's record, the zombie, or the
        script of an earlier version.
        """
        seen = wait_status.read(folder, pid, ticks)
        if seen is not None:
            return {"source": "keeper", **seen.exit_fields(), "endedAt": seen.at}
        if (mono := self._zombies.get((pid, ticks))) is not None:
            status = wait_status.of_zombie(pid)
            if status is None:
                return None
            ended = time.time() - (time.monotonic() - mono)
            return {"source": "keeper", **wait_status.exit_fields(status), "endedAt": ended}
        code = written_code(folder)
        if code is None:
            return None
        ended = os.stat(f"{folder}/{EXIT_CODE}").st_mtime
        return {"source": "script", **from_code(folder, code), "endedAt": ended}

    async def read(
        self,
        name: str,
        stream: str,
        offset: int,
        limit: int,
        wait_secs: float,
        has_ended: Callable[[], bool | None],
    ) -> Chunk:
        """Return up to `limit` bytes of "stdout" or "stderr" from `offset`; without new data wait up
        to `wait_secs`.

        Dropped bytes are skipped and counted. `end` is true only if the execution has ended (by
        `has_ended`, or by its evidence) and everything was read, so the last line is never
        lost. Raises OSError.
        """
        limit = max(1, min(limit, MAX_READ))
        chunk = self._read_now(name, stream, offset, limit, has_ended)
        until = time.monotonic() + wait_secs
        while not _is_news(chunk) and time.monotonic() < until:
            with self.folders.watching(str(self.folder / name)) as change:
                chunk = await self._wait(change, name, stream, offset, limit, until, has_ended)
        return chunk

    async def _wait(
        self,
        change: Change,
        name: str,
        stream: str,
        offset: int,
        limit: int,
        until: float,
        has_ended: Callable[[], bool | None],
    ) -> Chunk:
        """Check, wait for a change, check again. Returns early if the folder was created meanwhile
        and can be watched.
        """
        while True:
            change.clear()
            chunk = self._read_now(name, stream, offset, limit, has_ended)
            left = until - time.monotonic()
            if _is_news(chunk) or left <= 0:
                return chunk
            await change.wait(min(left, _LOOK_AGAIN_SECS))
            if not change.notified:
                return self._read_now(name, stream, offset, limit, has_ended)

    def _is_over(self, name: str, ended: bool | None) -> bool:
        """ended: None if the execution is unknown; then it is over if it has evidence."""
        return ended or self.path(name, "" if ended is None else _FINAL).exists()

    def _read_now(
        self, name: str, stream: str, offset: int, limit: int, has_ended: Callable[[], bool | None]
    ) -> Chunk:
        # checked before the size: all output was written before the end
        over = self._is_over(name, has_ended())
        path = self.path(name, f"{stream}.log")
        try:
            # a job can replace the file: follow no link, and do not block on a pipe
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, BlockingIOError):
            # none, or the keeper has a lease on it: it is empty
            return Chunk(b"", offset, offset, 0, over)
        try:
            status = os.fstat(fd)
            if status.st_nlink > 1:  # a hard link may be another user's file
                return Chunk(b"", offset, offset, 0, over)
            size = status.st_size
            begin, data = _read_kept(fd, path, offset, limit)
        finally:
            os.close(fd)
        following = begin + len(data)
        return Chunk(data, begin, following, begin - offset, over and following >= size)


def _is_news(chunk: Chunk) -> bool:
    return bool(chunk.data) or chunk.dropped > 0 or chunk.end


def _read_kept(fd: int, path: Path, offset: int, limit: int) -> tuple[int, bytes]:
    """Return (begin, bytes): from `offset`, or from the end of the dropped range, never a byte of
    that range.

    The keeper records a range before it punches the hole. So bytes outside of the range recorded
    after the read are real.
    """
    while True:
        first, behind = _dropped(path)
        begin = behind if first <= offset < behind else offset
        length = min(limit, first - begin) if begin < first < behind else limit
        data = os.pread(fd, length, begin)
        now_first, now_behind = _dropped(path)
        if now_behind <= begin or now_first >= begin + len(data) or now_first >= now_behind:
            return begin, data


def _dropped(path: Path) -> tuple[int, int]:
    """Return the dropped range of this log. It is empty if no bytes were dropped or the record is
    invalid.
    """
    record = read_json(f"{path}{DROPPED}") or {}
    first, behind = record.get("from"), record.get("to")
    if (
        not isinstance(first, int)
        or not isinstance(behind, int)
        or not 0 <= first <= behind <= _LARGEST
    ):
        return 0, 0
    return first, behind
