"""The messages of a stopped process at its user's end. The job may send anything, so they are limited."""

import json
from collections.abc import Iterator
from typing import Any

#: Characters of a message: a debugger sends 64 KiB of output at once, each escaped by up to 12.
MOST_CHARS = 2 * 1024 * 1024


class MessageTooLong(Exception):
    """The process sends a message without end; the text says so."""


class MessageLines:
    """Assembles lines of JSON from pieces. At most one line is kept."""

    def __init__(self, most_chars: int = MOST_CHARS) -> None:
        self._most_chars = most_chars
        self._parts, self._kept = list[str](), 0

    def messages(self, data: str) -> Iterator[dict[str, Any]]:
        """Yield the messages that this piece completes. Invalid lines are ignored. Raises
        MessageTooLong.
        """
        first, *rest = data.split("\n")
        self._keep(first)
        for part in rest:
            line = "".join(self._parts)
            self._parts, self._kept = [], 0
            self._keep(part)
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(message, dict):
                yield message

    def _keep(self, part: str) -> None:
        self._kept += len(part)
        if self._kept > self._most_chars:
            self._parts = []
            raise MessageTooLong(
                f"the process sent more than {self._most_chars // 2**20} MiB without an end of line, so the session"
                " is over; a debugger does not do that: 'jobscribe job logs' shows the output of the job"
            )
        self._parts.append(part)
