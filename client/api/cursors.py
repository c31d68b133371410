"""Where a reader of a log or of the event stream stands, and what to ask for next. Pure: the
clients do the asking.
"""

from ...protocol.api.requests import JobLog
from ...protocol.wire.messages import Stream
from .replies import LoggedEvent, LogPart
from .requests import LOG_LIMIT, LONG_POLL_SECS, logged_event
from .server_sent_events import Message, Parser

#: An empty answer that came sooner than this was not waited for, so we wait ourselves.
PROMPT_SECS = 0.5
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.5


class PollBackoff:
    """How long to wait after an answer that said nothing new although it should have waited: longer
    each time in a row.
    """

    def __init__(self) -> None:
        self._next = SHORTEST_PAUSE

    def after(self, secs: float) -> float:
        """The pause after an empty answer that took `secs`."""
        if secs >= PROMPT_SECS:
            self._next = SHORTEST_PAUSE
            return 0.0
        pause, self._next = self._next, min(self._next * 2, LONGEST_PAUSE)
        return pause

    def reset(self) -> None:
        self._next = SHORTEST_PAUSE


class LogCursor:
    """Reads one stream of one task. follow: go on until the execution is over; otherwise to what is
    there now.

    Which task stands for a run, and which attempt is the latest, may change meanwhile: whose bytes
    came first is read on.
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
        """Nothing came, and nothing says that it is over: time to ask whether the run is."""
        return self._empty and not self.done

    def run_over(self) -> None:
        """The run is over; what can be read once more is the rest."""
        self._run_over = True


class EventCursor:
    """Turns the chunks of any number of connections, one after another, into each event once, in
    order.
    """

    def __init__(self, after: int) -> None:
        self.after = after
        self._parser = Parser()

    def connected(self) -> None:
        """A new connection begins: what was half received is forgotten."""
        self._parser = Parser()

    def headers(self) -> dict[str, str]:
        return {"Last-Event-ID": str(self.after)} if self.after >= 0 else {}

    def feed(self, chunk: bytes) -> list[LoggedEvent]:
        """Events that were not seen before. Raises ClientError when this is no stream of events."""
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
