"""Where log lines end up: a stream, or a file that rotates. Neither ever raises, nor waits for whoever reads: a full disk, or a
journal that hangs, must not stop the work.

What was lost is counted in `lost`, and said in the log itself as soon as writing works again.
"""

from __future__ import annotations

import os
import select
# what threading.Lock is: the keeper, which has no threads, loads this module and not that one
from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


class Stream:
    """A text stream such as stderr. A closed pipe, a full disk or a reader that does not read only adds to `lost`.

    patience_secs: a line may wait so long for its reader; the next ones do not, until one is taken again.
    """

    def __init__(self, stream: TextIO, patience_secs: float = 0.0) -> None:
        self._stream = stream
        self._patience = patience_secs
        self._lock = allocate_lock()
        self.lost = 0
        self._unsaid = 0

    def put(self, text: str) -> None:
        with self._lock:
            try:
                if not takes(self._stream.fileno(), 0.0 if self._unsaid else self._patience):
                    self.lost += 1
                    self._unsaid += 1
                    return
            except (OSError, ValueError, AttributeError):
                pass  # not of the kind that can be waited for
            try:
                if self._unsaid:
                    text = f"({self._unsaid} log lines before this one could not be written)\n{text}"
                self._stream.write(text)
                self._stream.flush()
                self._unsaid = 0
            except (OSError, ValueError):  # ValueError: the stream was closed, or cannot encode the text
                self.lost += 1


def takes(fd: int, secs: float = 0.0) -> bool:
    """Will this descriptor take a line now, or within `secs`? Only pipes and sockets ever say no; a broken one is true: writing tells."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(secs * 1000))


class RotatingFile:
    """`path`, mode 0600, of at most `max_bytes`; then it becomes `path.1`, the one before `path.2`, ... up to `keep`."""

    def __init__(self, path: str, max_bytes: int = 64 * 1024 * 1024, keep: int = 3) -> None:
        self.path = path
        self.lost = 0
        self._max_bytes = max_bytes
        self._keep = keep
        self._lock = allocate_lock()
        self._fd = -1
        self._size = 0
        self._torn = False
        self._unsaid = 0

    def put(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        with self._lock:
            try:
                self._write(data)
            except OSError:
                self.lost += 1
                self._unsaid += 1

    def close(self) -> None:
        with self._lock:
            self._close()

    def _write(self, data: bytes) -> None:
        if self._fd >= 0 and self._size + len(data) > self._max_bytes and self._size:
            self._rotate()
        if self._fd < 0:
            self._open()
        if self._unsaid:
            data = b"(%d log lines before this one could not be written)\n%s" % (self._unsaid, data)
        if self._torn:
            data = b"\n" + data
        written = os.write(self._fd, data)
        self._size += written
        self._torn = written < len(data)
        self._unsaid = 0
        if self._torn:
            raise OSError("short write")

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        self._close()
        for n in range(self._keep - 1, 0, -1):
            if os.path.exists(f"{self.path}.{n}"):
                os.replace(f"{self.path}.{n}", f"{self.path}.{n + 1}")
        os.replace(self.path, f"{self.path}.1") if self._keep else os.unlink(self.path)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
