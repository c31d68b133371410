"""The positions that LAMMPS writes while it runs: where each frame begins and ends, so that one is read without the others.

The places are kept beside the dump, in a file of fixed records. Only the job command writes it, at its own pace (`extend`); readers
take what is there, and look for themselves at what the dump has grown since. A frame that is not whole yet is not there.
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
#: Lines of a frame before its atoms.
_HEAD = 9


class Span(NamedTuple):
    """Bytes `start` to `end` of the dump are the frame of this time step."""

    step: int
    start: int
    end: int


class Snapshot(NamedTuple):
    """One frame. rows: the words of each line of an atom; every `stride`-th of `atoms`. x, y: the box."""

    step: int
    atoms: int
    stride: int
    x: tuple[float, float]
    y: tuple[float, float]
    rows: list[list[bytes]]

    def column(self, name: str) -> list[float]:
        at = ATOM.index(name)
        return [float(row[at]) for row in self.rows]


def extend(folder: Path) -> list[Span]:
    """Write down the frames that have come since the last time. Returns the last two frames there are, at most."""
    fresh = list(_scan(folder, _end(folder)))
    if fresh:
        with (folder / INDEX).open("ab") as file:
            file.write(b"".join(_RECORD.pack(*span) for span in fresh))
    known = _size(folder)
    return [_record(folder, n) for n in range(max(0, known - 2), known)]


def count(folder: Path) -> int:
    return _size(folder) + sum(1 for _ in _scan(folder, _end(folder)))


def frame(folder: Path, index: int) -> Span | None:
    """Where frame number `index` is; None: not there (yet)."""
    known = _size(folder)
    if index < 0:
        return None
    if index < known:
        return _record(folder, index)
    return next((span for n, span in enumerate(_scan(folder, _end(folder)), known) if n == index), None)


def read(folder: Path, span: Span, most: int) -> Snapshot:
    """The frame, with every n-th atom alone if it has more than `most`."""
    with (folder / DUMP).open("rb") as file:
        file.seek(span.start)
        lines = file.read(span.end - span.start).split(b"\n")
    atoms = len(lines) - _HEAD - 1
    stride = max(1, -(-atoms // most))
    x, y = (tuple(float(w) for w in lines[n].split()[:2]) for n in (5, 6))
    return Snapshot(span.step, atoms, stride, (x[0], x[1]), (y[0], y[1]), [line.split() for line in lines[_HEAD:-1:stride]])


def _size(folder: Path) -> int:
    """How many frames are written down."""
    try:
        return (folder / INDEX).stat().st_size // _RECORD.size
    except FileNotFoundError:
        return 0


def _record(folder: Path, number: int) -> Span:
    with (folder / INDEX).open("rb") as file:
        file.seek(number * _RECORD.size)
        return Span(*_RECORD.unpack(file.read(_RECORD.size)))


def _end(folder: Path) -> int:
    """Up to where the dump is written down."""
    known = _size(folder)
    return _record(folder, known - 1).end if known else 0


def _scan(folder: Path, at: int) -> Iterator[Span]:
    """The whole frames from this byte on."""
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
    if not head[-1].endswith(b"\n"):
        return None
    wanted = b"ITEM: ATOMS " + " ".join(ATOM).encode()
    if head[0] != b"ITEM: TIMESTEP\n" or head[-1].strip() != wanted:
        raise AppError(f"{DUMP} is not what LAMMPS was told to write: no frame begins at byte {at}")
    end = _after_lines(file, at + sum(len(line) for line in head), int(head[3]))
    return None if end is None else Span(int(head[1]), at, end)


def _after_lines(file: BinaryIO, at: int, lines: int) -> int | None:
    """The byte after so many lines; None: the file ends before."""
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
