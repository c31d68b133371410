"""Reads a site's own file into the struct that the program uses: all problems together, each with
its line.

The modules of the single files have the struct's type and the rules.
"""

import os
import stat
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from ...protocol.errors import Refusal
from ...schema.fields import Findings, InvalidDocument, Problem
from ...schema.structs import Place, convert
from ...schema.text import reader

MAX_PROBLEMS = 50

S = TypeVar("S", bound=msgspec.Struct)


def read(
    path: str, setting: str, type_: type[S], check: Callable[[S, Place], S]
) -> tuple[S | None, list[Refusal]]:
    """Return the content of the file, or all problems in the order of the file. setting: names the
    file. check: completes the content, and adds errors of meaning; values with an error are empty
    or defaults.
    """
    try:
        tree = reader.read(path, lenient=True)
    except InvalidDocument as e:
        return None, [_refusal(p, f"{setting}: " if p.line is None else "") for p in e.problems]
    findings = Findings()
    value = convert(type_, tree.data, findings, folder=os.path.dirname(os.path.abspath(path)))
    value = check(value, Place(tree.data, "", findings))
    found = sorted([*tree.problems, *tree.located(findings.problems)], key=lambda p: p.line or 0)
    return (None, [_refusal(p) for p in found]) if found else (value, [])


def check_owner(path: str, place: Place, harm: str) -> None:
    """Check that only this user or root can write the file. harm: what others could do with it."""
    found = os.stat(path)
    if found.st_uid not in (0, os.geteuid()):
        place.error(
            "",
            f"the file belongs to another user (uid {found.st_uid}), who could {harm}",
            "a file of this user or of root",
            unsafe=True,
        )
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        place.error(
            "",
            f"the file can be changed by others (mode {stat.S_IMODE(found.st_mode):04o})",
            f"run: chmod go-w {path}",
            unsafe=True,
        )


def combined(what: str, found: Sequence[Refusal]) -> Refusal:
    """Combine all problems of a file, one a line."""
    if len(found) == 1:
        return found[0]
    lines = [f"{what} has {len(found)} problems:", *(p.sentence for p in found[:MAX_PROBLEMS])]
    if len(found) > MAX_PROBLEMS:
        lines.append(f"and {len(found) - MAX_PROBLEMS} more")
    code = "unsafe" if all(p.code == "unsafe" for p in found) else "badConfig"
    return Refusal(code, "\n  ".join(lines))


def _refusal(problem: Problem, before: str = "") -> Refusal:
    return Refusal("unsafe" if problem.unsafe else "badConfig", before + problem.sentence())
