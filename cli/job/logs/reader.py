"""Reads a job's output across attempts, and filters lines by a regular expression."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import re

    from ....client.api.replies import LogPart
    from ....client.sync_client import Client

#: Interval between checks for a new attempt (seconds).
POLL_SECS = 0.5
#: A longer line (bytes) is matched in pieces.
MAX_LINE_BYTES = 1 << 20


class Reader:
    """Reads streams of one job. Both streams share it, each in its own thread. attempt 0: the
    latest attempt, and with `follow` all later ones.
    """

    def __init__(
        self,
        jid: str,
        *,
        attempt: int,
        role: str | None,
        index: int,
        tail: int,
        offset: int,
        follow: bool,
        message: Callable[[str], None],
    ) -> None:
        self._jid, self._attempt, self._role, self._index = jid, attempt, role, index
        self._tail, self._offset, self._follow, self._message = tail, offset, follow, message
        self._lock, self._announced_attempt = threading.Lock(), 0

    def read(self, client: "Client", stream: Any) -> "Iterator[LogPart]":
        attempt, tail, offset = self._attempt, self._tail, self._offset
        while True:
            read = attempt
            for part in client.logs(
                self._jid,
                stream,
                attempt=attempt,
                role=self._role,
                index=self._index,
                offset=offset,
                tail=tail,
                follow=self._follow,
                notes=True,
            ):
                read = part.attempt or read
                yield part
            if self._attempt or not self._follow:
                return
            following = self._next_attempt(client, read)
            if following is None:
                return
            self._announce(following)
            attempt, tail, offset = following, 0, 0

    def _next_attempt(self, client: "Client", read: int) -> int | None:
        """Wait for the attempt after `read` and return its number. None if there is none, or if the
        job was never placed.
        """
        while read:
            status = client.status(self._jid)
            if status.roles is not None:
                return None  # other tasks may still run: reading ends with the task that was read
            if (status.attempt or 0) > read:
                return read + 1
            if status.finished:
                return None
            time.sleep(POLL_SECS)
        return None

    def _announce(self, attempt: int) -> None:
        with self._lock:
            if attempt > self._announced_attempt:
                self._announced_attempt = attempt
                self._message(f"[attempt {attempt}]")


def matching(pattern: "re.Pattern[str]", parts: "Iterator[LogPart]") -> "Iterator[LogPart]":
    """Reduce each part to its complete lines that match. An incomplete line waits for its rest; the
    last one counts as complete.
    """
    import msgspec

    held: LogPart | None = None
    for part in parts:
        if held is not None and (
            part.dropped or part.attempt != held.attempt or part.offset != held.next_offset
        ):
            yield _filter(pattern, held)
            held = None
        data = (held.data if held is not None else b"") + part.data
        cut = data.rfind(b"\n") + 1 if len(data) < MAX_LINE_BYTES else len(data)
        start = held.offset if held is not None else part.offset
        middle = start + cut
        reached = middle if part.data else part.next_offset
        yield _filter(
            pattern,
            msgspec.structs.replace(part, data=data[:cut], offset=start, next_offset=reached),
        )
        held = (
            msgspec.structs.replace(part, data=data[cut:], offset=middle, dropped=0, note="")
            if data[cut:]
            else None
        )
    if held is not None:
        yield _filter(pattern, held)


def _filter(pattern: "re.Pattern[str]", part: "LogPart") -> "LogPart":
    import msgspec

    *complete, rest = part.data.split(b"\n")
    lines = [*(line + b"\n" for line in complete), *([rest] if rest else [])]
    kept = [
        line for line in lines if pattern.search(line.rstrip(b"\r\n").decode("utf-8", "replace"))
    ]
    return msgspec.structs.replace(part, data=b"".join(kept))
