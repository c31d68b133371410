"""Cursors of readers of logs and events: the position, and the next request. Pure."""

from ...protocol.api.requests import JobLog
from ...protocol.wire.messages import Stream
from .replies import LoggedEvent, LogPart
from .requests import LOG_LIMIT, LONG_POLL_SECS, events_path, logged_event
from .server_sent_events import Message, Parser

#: If an empty answer comes sooner than this, the supervisor did not wait, so the client waits.
PROMPT_SECS = 0.5
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.5


class PollBackoff:
    """Backoff after empty answers to long polls that came too early."""

    def __init__(self) -> None:
        self._next = SHORTEST_PAUSE

    def after(self, secs: float) -> float:
        """Return the pause after an empty answer that took `secs`."""
        if secs >= PROMPT_SECS:
            self._next = SHORTEST_PAUSE
            return 0.0
        pause, self._next = self._next, min(self._next * 2, LONGEST_PAUSE)
        return pause

    def reset(self) -> None:
        self._next = SHORTEST_PAUSE


class LogCursor:
    """Reads one output stream of one task.

    follow: read until the execution is over, not only the present output. The task that represents
    the run may change, but the cursor stays with the task of the first bytes.
    """

    def __init__(
        self,
        uid: str,
        jid: str,
        stream: Stream,
        *,
        attempt: int = 0,
        role: str | None = None,
        index: int = 0,
        offset: int = 0,
        tail: int = 0,
        follow: bool = False,
    ) -> None:
        self._uid, self._jid, self._stream, self._attempt, self._role, self._index = (
            uid,
            jid,
            stream,
            attempt,
            role,
            index,
        )
        self.offset, self._tail, self._follow = offset, tail, follow
        self._run_over = False
        self._empty = False
        self.done = False

    def request(self) -> JobLog:
        wait = LONG_POLL_SECS if self._follow and not self._run_over else 0.0
        return JobLog(
            uid=self._uid,
            compute_jid=self._jid,
            attempt=self._attempt,
            role=self._role,
            index=self._index,
            stream=self._stream,
            offset=self.offset,
            limit=LOG_LIMIT,
            tail=self._tail,
            wait_secs=wait,
        )

    def took(self, part: LogPart) -> None:
        self._empty = not part.data and part.next_offset <= part.offset
        if part.role is not None:
            self._attempt, self._role, self._index = part.attempt, part.role, part.index
        self.offset, self._tail = part.next_offset, 0
        self.done = part.end or (self._empty and (not self._follow or self._run_over))

    @property
    def idle(self) -> bool:
        """True if the last answer was empty and not final, so the caller should check the run."""
        return self._empty and not self.done

    def run_over(self) -> None:
        """Note that the run is over, so the next answer has the rest of the output."""
        self._run_over = True


class EventCursor:
    """Turns the chunks of successive connections into events, each once and in order."""

    def __init__(self, after: int) -> None:
        self.after = after
        self._parser = Parser()

    def connect(self, uid: str | None, jid: str | None) -> tuple[str, dict[str, str]]:
        """Return path and headers of the next connection. Drops an incomplete event of the previous
        one.
        """
        self._parser = Parser()
        headers = {"Last-Event-ID": str(self.after)} if self.after >= 0 else {}
        return events_path(self.after, uid, jid), headers

    def feed(self, chunk: bytes) -> list[LoggedEvent]:
        """Return the new events. Raises ClientError if this is no event stream."""
        out = [e for e in map(self._event, self._parser.feed(chunk)) if e is not None]
        if self._parser.last_id.isdecimal():
            self.after = max(self.after, int(self._parser.last_id))
        return out

    def _event(self, message: Message) -> LoggedEvent | None:
        event = logged_event(message)
        if event.position <= self.after:
            return None
        self.after = event.position
        return event
