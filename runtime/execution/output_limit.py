"""Keeps a job's output from filling the disk: its head and its tail stay, the middle is given back
to the file system.

The file keeps its length and the job notices nothing: a hole is punched. What was dropped stands in
`<stream>.log.dropped` *before* it is gone, so a reader never takes a hole for output. Nothing of
the output passes through the one who caps it. Whatever a job puts in place of its logs, nobody
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
        """Whose logs they are. dropped, sizes: per stream, where the dropped middle ends, and the
        size when it was looked at last.
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
#: Holes begin and end at multiples of this; file systems give back whole blocks only.
_BLOCK = 4096
#: Growth since the last look (bytes) that calls for looking again soon.
_FAST = 4 << 20
#: No file is larger.
_LARGEST = 2**63 - 1
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class OutputCap:
    """head, tail: bytes that stay of each stream. say: takes a sentence for whoever looks after
    this machine.
    """

    def __init__(
        self, say: Callable[[str], None], head: int = DEFAULT_HEAD, tail: int = DEFAULT_TAIL
    ) -> None:
        self._say = say
        self._head = -(-head // _BLOCK) * _BLOCK
        self._tail = tail
        #: a hole grows in steps of this size, not with every look
        self._step = max(_BLOCK, min(1 << 20, tail // 4))

    def apply(self, e: Output, *, last: bool = False) -> bool:
        """Drop what is too much; True where a stream grows fast. last: the execution is over, cut
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
        """Take over what an earlier keeper dropped."""
        for stream in STREAMS:
            said = (read_json(f"{e.folder}/{stream}{DROPPED}") or {}).get("to")
            if (
                isinstance(said, int) and self._head <= said <= _LARGEST
            ):  # the job may have written it
                e.dropped[stream] = said

    def dropped_bytes(self, e: Output) -> int:
        return sum(max(0, to - self._head) for to in e.dropped.values())

    def _trim(self, e: Output, stream: str, path: str, size: int, step: int) -> None:
        begin = self._head
        dropped_to = e.dropped.get(stream, begin)
        if dropped_to < 0:  # found out before that this file system cannot do it
            return
        to = max(begin, (size - self._tail) // _BLOCK * _BLOCK)
        if (
            dropped_to > size
        ):  # the job truncated its own output; what it writes there now is not dropped
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
            self._complain(e, stream, dropped_to, error)

    def _punch(self, path: str, offset: int, length: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if _libc.fallocate(fd, _KEEP_SIZE_PUNCH_HOLE, offset, length) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(fd)

    def _complain(self, e: Output, stream: str, dropped_to: int, error: OSError) -> None:
        """Nothing (more) was dropped; say so where a reader and an operator look."""
        unsupported = error.errno in _UNSUPPORTED
        sentence = f"{stream} of {e.token} cannot be capped: {error.strerror}"
        self._say(sentence)
        e.dropped[stream] = -1 if unsupported else dropped_to
        note = {"from": self._head, "to": dropped_to, "note": sentence}
        try:
            write_json(f"{e.folder}/{stream}{DROPPED}", note)
        except OSError as again:
            self._say(f"{stream}{DROPPED} of {e.token} cannot be written: {again.strerror}")
