"""Notes of what happened that the disk did not take: kept in memory and written as soon as it does.

What the agent is told does not wait for that. Only when the keeper itself ends first is such a note
lost.
"""

from __future__ import annotations

import contextlib
import os
import time

from ....runtime.execution.folder import write_json
from .log import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .event_loop import Loop

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
#: More notes than this are not kept: the oldest is given up.
_MOST = 10_000


class WriteRetryQueue:
    """`write` is tried at once, and again until it works. A newer value for the same path takes the
    older one's place.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._notes: dict[str, dict[str, Any]] = {}
        self._pause = _FIRST_PAUSE

    def write(self, path: str, value: dict[str, Any]) -> None:
        """Never raises."""
        if self._written(path, value, first=path not in self._notes):
            self._notes.pop(path, None)
            return
        self._notes[path] = value
        if len(self._notes) > _MOST:
            del self._notes[next(iter(self._notes))]
        if not self._loop.has_timer("owed"):
            self._loop.at("owed", time.monotonic() + self._pause, self._again)

    def withdraw(self, path: str) -> None:
        """Take a note back."""
        self._notes.pop(path, None)
        with contextlib.suppress(OSError):
            os.unlink(path)

    def settle(self) -> None:
        """Try all of them a last time."""
        for path, value in self._notes.items():
            self._written(path, value, first=False)

    def _again(self) -> None:
        for path in list(self._notes):
            if not self._written(path, self._notes[path], first=False):
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                self._loop.at("owed", time.monotonic() + self._pause, self._again)
                return
            del self._notes[path]
        self._pause = _FIRST_PAUSE
        say("the notes that the disk had not taken are written")

    def _written(self, path: str, value: dict[str, Any], *, first: bool) -> bool:
        """True also where there is nothing any more to write it into."""
        try:
            write_json(path, value)
        except (FileNotFoundError, NotADirectoryError) as error:
            say(f"{path} cannot be written: {error.strerror}")
            return True
        except OSError as error:
            if first:
                say(f"{path} cannot be written: {error.strerror}; it is tried again")
            return False
        return True
