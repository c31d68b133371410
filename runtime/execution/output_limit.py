"""Limits a job's output on the disk: head and tail stay, the middle is released to the file system.

The file keeps its length and the job notices nothing, because a hole is punched. The range is
recorded in `<stream>.log.dropped` *before* it is released, so a reader never takes a hole for
output. The output itself is not read. A job may replace its logs by anything; no operation here
waits for it. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat

from .folder import DROPPED, STDERR, STDOUT, read_json, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Output(Protocol):
        """Owner of the logs. dropped, sizes: end of the dropped middle and last known size, per
        stream.
        """

        @property
        def folder(self) -> str: ...

        @property
        def token(self) -> object: ...

        @property
        def dropped(self) -> dict[str, int]: ...

        @property
        def sizes(self) -> dict[str, int]: ...


DEFAULT_HEAD = DEFAULT_TAIL = 8 << 20
STREAMS = (STDOUT, STDERR)
_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02
#: Holes begin and end at multiples of this; file systems release whole blocks only.
_BLOCK = 4096
#: Growth since the last check (bytes) that calls for another check soon.
_FAST = 4 << 20
#: Largest possible file size.
_LARGEST = 2**63 - 1
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class OutputCap:
    """Limits of all executions. head, tail: bytes of each stream that stay. say: takes a log
    sentence for the operator.
    """

    def __init__(
        self, say: Callable[[str], None], head: int = DEFAULT_HEAD, tail: int = DEFAULT_TAIL
    ) -> None:
        self._say = say
        self._head = -(-head // _BLOCK) * _BLOCK
        self._tail = tail
        #: a hole grows in steps of this size, not at every check
        self._step = max(_BLOCK, min(1 << 20, tail // 4))

    def apply(self, e: Output, *, last: bool = False) -> bool:
        """Drop the excess; return whether a stream grows fast. last: the execution has ended, cut
        exactly.
        """
        fast = False
        for stream in STREAMS:
            path = f"{e.folder}/{stream}"
            try:
                status = os.lstat(path)
            except OSError:
                continue
            if not stat.S_ISREG(status.st_mode):
                continue
            size = status.st_size
            fast = fast or size - e.sizes.get(stream, 0) > _FAST
            e.sizes[stream] = size
            if size > self._head + self._tail or stream in e.dropped:
                self._trim(e, stream, path, size, _BLOCK if last else self._step)
        return fast

    def remember(self, e: Output) -> None:
        """Load the ranges that an earlier keeper dropped."""
        for stream in STREAMS:
            end = (read_json(f"{e.folder}/{stream}{DROPPED}") or {}).get("to")
            # the job may have written the file
            if isinstance(end, int) and self._head <= end <= _LARGEST:
                e.dropped[stream] = end

    def dropped_bytes(self, e: Output) -> int:
        return sum(max(0, to - self._head) for to in e.dropped.values())

    def _trim(self, e: Output, stream: str, path: str, size: int, step: int) -> None:
        begin = self._head
        dropped_to = e.dropped.get(stream, begin)
        if dropped_to < 0:  # this file system does not support holes
            return
        to = max(begin, (size - self._tail) // _BLOCK * _BLOCK)
        if dropped_to > size:  # the job truncated its output: keep what it writes there now
            to = begin
        elif to < dropped_to + step:
            return
        note = f"{path}{DROPPED}"
        try:
            write_json(note, {"from": begin, "to": to})
            e.dropped[stream] = to
            if to > dropped_to:
                self._punch(path, dropped_to, to - dropped_to)
        except OSError as error:
            self._report_failure(e, stream, dropped_to, error)

    def _punch(self, path: str, offset: int, length: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if _libc.fallocate(fd, _KEEP_SIZE_PUNCH_HOLE, offset, length) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(fd)

    def _report_failure(self, e: Output, stream: str, dropped_to: int, error: OSError) -> None:
        """Record that nothing (more) was dropped, for readers and the operator."""
        unsupported = error.errno in _UNSUPPORTED
        sentence = f"{stream} of {e.token} cannot be capped: {error.strerror}"
        self._say(sentence)
        e.dropped[stream] = -1 if unsupported else dropped_to
        note = {"from": self._head, "to": dropped_to, "note": sentence}
        try:
            write_json(f"{e.folder}/{stream}{DROPPED}", note)
        except OSError as again:
            self._say(f"{stream}{DROPPED} of {e.token} cannot be written: {again.strerror}")
