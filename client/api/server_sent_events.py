"""Server-sent events, as the HTML standard has them (section 9.2.6): bytes in, events out. No I/O.

A block may be cut anywhere, also inside a character or between the two halves of a line end; what
is not closed by an empty line when the connection ends is dropped, so an event is never half.
"""

import msgspec

#: One event holds one event of the log; whoever sends more than this without a line end is no
#: supervisor.
MAX_PENDING = 16 * 1024 * 1024


class Message(msgspec.Struct, frozen=True):
    id: str
    event: str
    data: str


class Parser:
    """Feed it what arrives. `last_id` is what to send as `Last-Event-ID`; a block of nothing but an
    id moves it, too.

    It moves at the end of a block, not at its `id` line: else a block cut between its id and its
    data would never be sent again.
    """

    def __init__(self) -> None:
        self.last_id = ""
        self._id = ""
        self._buffer = b""
        self._data: list[str] = []
        self._event = ""

    def feed(self, chunk: bytes) -> list[Message]:
        """The events that this chunk completes. Raises ValueError when a line is longer than
        MAX_PENDING.
        """
        self._buffer += chunk
        *lines, self._buffer = self._split()
        if len(self._buffer) > MAX_PENDING:
            raise ValueError(f"a line of more than {MAX_PENDING} bytes in a stream of events")
        out = []
        for line in lines:
            message = self._line(line.decode("utf-8", "replace"))
            if message is not None:
                out.append(message)
        return out

    def _split(self) -> list[bytes]:
        """Lines, and last what is not a whole one. A CR at the very end waits, as an LF may follow
        it.
        """
        held = self._buffer.endswith(b"\r")
        text = (
            (self._buffer[:-1] if held else self._buffer)
            .replace(b"\r\n", b"\n")
            .replace(b"\r", b"\n")
        )
        lines = text.split(b"\n")
        if held:
            lines[-1] += b"\r"
        return lines

    def _line(self, line: str) -> Message | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._event = value
        elif field == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> Message | None:
        data, event, self.last_id = self._data, self._event, self._id
        self._data, self._event = [], ""
        return (
            Message(id=self.last_id, event=event or "message", data="\n".join(data))
            if data
            else None
        )
