"""Destinations of log lines: a stream, or a rotating file. They never raise and do not wait for
readers, so that a full disk or a hanging journal does not stop the work.

Lost lines are counted in `lost`, and noted in the log itself once writing works again.
"""

from __future__ import annotations

import os
import select

# threading.Lock without the module threading, which the keeper (it has no threads) does not load
from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO


def plain_line(sentence: str) -> str:
    """Return a line for a note of the destination itself, in a text log."""
    return sentence + "\n"


class Stream:
    """A text stream such as stderr. A closed pipe, a full disk or a slow reader only adds to
    `lost`.

    patience_secs: longest wait of a line for the reader. After a timeout, lines do not wait until
    the reader takes one again.
    """

    def __init__(
        self, stream: TextIO, patience_secs: float = 0.0, line: Callable[[str], str] = plain_line
    ) -> None:
        self._stream, self._line = stream, line
        self._patience = patience_secs
        self._lock = allocate_lock()
        self.lost = 0
        self._unreported = 0

    def put(self, text: str) -> None:
        with self._lock:
            try:
                if not is_writable(
                    self._stream.fileno(), 0.0 if self._unreported else self._patience
                ):
                    self.lost += _lines(text)
                    self._unreported += _lines(text)
                    return
            except (OSError, ValueError, AttributeError):
                pass  # cannot be polled
            try:
                if self._unreported:
                    text = self._line(lost_lines_note(self._unreported)) + text
                self._stream.write(text)
                self._stream.flush()
                self._unreported = 0
            except (OSError, ValueError):
                # ValueError: the stream was closed, or cannot encode the text
                self.lost += 1


def is_writable(fd: int, secs: float = 0.0) -> bool:
    """Return whether this descriptor takes a line within `secs`. Only a pipe or socket can be
    unwritable. A broken one returns True, because the write reports it.
    """
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(secs * 1000))


def _lines(text: str) -> int:
    """Return the number of log lines. Traceback lines belong to the line above."""
    return max(1, text.count("\n") - text.count("\n  "))


def lost_lines_note(lines: int) -> str:
    return f"({lines} log lines before this one could not be written)"


class RotatingFile:
    """File `path`, mode 0600, of at most `max_bytes`. Then it is renamed to `path.1`, the one
    before to `path.2`, ... up to `keep`.

    Dropped lines are noted in the first line of the new file. rotations: number of rotations.
    """

    def __init__(
        self,
        path: str,
        max_bytes: int = 64 * 1024 * 1024,
        keep: int = 3,
        line: Callable[[str], str] = plain_line,
    ) -> None:
        self.path, self._line = path, line
        self.lost = self.rotations = 0
        self._max_bytes = max_bytes
        self._keep = keep
        self._lock = allocate_lock()
        self._fd = -1
        self._size = 0
        self._partial_line = False
        self._unreported = 0
        self._marker = ""

    def put(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        with self._lock:
            try:
                self._write(data)
            except OSError:
                self.lost += _lines(text)
                self._unreported += _lines(text)

    def close(self) -> None:
        with self._lock:
            self._close()

    def _write(self, data: bytes) -> None:
        if self._fd >= 0 and self._size + len(data) > self._max_bytes and self._size:
            self._rotate()
        if self._fd < 0:
            self._open()
        more = (self._marker, lost_lines_note(self._unreported) if self._unreported else "")
        counted, data = (
            len(data),
            b"".join(self._line(sentence).encode() for sentence in more if sentence) + data,
        )
        if self._partial_line:
            data = b"\n" + data
        written = os.write(self._fd, data)
        self._size += counted  # notes are short and come once, so they are not counted
        self._partial_line = written < len(data)
        self._unreported, self._marker = 0, ""
        if self._partial_line:
            raise OSError("short write")

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        self._close()
        oldest = f"{self.path}.{self._keep}" if self._keep else self.path
        dropped = os.path.getsize(oldest) if os.path.exists(oldest) else 0
        for n in range(self._keep - 1, 0, -1):
            if os.path.exists(f"{self.path}.{n}"):
                os.replace(f"{self.path}.{n}", f"{self.path}.{n + 1}")
        os.replace(self.path, f"{self.path}.1") if self._keep else os.unlink(self.path)
        self.rotations += 1
        if dropped:
            goes_on = f"goes on from {os.path.basename(self.path)}.1; " if self._keep else ""
            self._marker = f"[jobscribe: {goes_on}{dropped} bytes of older lines were dropped]"

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
