"""Pending writes: JSON files that could not be written, kept in memory and retried.

Reports to the agent do not wait for them. A pending write is lost only if the keeper ends first.
"""

from __future__ import annotations

import contextlib
import os
import time

from ....runtime.execution.folder import write_json
from .log import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .event_loop import Loop

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
#: Limit of pending writes: beyond it the oldest is dropped.
_MOST = 10_000


class WriteRetryQueue:
    """Writes JSON files; retries until the write succeeds. A newer value for a path replaces the
    pending one.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._pending: dict[str, dict[str, Any]] = {}
        self._pause = _FIRST_PAUSE

    def write(self, path: str, value: dict[str, Any]) -> None:
        """Write now, or later if that fails. Never raises."""
        if self._try_write(path, value, first=path not in self._pending):
            self._pending.pop(path, None)
            return
        self._pending[path] = value
        if len(self._pending) > _MOST:
            del self._pending[next(iter(self._pending))]
        if not self._loop.has_timer("pending writes"):
            self._loop.call_at("pending writes", time.monotonic() + self._pause, self._retry)

    def delete(self, path: str) -> None:
        """Drop the pending write and delete the file."""
        self._pending.pop(path, None)
        with contextlib.suppress(OSError):
            os.unlink(path)

    def flush(self) -> None:
        """Try all pending writes a last time."""
        for path, value in self._pending.items():
            self._try_write(path, value, first=False)

    def _retry(self) -> None:
        for path in list(self._pending):
            if not self._try_write(path, self._pending[path], first=False):
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                self._loop.call_at("pending writes", time.monotonic() + self._pause, self._retry)
                return
            del self._pending[path]
        self._pause = _FIRST_PAUSE
        log("all pending writes are done")

    def _try_write(self, path: str, value: dict[str, Any], *, first: bool) -> bool:
        """Return whether the write is done; also True if its folder no longer exists."""
        try:
            write_json(path, value)
        except (FileNotFoundError, NotADirectoryError) as error:
            log(f"cannot write {path}: {error.strerror}")
            return True
        except OSError as error:
            if first:
                log(f"cannot write {path}: {error.strerror}; retrying")
            return False
        return True
