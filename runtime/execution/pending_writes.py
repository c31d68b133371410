"""JSON files that could not be written: the newest value per path, kept in memory and tried again.
Standard library only, because keepers use it. No timer: the owner calls `retry` after `pause`.

Reports do not wait for these writes. A pending write is lost only if its process ends first.
"""

from __future__ import annotations

import contextlib
import json
import os

from ..filesystems import create
from .folder import write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
#: Limit of pending writes: beyond it the oldest is dropped.
_MOST = 10_000


class PendingWrites:
    """Writes JSON files. A newer value for a path replaces the pending one. pause: until the next
    `retry` (seconds).
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._pending: dict[str, dict[str, Any]] = {}
        self.pause = _FIRST_PAUSE

    def __bool__(self) -> bool:
        """Return whether anything is still to be written."""
        return bool(self._pending)

    def write(self, path: str, value: dict[str, Any]) -> None:
        """Write now, or keep the value if that fails. Never raises."""
        if self._try_write(path, value, first=path not in self._pending):
            self._pending.pop(path, None)
            return
        self._pending[path] = value
        if len(self._pending) > _MOST:
            del self._pending[next(iter(self._pending))]

    def delete(self, path: str) -> None:
        """Drop the pending write and delete the file."""
        self._pending.pop(path, None)
        with contextlib.suppress(OSError):
            os.unlink(path)

    def retry(self) -> None:
        """Try the pending writes, until one fails."""
        for path in list(self._pending):
            if not self._try_write(path, self._pending[path], first=False):
                self.pause = min(2 * self.pause, _LONGEST_PAUSE)
                return
            del self._pending[path]
        self.pause = _FIRST_PAUSE
        self._log("all pending writes are done")

    def flush(self) -> None:
        """Try all pending writes a last time."""
        for path, value in self._pending.items():
            self._try_write(path, value, first=False)

    def _try_write(self, path: str, value: dict[str, Any], *, first: bool) -> bool:
        """Return whether the write is done; also True if its folder no longer exists."""
        try:
            # a new file needs no rename: an incomplete one is taken for a missing one
            if not first or not create(path, json.dumps(value).encode()):
                write_json(path, value)
        except (FileNotFoundError, NotADirectoryError) as error:
            self._log(f"cannot write {path}: {error.strerror}")
            return True
        except OSError as error:
            if first:
                self._log(f"cannot write {path}: {error.strerror}; retrying")
            return False
        return True
