"""Replaces numbers in an input deck of LAMMPS. Only numbers are inserted, so a value cannot become
a command.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jobscribe.apps.app import AppError, Value

Values = Mapping[str, Value]


class Edit(NamedTuple):
    """Replace word number `at` of the single command that begins with `words` by `value` of the
    fields.
    """

    words: str
    at: int
    value: Callable[[Values], float]


class Insert(NamedTuple):
    """Add commands before or after the single command that begins with `words`. `values` fill their
    `{}`.
    """

    words: str
    before: bool
    lines: tuple[str, ...]
    values: Callable[[Values], tuple[float, ...]] = lambda values: ()


def rewritten(deck: str, edits: Sequence[Edit], inserts: Sequence[Insert], values: Values) -> str:
    """Return the edited deck. Raises AppError if the deck differs from the one that the edits were
    written for.
    """
    lines = deck.splitlines()
    for edit in edits:
        row = _only(lines, edit.words)
        words = _words(lines[row])
        if edit.at >= len(words):
            raise AppError(
                f"this version of LAMMPS has a different deck: its command '{edit.words}' has no word number {edit.at}"
            )
        words[edit.at] = number(edit.value(values))
        lines[row] = " ".join(words)
    for insert in inserts:
        row = _only(lines, insert.words)
        texts = [number(v) for v in insert.values(values)]
        more = "\n".join(insert.lines).format(*texts).split("\n")
        at = row if insert.before else row + 1
        lines[at:at] = more
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """Format a number for LAMMPS. Raises AppError for NaN, infinity and other types."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise AppError(f"{value!r} is not a valid number for LAMMPS")
    return repr(value)


def _words(line: str) -> list[str]:
    return line.partition("#")[0].split()


def _only(lines: list[str], words: str) -> int:
    wanted = words.split()
    found = [n for n, line in enumerate(lines) if _words(line)[: len(wanted)] == wanted]
    if len(found) != 1:
        raise AppError(
            f"this version of LAMMPS has a different deck: it has the command '{words}' {len(found)} times instead of once"
        )
    return found[0]
