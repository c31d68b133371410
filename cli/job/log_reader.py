"""Reading a job's output from one attempt into the next, and of it the lines that match."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import re

    from ...client.api.replies import LogPart
    from ...client.sync_client import Client

#: Between two looks whether another attempt has begun (seconds).
LOOK_SECS = 0.5
#: A longer line is looked at in pieces.
LONGEST_LINE = 1 << 20


class Reading:
    """What is read: the same for both streams, each in a thread of its own. attempt 0: the latest,
    and with `follow` those after it.
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
        say: Callable[[str], None],
    ) -> None:
        self._jid, self._attempt, self._role, self._index = jid, attempt, role, index
        self._tail, self._offset, self._follow, self._say = tail, offset, follow, say
        self._lock, self._announced = threading.Lock(), 0

    def of(self, client: "Client", stream: Any) -> "Iterator[LogPart]":
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
            after = self._next(client, read)
            if after is None:
                return
            self._announce(after)
            attempt, tail, offset = after, 0, 0

    def _next(self, client: "Client", read: int) -> int | None:
        """The attempt after that one, as soon as it has begun; None where none follows, or nothing
        has ever been placed.
        """
        while read:
            status = client.status(self._jid)
            if (
                status.roles is not None
            ):  # others run on while the task that was read is over: it ends with that task
                return None
            if (status.attempt or 0) > read:
                return read + 1
            if status.finished:
                return None
            time.sleep(LOOK_SECS)
        return None

    def _announce(self, attempt: int) -> None:
        with self._lock:
            if attempt > self._announced:
                self._announced = attempt
                self._say(f"[attempt {attempt}]")


def matching(pattern: "re.Pattern[str]", parts: "Iterator[LogPart]") -> "Iterator[LogPart]":
    """Of each part the whole lines that match; a line that is cut in two waits for its rest, at the
    end it is one.
    """
    import msgspec

    held: LogPart | None = None
    for part in parts:
        if held is not None and (
            part.dropped or part.attempt != held.attempt or part.offset != held.next_offset
        ):
            yield _only(pattern, held)
            held = None
        data = (held.data if held is not None else b"") + part.data
        cut = data.rfind(b"\n") + 1 if len(data) < LONGEST_LINE else len(data)
        start = held.offset if held is not None else part.offset
        middle = start + cut
        reached = middle if part.data else part.next_offset
        yield _only(
            pattern,
            msgspec.structs.replace(part, data=data[:cut], offset=start, next_offset=reached),
        )
        held = (
            msgspec.structs.replace(part, data=data[cut:], offset=middle, dropped=0, note="")
            if data[cut:]
            else None
        )
    if held is not None:
        yield _only(pattern, held)


def _only(pattern: "re.Pattern[str]", part: "LogPart") -> "LogPart":
    import msgspec

    *whole, rest = part.data.split(b"\n")
    lines = [*(line + b"\n" for line in whole), *([rest] if rest else [])]
    kept = [
        line for line in lines if pattern.search(line.rstrip(b"\r\n").decode("utf-8", "replace"))
    ]
    return msgspec.structs.replace(part, data=b"".join(kept))
