"""Parser of server-sent events (HTML standard, section 9.2.6): bytes in, events out. No I/O.

Chunks may end anywhere, even within a character or a line end. An event without its closing empty
line is dropped when the connection ends.
"""

import msgspec

#: Longest line in bytes. A supervisor never sends a longer one.
MAX_PENDING = 16 * 1024 * 1024


class Message(msgspec.Struct, frozen=True):
    id: str
    event: str
    data: str


class Parser:
    """Parses chunks. last_id: the value for `Last-Event-ID`.

    It changes at the end of a block, even of one with an id only. If it changed at the `id` line, a
    block that was cut before its data would never be sent again.
    """

    def __init__(self) -> None:
        self.last_id = ""
        self._id = ""
        self._buffer = b""
        self._data: list[str] = []
        self._event = ""

    def feed(self, chunk: bytes) -> list[Message]:
        """Return the events that this chunk completes.

        Raises ValueError for a line longer than MAX_PENDING.
        """
        self._buffer += chunk
        *lines, self._buffer = self._split()
        if len(self._buffer) > MAX_PENDING:
            raise ValueError(f"the event stream has a line of more than {MAX_PENDING} bytes")
        out = []
        for line in lines:
            message = self._line(line.decode("utf-8", "replace"))
            if message is not None:
                out.append(message)
        return out

    def _split(self) -> list[bytes]:
        """Return the lines; the last one is incomplete. A final CR stays, because an LF may follow."""
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
