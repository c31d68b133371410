"""An input deck of LAMMPS with other numbers in it. What is put in is a number and nothing else, so
it cannot become a command.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jobscribe.apps.app import AppError, Value

Values = Mapping[str, Value]


class Edit(NamedTuple):
    """Word number `at` of the one command that begins with `words` becomes `value` of the fields."""

    words: str
    at: int
    value: Callable[[Values], float]


class Insert(NamedTuple):
    """More commands, before or after the one command that begins with `words`. Their `{}` are
    filled with `values`.
    """

    words: str
    before: bool
    lines: tuple[str, ...]
    values: Callable[[Values], tuple[float, ...]] = lambda values: ()


def rewritten(deck: str, edits: Sequence[Edit], inserts: Sequence[Insert], values: Values) -> str:
    """Raises AppError where the deck is not the one that the edits were written for; nothing is
    edited by guess.
    """
    lines = deck.splitlines()
    for edit in edits:
        row = _only(lines, edit.words)
        words = _words(lines[row])
        if edit.at >= len(words):
            raise AppError(
                f"this LAMMPS has another deck: its command '{edit.words}' has no word number {edit.at}"
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
    """As LAMMPS reads it."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise AppError(f"{value!r} is not a number that LAMMPS can be given")
    return repr(value)


def _words(line: str) -> list[str]:
    return line.partition("#")[0].split()


def _only(lines: list[str], words: str) -> int:
    wanted = words.split()
    found = [n for n, line in enumerate(lines) if _words(line)[: len(wanted)] == wanted]
    if len(found) != 1:
        raise AppError(
            f"this LAMMPS has another deck: the command '{words}' stands in it {len(found)} times, and not once"
        )
    return found[0]
