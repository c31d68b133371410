"""Reads the log of LAMMPS: its rows of thermodynamic data, and its error message."""

import re
from collections.abc import Iterator
from pathlib import Path

from .decks import COLUMNS, LOG

_TAIL = 8192
_ERROR = re.compile(r"^ERROR(?: on proc \d+)?: (.*?)(?: \(\S+:\d+\))?$", re.MULTILINE)
_COMMAND = re.compile(r"^Last command: (.*)$", re.MULTILINE)


def rows(folder: Path, until: float = float("inf")) -> Iterator[tuple[float, ...]]:
    """Yield the rows up to and including this step, in order. An incomplete row is ignored."""
    try:
        file = (folder / LOG).open(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            row = _row(line)
            if row is None:
                continue
            if row[0] > until:
                return
            yield row


def last_step(folder: Path) -> int | None:
    """Return the step of the last row. Reads only the end of the log, because it is called twice a
    second.
    """
    steps = [
        int(row[0])
        for line in _tail(folder).splitlines(keepends=True)[1:]
        if (row := _row(line)) is not None
    ]
    if steps:
        return steps[-1]
    # LAMMPS' final output is shorter than the tail. So either nothing is computed yet, or many
    # warnings follow the last row.
    return max((int(row[0]) for row in rows(folder)), default=None)


def error(folder: Path) -> str | None:
    """Return LAMMPS' last error message and the command that caused it."""
    tail = _tail(folder)
    errors: list[str] = _ERROR.findall(tail)
    command: list[str] = _COMMAND.findall(tail)
    if not errors:
        return None
    return errors[-1] + (f" (at the command '{command[-1]}')" if command else "")


def _row(line: str) -> tuple[float, ...] | None:
    words = line.split()
    if not line.endswith("\n") or len(words) != len(COLUMNS) or not words[0].isdecimal():
        return None
    try:
        return tuple(float(w) for w in words)
    except ValueError:
        return None


def _tail(folder: Path) -> str:
    try:
        with (folder / LOG).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            return "\n" * (size <= _TAIL) + file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
