"""The codec: messages <-> binary frames (msgpack). No sockets and no retries.

A frame is a map `{v, seq, m: [message...]}`, or a chunk of a frame that would exceed the size
limit: `{v, seq, id, i, of, d}`. `seq` counts the frames of one direction of one connection from 1;
the decoder counts gaps, and its user reacts to them. The size is checked before anything is built,
and depth, number of keys and duplicate keys before anything is used. Every defect of a frame is a
`FrameError` with a code of protocol.errors; no other exception leaves this module. The encoder
refuses whatever the decoder refuses: a frame that ends the connection would be sent again after
each reconnect. `v` is the protocol version of the connection (see `versions`).
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack
import msgspec

from .messages import UNIONS, Direction
from .versions import LATER_FIELDS, SPOKEN, TOLERANT, omit_later_fields, remove_field

MAX_FRAME = 1024 * 1024
#: largest message in bytes, after its chunks are joined
MAX_MESSAGE = 16 * 1024 * 1024
MAX_DEPTH = 16
#: keys of one frame; a full snapshot page with the largest reports has 9,000
MAX_KEYS = 10_000
#: elements of one list
MAX_ITEMS = 100_000
#: largest gap between two sequence numbers of one connection
MAX_LOST = 1_000_000
#: chunks of one message
MAX_CHUNKS = 65_536
MAX_BATCH = 256
_CHUNK_ROOM = 256
_ENVELOPE_KEYS = 3
#: Unknown fields of one message that are ignored. One more, and the message is refused: each costs
#: a conversion of the message.
MAX_UNKNOWN = 64
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$(.*)`)?", re.DOTALL)
_SEGMENT = re.compile(r"\.([A-Za-z0-9_]+)|\[[0-9]+\]")
#: The union of each direction as a field: msgspec keeps what it knows of a class, and derives a bare
#: union again for each conversion (0.01 ms).
_KEPT: dict[str, Any] = {d: msgspec.defstruct(d, [("message", u)]) for d, u in UNIONS.items()}


class FrameError(Exception):
    """A refused frame. `close`: the peer may be out of step, so end the connection.

    messages: the valid messages of the frame if only single ones were refused.
    """

    def __init__(
        self, code: str, sentence: str, *, close: bool, messages: Sequence[Any] = ()
    ) -> None:
        super().__init__(f"{code}: {sentence}")
        self.code = code
        self.sentence = sentence
        self.close = close
        self.messages = messages


class Encoder:
    """Encodes messages into frames for one direction of one connection. protocol: its version."""

    def __init__(self, max_frame: int = MAX_FRAME, protocol: int = SPOKEN.newest) -> None:
        self._max_frame, self._protocol = max_frame, protocol
        self._seq = 0
        self._next_chunked = 0

    def frames(self, messages: Sequence[Any]) -> Iterator[bytes]:
        """Yield frames that carry `messages` in order.

        Raises FrameError for a message that the peer would refuse, after the frames of all messages
        before it.
        """
        batch: list[bytes] = []
        size, keys = 0, _ENVELOPE_KEYS
        for message in messages:
            try:
                body, own_keys = _body(message, self._protocol)
            except FrameError:
                yield from self._close(batch)
                raise
            if (
                len(batch) >= MAX_BATCH
                or size + len(body) > self._max_frame - _CHUNK_ROOM
                or keys + own_keys > MAX_KEYS
            ):
                yield from self._close(batch)
                batch, size, keys = [], 0, _ENVELOPE_KEYS
            batch.append(body)
            size += len(body)
            keys += own_keys
        yield from self._close(batch)

    def _close(self, batch: list[bytes]) -> Iterator[bytes]:
        if not batch:
            return
        # Join an array header and the packed messages, so that each message is packed only once.
        body = _array_header(len(batch)) + b"".join(batch)
        if len(body) <= self._max_frame - _CHUNK_ROOM:
            self._seq += 1
            # a map of three: its header, two pairs without theirs, the third key
            yield b"\x83" + _pack({"v": self._protocol, "seq": self._seq})[1:] + b"\xa1m" + body
            return
        self._next_chunked += 1
        room = self._max_frame - _CHUNK_ROOM
        parts = [body[i : i + room] for i in range(0, len(body), room)]
        for i, part in enumerate(parts):
            self._seq += 1
            yield _pack(
                {
                    "v": self._protocol,
                    "seq": self._seq,
                    "id": self._next_chunked,
                    "i": i,
                    "of": len(parts),
                    "d": part,
                }
            )


class Decoder:
    """Decodes frames into messages for one direction of one connection. protocol: its version.

    gaps: lost frames. ignored: unknown fields.
    """

    def __init__(
        self, direction: Direction, max_frame: int = MAX_FRAME, protocol: int = SPOKEN.newest
    ) -> None:
        self._direction = direction
        self._max_frame, self._protocol = max_frame, protocol
        self._seq = 0
        self._chunks: list[bytes] = []
        self._chunks_size = 0
        #: (id, of) of the message whose chunks are being joined
        self._chunked: tuple[int, int] | None = None
        self.gaps = self.ignored = 0

    def messages(self, frame: bytes) -> list[Any]:
        """Return the messages that this frame completes. Raises FrameError. A gap in `seq` only
        increments `gaps`.
        """
        if not isinstance(frame, bytes | bytearray | memoryview):
            raise FrameError("malformed", "the frame is text; this protocol is binary", close=True)
        if len(frame) > self._max_frame:
            raise FrameError(
                "tooLarge",
                f"a frame of {len(frame)} bytes is over the limit of {self._max_frame}",
                close=True,
            )
        outer = _unpack(frame)
        if not isinstance(outer, dict):
            raise FrameError("malformed", "the frame is not a map", close=True)
        if type(outer.get("v")) is not int or outer["v"] != self._protocol:
            raise FrameError(
                "malformed",
                f"protocol version {_brief(outer.get('v'))}; this connection uses {self._protocol}",
                close=True,
            )
        if not self._next(outer.get("seq")):
            return []
        if outer.keys() == {"v", "seq", "m"}:
            return self._convert(outer["m"])
        if outer.keys() == {"v", "seq", "id", "i", "of", "d"}:
            body = self._chunk(outer)
            return [] if body is None else self._convert(_unpack(body))
        raise FrameError(
            "malformed", "a frame needs the keys v, seq, m or v, seq, id, i, of, d", close=True
        )

    def _next(self, seq: Any) -> bool:
        """Return whether the frame is newer than all earlier ones. Late and repeated frames are
        dropped: their content may be outdated, and the gap was counted.
        """
        if type(seq) is not int or seq < 1:
            raise FrameError("malformed", "seq is not a positive integer", close=True)
        if seq > self._seq + MAX_LOST:  # accepting it would drop all later frames
            raise FrameError("malformed", f"more than {MAX_LOST} frames were lost", close=True)
        if seq <= self._seq:
            return False
        if seq != self._seq + 1:
            self.gaps += 1
            self._forget_chunks()
        self._seq = seq
        return True

    def _chunk(self, outer: dict[str, Any]) -> bytes | None:
        number, index, of, data = outer["id"], outer["i"], outer["of"], outer["d"]
        if not (
            type(number) is int
            and type(index) is int
            and type(of) is int
            and isinstance(data, bytes)
            and 0 <= index < of
        ):
            raise FrameError(
                "malformed", "a chunk needs integers id, i < of, and bytes d", close=True
            )
        if index == 0:
            self._forget_chunks()
            self._chunked = number, of
        if (number, of) != self._chunked or index != len(self._chunks):
            # the first chunks were lost; the next snapshot contains their content
            self._forget_chunks()
            return None
        self._chunks.append(data)
        self._chunks_size += len(data)
        if self._chunks_size > MAX_MESSAGE + self._max_frame or of > MAX_CHUNKS:
            self._forget_chunks()
            raise FrameError(
                "tooLarge",
                f"the message has more than {MAX_CHUNKS} chunks or {MAX_MESSAGE} bytes",
                close=True,
            )
        if index + 1 < of:
            return None
        body = b"".join(self._chunks)
        self._forget_chunks()
        return body

    def _forget_chunks(self) -> None:
        self._chunks, self._chunks_size, self._chunked = [], 0, None

    def _convert(self, items: Any) -> list[Any]:
        if not isinstance(items, list) or len(items) > MAX_BATCH:
            raise FrameError(
                "malformed", f"m must be a list of at most {MAX_BATCH} messages", close=True
            )
        out: list[Any] = []
        refused: FrameError | None = None
        for item in items:
            op = item.get("op") if isinstance(item, dict) else None
            try:
                out.append(self._message(item))
            except (msgspec.ValidationError, ValueError) as e:
                unknown = isinstance(op, str) and "Invalid value" in str(e) and "`$.op`" in str(e)
                if not unknown:
                    raise FrameError(
                        "malformed", f"op={_brief(op)}: {str(e)[:200]}", close=True
                    ) from None
                refused = FrameError(
                    "unknownOp", f"op={_brief(op)}: {str(e)[:200]}", close=False, messages=out
                )
        if refused:
            raise refused
        return out

    def _message(self, item: Any) -> Any:
        """Convert one message, without the fields that this version does not know. Raises
        msgspec.ValidationError, ValueError.
        """
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert({"message": item}, _KEPT[self._direction]).message
        union = UNIONS[self._direction]  # its errors name places within the message
        for _ in range(MAX_UNKNOWN):
            try:
                return msgspec.convert(item, union)
            except msgspec.ValidationError as e:
                path = _unknown_field(str(e)) if self._protocol >= TOLERANT else None
                if path is None or not remove_field(item, path):
                    raise
                self.ignored += 1
        return msgspec.convert(item, union)


def pack_one(message: Any) -> bytes:
    """Encode one message as msgpack without a frame (for golden files and fuzzing)."""
    return _pack(msgspec.to_builtins(message, builtin_types=(bytes,)))


def _unknown_field(sentence: str) -> list[str] | None:
    """Return the path of the unknown field in a sentence of msgspec; None for another error."""
    match = _UNKNOWN_FIELD.fullmatch(sentence)
    if match is None:
        return None
    parents = match[2] or ""
    if _SEGMENT.sub("", parents):
        return None
    return [*filter(None, _SEGMENT.findall(parents)), match[1]]


def _body(message: Any, protocol: int) -> tuple[bytes, int]:
    """Return the packed message and its number of keys. Raises FrameError if the peer would refuse
    it.
    """
    plain = msgspec.to_builtins(message, builtin_types=(bytes,))
    if protocol < SPOKEN.newest:
        omit_later_fields(plain, protocol, LATER_FIELDS)
    body, keys = _pack(plain), _keys(plain)
    if len(body) > MAX_MESSAGE:
        raise FrameError(
            "tooLarge",
            f"a message of {len(body)} bytes is over the limit of {MAX_MESSAGE}",
            close=False,
        )
    if keys > MAX_KEYS - _ENVELOPE_KEYS:
        raise FrameError(
            "tooLarge", f"a message of {keys} keys is over the limit of {MAX_KEYS}", close=False
        )
    return body, keys


def _keys(plain: Any) -> int:
    """Return the number of keys in all nested maps. Raises FrameError for a list over the limit."""
    if isinstance(plain, dict):
        return len(plain) + sum(
            _keys(v) for v in plain.values() if isinstance(v, dict | list | tuple)
        )
    if len(plain) > MAX_ITEMS:
        raise FrameError(
            "tooLarge",
            f"a list of {len(plain)} elements is over the limit of {MAX_ITEMS}",
            close=False,
        )
    return sum(_keys(v) for v in plain if isinstance(v, dict | list | tuple))


def _pack(value: Any) -> bytes:
    try:
        packed = msgpack.packb(value)
    except (ValueError, TypeError, OverflowError) as e:
        raise FrameError(
            "malformed", f"the message cannot be encoded: {str(e)[:200]}", close=False
        ) from None
    assert isinstance(packed, bytes)
    return packed


def _array_header(n: int) -> bytes:
    return bytes(msgpack.Packer(autoreset=True).pack_array_header(n))


class _Pairs:
    """Builds maps. Refuses duplicate and non-string keys, and counts keys against MAX_KEYS."""

    def __init__(self) -> None:
        self.keys = 0

    def __call__(self, pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        self.keys += len(pairs)
        if self.keys > MAX_KEYS:
            raise FrameError("tooLarge", f"more than {MAX_KEYS} keys", close=True)
        out = dict(pairs)
        if len(out) != len(pairs):
            raise FrameError("malformed", "a key occurs twice", close=True)
        return out


def _no_extension(code: int, data: bytes) -> Any:
    raise FrameError("malformed", f"extension type {code}", close=True)


def _unpack(frame: bytes) -> Any:
    try:
        # The first pass allocates nothing. Otherwise a header that announces more elements than
        # follow would allocate memory for all of them.
        msgspec.msgpack.decode(frame, type=msgspec.Raw)
        value = msgpack.unpackb(
            frame,
            object_pairs_hook=_Pairs(),
            ext_hook=_no_extension,
            strict_map_key=True,
            raw=False,
            max_str_len=MAX_MESSAGE,
            max_bin_len=MAX_MESSAGE,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_KEYS,
            max_ext_len=0,
        )
    except FrameError:
        raise
    except (
        ValueError,
        TypeError,
        msgpack.exceptions.UnpackException,
        msgspec.MsgspecError,
        RecursionError,
    ) as e:
        raise FrameError("malformed", f"not msgpack: {type(e).__name__}", close=True) from None
    if not _within_depth(value, MAX_DEPTH):
        raise FrameError("tooDeep", f"nested deeper than {MAX_DEPTH}", close=True)
    return value


def _within_depth(value: Any, depth: int) -> bool:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return True
    if depth <= 0:
        return False
    for each in value:  # noqa: SIM110 - `all` takes twice as long for a small message
        if isinstance(each, dict | list) and not _within_depth(each, depth - 1):
            return False
    return True


def _brief(value: Any) -> str:
    return ascii(value)[:40]
