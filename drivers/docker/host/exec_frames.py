"""The frames in which the engine sends the output of an exec without a terminal. Pure."""

#: One byte of stream, three of padding, four of length.
_HEADER = 8
_STDERR = 2


class OutputFrames:
    """Separates stdout and stderr. Feed it what arrives, in pieces of any size."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._stream = self._left = 0

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the bytes of stdout and those of stderr."""
        out, errors = bytearray(), bytearray()
        at = 0
        while at < len(data):
            if not self._left:
                part = data[at : at + _HEADER - len(self._head)]
                self._head += part
                at += len(part)
                if len(self._head) == _HEADER:
                    self._stream = self._head[0]
                    self._left = int.from_bytes(self._head[4:], "big")
                    self._head.clear()
                continue
            part = data[at : at + self._left]
            (errors if self._stream == _STDERR else out).extend(part)
            self._left -= len(part)
            at += len(part)
        return bytes(out), bytes(errors)
