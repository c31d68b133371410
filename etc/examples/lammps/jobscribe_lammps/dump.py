"""The positions that LAMMPS writes during the run, with an index of frames, so that one frame can
be read without the others.

The index is a file of fixed records beside the dump. Only the job command writes it (`extend`).
Readers use it, and scan only the part of the dump that is not indexed yet. An incomplete frame does
not count.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from jobscribe.apps.app import AppError

from .decks import ATOM, DUMP

INDEX = "atoms.index"
_RECORD = struct.Struct("<QQQ")
_BLOCK = 1 << 18
#: Number of header lines of a frame.
_HEAD = 9


class Span(NamedTuple):
    """The frame of this time step is at bytes `start` to `end` of the dump."""

    step: int
    start: int
    end: int


class Snapshot(NamedTuple):
    """One frame. x, y: the box. words: the values of all atoms, one atom after the other. One of
    every `stride` atoms is shown.
    """

    step: int
    atoms: int
    stride: int
    x: tuple[float, float]
    y: tuple[float, float]
    words: list[bytes]

    def column(self, name: str) -> list[float]:
        return [float(w) for w in self.words[ATOM.index(name) :: len(ATOM) * self.stride]]


def extend(folder: Path) -> int:
    """Add the new frames to the index. Return the number of indexed frames."""
    fresh = b"".join(_RECORD.pack(*span) for span in _scan(folder, _end(folder)))
    if fresh:
        with (folder / INDEX).open("ab") as file:
            file.write(fresh)
    return _size(folder)


def count(folder: Path) -> int:
    return _size(folder) + sum(1 for _ in _scan(folder, _end(folder)))


def frame(folder: Path, index: int) -> Span | None:
    """Return the position of frame number `index`, or None if it does not exist (yet)."""
    known = _size(folder)
    if index < 0:
        return None
    if index < known:
        return _record(folder, index)
    return next(
        (span for n, span in enumerate(_scan(folder, _end(folder)), known) if n == index), None
    )


def read(folder: Path, span: Span, most: int) -> Snapshot:
    """Read the frame, or every n-th atom if it has more than `most`. The atoms are the same in
    every frame, because they are sorted by id.
    """
    with (folder / DUMP).open("rb") as file:
        file.seek(span.start)
        lines = file.read(span.end - span.start).split(b"\n", _HEAD)
    atoms, words = int(lines[3]), lines[_HEAD].split()
    if len(words) != atoms * len(ATOM):
        raise AppError(f"the frame of step {span.step} in {DUMP} is damaged")
    return Snapshot(
        span.step, atoms, max(1, -(-atoms // most)), _bounds(lines[5]), _bounds(lines[6]), words
    )


def box(folder: Path) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the bounds in x and y of the first frame."""
    with (folder / DUMP).open("rb") as file:
        lines = [file.readline() for _ in range(_HEAD)]
    return _bounds(lines[5]), _bounds(lines[6])


def _bounds(line: bytes) -> tuple[float, float]:
    low, high = line.split()
    return float(low), float(high)


def _size(folder: Path) -> int:
    """Return the number of indexed frames."""
    try:
        return (folder / INDEX).stat().st_size // _RECORD.size
    except FileNotFoundError:
        return 0


def _record(folder: Path, number: int) -> Span:
    with (folder / INDEX).open("rb") as file:
        file.seek(number * _RECORD.size)
        return Span(*_RECORD.unpack(file.read(_RECORD.size)))


def _end(folder: Path) -> int:
    """Return the end of the indexed part of the dump, in bytes."""
    known = _size(folder)
    return _record(folder, known - 1).end if known else 0


def _scan(folder: Path, at: int) -> Iterator[Span]:
    """Yield the complete frames from this byte on."""
    try:
        file = (folder / DUMP).open("rb")
    except FileNotFoundError:
        return
    with file:
        while (span := _next(file, at)) is not None:
            yield span
            at = span.end


def _next(file: BinaryIO, at: int) -> Span | None:
    file.seek(at)
    head = [file.readline() for _ in range(_HEAD)]
    # LAMMPS is writing the header, perhaps between two of these reads.
    if not all(line.endswith(b"\n") for line in head):
        return None
    wanted = b"ITEM: ATOMS " + " ".join(ATOM).encode()
    if head[0] != b"ITEM: TIMESTEP\n" or head[-1].strip() != wanted:
        raise AppError(f"{DUMP} does not have the expected format: no frame begins at byte {at}")
    end = _after_lines(file, at + sum(len(line) for line in head), int(head[3]))
    return None if end is None else Span(int(head[1]), at, end)


def _after_lines(file: BinaryIO, at: int, lines: int) -> int | None:
    """Return the position after this number of lines, or None if the file ends before."""
    file.seek(at, os.SEEK_SET)
    while lines:
        block = file.read(_BLOCK)
        if not block:
            return None
        here = block.count(b"\n")
        if here < lines:
            lines, at = lines - here, at + len(block)
            continue
        place = -1
        for _ in range(lines):
            place = block.index(b"\n", place + 1)
        return at + place + 1
    return at
