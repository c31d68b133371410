"""Reading what executions leave behind: their output while it grows and when it is complete.
Nothing is written here.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.wire.messages import Execution
from ...runtime import processes
from ...runtime.execution.folder import DROPPED, EXIT_CODE, STOP, from_code, read_json, written_code
from .folder_watch import Change, Folders

#: Bytes per read at most, whatever is asked for.
MAX_READ = 512 * 1024
#: The end of an execution that leaves no mark on the disk is noticed after this long (seconds).
_LOOK_AGAIN_SECS = 0.5
_FINAL = "exit.json"
#: No file is larger.
_LARGEST = 2**62


class Chunk(NamedTuple):
    """`data` begins at `offset`; go on at `next_offset`. dropped: bytes skipped before `offset`.
    end: nothing will follow.
    """

    data: bytes
    offset: int
    next_offset: int
    dropped: int
    end: bool


class Evidence:
    """folder: where the evidence of all executions of one agent lies, each in a folder of its name."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        #: where else somebody waits for a change: one descriptor serves all
        self.folders = Folders()

    def path(self, name: str, file: str) -> Path:
        return self.folder / name / file

    def size(self, name: str, stream: str) -> int:
        """Length of a stream so far, dropped bytes included; 0 where there is none."""
        with contextlib.suppress(FileNotFoundError):
            return self.path(name, f"{stream}.log").stat().st_size
        return 0

    def exits(self, executions: Sequence[Execution]) -> list[Execution]:
        """Return executions whose main process has ended, with the exit that their script wrote;
        used while the keeper is silent.
        """
        return [e for e in map(self._exited, executions) if e is not None]

    def _exited(self, e: Execution) -> Execution | None:
        """None: nothing is known that was not known before."""
        if (
            e.state != "running"
            or e.exit is not None
            or e.pid is None
            or e.start_ticks is None
            or processes.alive(e.pid, e.start_ticks)
        ):
            return None
        folder = str(self.folder / e.token.name)
        code = written_code(folder)
        if code is None:
            return None
        stop, ended = (
            read_json(f"{folder}/{STOP}"),
            min(os.stat(f"{folder}/{EXIT_CODE}").st_mtime, time.time()),
        )
        exit_ = msgspec.convert(
            {
                **from_code(folder, code),
                "source": "script",
                "startedAt": e.started_at,
                "endedAt": max(ended, e.started_at or 0.0),
                "stopReason": str(stop.get("reason"))
                if stop is not None and stop.get("signaled", True)
                else None,
            },
            ExitInfo,
        )
        return msgspec.structs.replace(e, exit=exit_)

    async def read(
        self,
        name: str,
        stream: str,
        offset: int,
        limit: int,
        wait_secs: float,
        is_over: Callable[[], bool],
    ) -> Chunk:
        """Up to `limit` bytes of "stdout" or "stderr" from `offset`; where nothing is there yet,
        wait up to `wait_secs`.

        What was dropped is skipped and counted. `end` is told only when the execution is over (by
        `is_over`, or by its final evidence) and everything was read, so the last line is never
        lost. Raises OSError.
        """
        limit = max(1, min(limit, MAX_READ))
        chunk = self._look(name, stream, offset, limit, is_over)
        until = time.monotonic() + wait_secs
        while not _worth_telling(chunk) and time.monotonic() < until:
            with self.folders.watching(str(self.folder / name)) as change:
                chunk = await self._wait(change, name, stream, offset, limit, until, is_over)
        return chunk

    async def _wait(
        self,
        change: Change,
        name: str,
        stream: str,
        offset: int,
        limit: int,
        until: float,
        is_over: Callable[[], bool],
    ) -> Chunk:
        """Look, wait for a change, look again. Returns early where the folder appeared in the
        meantime and can be watched.
        """
        while True:
            change.clear()
            chunk = self._look(name, stream, offset, limit, is_over)
            left = until - time.monotonic()
            if _worth_telling(chunk) or left <= 0:
                return chunk
            await change.wait(min(left, _LOOK_AGAIN_SECS))
            if not change.told:
                return self._look(name, stream, offset, limit, is_over)

    def _look(
        self, name: str, stream: str, offset: int, limit: int, is_over: Callable[[], bool]
    ) -> Chunk:
        # asked before the size is: what is written after the answer "over" is nobody's
        over = is_over() or self.path(name, _FINAL).exists()
        path = self.path(name, f"{stream}.log")
        try:
            # a job can put something else in its place: a link is not followed, and nobody is
            # waited for at a pipe
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return Chunk(b"", offset, offset, 0, over)
        try:
            status = os.fstat(fd)
            if status.st_nlink > 1:  # a hard link: it is somebody else's file, too
                return Chunk(b"", offset, offset, 0, over)
            size = status.st_size
            begin, data = _read_kept(fd, path, offset, limit)
        finally:
            os.close(fd)
        following = begin + len(data)
        return Chunk(data, begin, following, begin - offset, over and following >= size)


def _worth_telling(chunk: Chunk) -> bool:
    return bool(chunk.data) or chunk.dropped > 0 or chunk.end


def _read_kept(fd: int, path: Path, offset: int, limit: int) -> tuple[int, bytes]:
    """(where it begins, bytes): from `offset`, or from behind the dropped range, never a byte out
    of it.

    The keeper notes a range before it punches the hole, so bytes read *before* a note that leaves
    them alone are real.
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
    """The range that was dropped of this log; an empty one where nothing was, or where its job
    wrote something else there.
    """
    said = read_json(f"{path}{DROPPED}") or {}
    first, behind = said.get("from"), said.get("to")
    if (
        not isinstance(first, int)
        or not isinstance(behind, int)
        or not 0 <= first <= behind <= _LARGEST
    ):
        return 0, 0
    return first, behind
