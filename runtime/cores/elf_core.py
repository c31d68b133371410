"""Facts in a core file: which process it was, its signal, its program, and whether it is complete.

Reads an ELF file that a job may have made itself: every number in it is bounded. Standard library
only.
"""

from __future__ import annotations

import itertools
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_CORE, _NOTE = 4, 4
_PRSTATUS, _PRPSINFO, _FILE = 1, 3, 0x46494C45
#: Limits: program headers, bytes of all notes, and notes. A process has a header for each mapping.
_MOST_HEADERS, _NOTE_BYTES, _MOST_NOTES = 65_535, 16 << 20, 20_000
_HEADER = struct.Struct("16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("IIQQQQQQ")
_NOTE_HEADER = struct.Struct("III")


class CoreFacts:
    """pid, signal: of the thread that dumped. program: path of the executable, or its short name.
    complete_bytes: size of the whole core; a smaller file was cut.
    """

    __slots__ = ("complete_bytes", "pid", "program", "signal")

    def __init__(self) -> None:
        self.pid: int | None = None
        self.signal: int | None = None
        self.program: str | None = None
        self.complete_bytes = 0


def read(fd: int) -> CoreFacts | None:
    """Return the facts of a 64-bit core file; None if it is none. Raises OSError."""
    raw = os.pread(fd, _HEADER.size, 0)
    if len(raw) < _HEADER.size or raw[:6] != b"\x7fELF\x02\x01":
        return None
    fields = _HEADER.unpack(raw)
    if fields[1] != _CORE:
        return None
    facts, offset, size, count = CoreFacts(), fields[5], fields[9], min(fields[10], _MOST_HEADERS)
    bytes_left, notes_left = _NOTE_BYTES, _MOST_NOTES
    if size != _PROGRAM.size:
        return facts
    table = os.pread(fd, size * count, offset) if offset < 1 << 62 else b""
    for at in range(0, len(table) - size + 1, size):
        kind, _, begin, _, _, length, _, _ = _PROGRAM.unpack_from(table, at)
        facts.complete_bytes = max(facts.complete_bytes, begin + length)
        if kind == _NOTE and begin < 1 << 62 and bytes_left > 0:
            notes = os.pread(fd, min(length, bytes_left), begin)
            bytes_left -= len(notes)
            notes_left -= _read_notes(notes, facts, notes_left)
    return facts


def _read_notes(data: bytes, facts: CoreFacts, most: int) -> int:
    """Read at most so many notes. Return their number."""
    count = 0
    for kind, content in itertools.islice(_notes(data), most):
        count += 1
        if kind == _PRSTATUS and facts.pid is None and len(content) >= 36:
            facts.signal = struct.unpack_from("h", content, 12)[0] or None
            facts.pid = struct.unpack_from("i", content, 32)[0]
        elif kind == _PRPSINFO and len(content) >= 56:
            # its process id is that of the whole process; that of PRSTATUS may be a thread's
            facts.pid = struct.unpack_from("i", content, 24)[0]
            facts.program = facts.program or _text(content[40:56])
        elif kind == _FILE and len(content) >= 16:
            facts.program = _first_file(content) or facts.program
    return count


def _notes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _NOTE_HEADER.size <= len(data):
        name, length, kind = _NOTE_HEADER.unpack_from(data, at)
        begin = at + _NOTE_HEADER.size + (name + 3) // 4 * 4
        if name > 64 or begin + length > len(data):
            return
        yield kind, data[begin : begin + length]
        at = begin + (length + 3) // 4 * 4


def _first_file(content: bytes) -> str | None:
    """Return the first mapped file: the executable has the lowest addresses."""
    count = struct.unpack_from("Q", content)[0]
    begin = 16 + 24 * min(count, len(content))
    return _text(content[begin : begin + 4096]) or None


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
