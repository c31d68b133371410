"""The exit table from its YAML files: the shipped rows, and a site's own rows (`exits.table`) that
precede or replace them (docs/exits.md). All problems are reported together, with their lines.

`diagnosis.exit_table` declares the fields and evaluates the table; here are the rules.
"""

import functools
import os
from collections.abc import Sequence
from typing import Annotated

import msgspec

from ...diagnosis import safe_patterns
from ...diagnosis.exit_table import Row, Table, When
from ...protocol.errors import Refusal
from ...schema.structs import Place
from . import site_file

SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "exit_table.yml")


class _TableFile(msgspec.Struct, frozen=True, kw_only=True):
    rows: Annotated[tuple[Row, ...], msgspec.Meta(min_length=1, max_length=500)]


def load(also: str | None) -> Table:
    """Return the exit table. also: the site's own file. Raises Refusal with all problems."""
    return _shipped() if also is None else _loaded(also)


@functools.cache
def _shipped() -> Table:
    return _loaded(SHIPPED)


def _loaded(path: str) -> Table:
    table, found = read(path)
    if table is None:
        raise site_file.combined(path, found)
    return table


def read(path: str) -> tuple[Table | None, list[Refusal]]:
    """Return the exit table with the rows of this file, or all problems of the file."""
    shipped = () if path == SHIPPED else load(None).rows

    def check(file: _TableFile, place: Place) -> _TableFile:
        places = list(place.each("rows"))
        for row, at in zip(file.rows, places, strict=False):
            _check_row(row, at)
        _check_unique(file.rows, places, shipped)
        rows = _combine(file.rows, shipped)
        _check_rules(rows, place)
        return _TableFile(rows=rows)

    file, found = site_file.read(path, "exits.table", _TableFile, check)
    return (None if file is None else Table(rows=file.rows)), found


def _combine(own: tuple[Row, ...], shipped: tuple[Row, ...]) -> tuple[Row, ...]:
    """Combine tables: a row with the code of a shipped row replaces it, all other rows precede the
    shipped rows.
    """
    instead, codes = {row.code: row for row in own}, {row.code for row in shipped}
    return tuple(row for row in own if row.code not in codes) + tuple(
        instead.get(row.code, row) for row in shipped
    )


def _check_row(row: Row, at: Place) -> None:
    hint = at.within("when").given("log")
    if hint and at.given("behavior"):
        at.error("behavior", "a row with when.log is a hint and has no behavior", "remove this key")
    if not hint and isinstance(at.data, dict) and not at.given("behavior"):
        right = "the effect of a retry: transient, conflict, permanent or unknown"
        at.error("behavior", "it is missing", right)
    if isinstance(at.data, dict) and not at.given("when"):
        right = "an object with conditions; {} matches every exit without another row"
        at.error("when", "it is missing", right)
    _check_conditions(row.when, at.within("when"))


def _check_conditions(when: When, at: Place) -> None:
    given = [name for name in When.__struct_fields__ if at.given(name)]
    if at.given("memory") and at.valid("memory") and not when.memory:
        at.error("memory", "it is false", "true, or no such key")
    if when.stop and len(given) > 1:
        at.error("stop", "it identifies stopped tasks, whatever their exit", "no other condition")
    if when.signals and when.codes:
        at.error("codes", "an exit has either a signal or a code", "`signals` or `codes`")


def _check_unique(rows: Sequence[Row], places: Sequence[Place], shipped: Sequence[Row]) -> None:
    own = {row.code for row in rows}
    codes: dict[object, str] = {}
    phrases: dict[object, str] = {
        row.phrase: f"the shipped row {row.code}" for row in shipped if row.code not in own
    }
    for row, at in zip(rows, places, strict=False):
        for key, value, seen in (("code", row.code, codes), ("phrase", row.phrase, phrases)):
            if value and seen.setdefault(value, at.path) != at.path:
                at.error(key, f"it is also that of {seen[value]}", f"each row has its own {key}")


def _check_rules(rows: Sequence[Row], place: Place) -> None:
    """Check that matching a line with the rules takes limited time."""
    for at in place.each("rows"):
        for rule in at.within("when").each("log"):
            if rule.valid("") and (problem := _rule_problem(rule.data)):
                rule.error("", problem, "a regular expression that docs/exits.md allows")
    if not place.valid("rows"):
        return
    total = sum(safe_patterns.rule_size(rule) for row in rows for rule in row.when.log)
    if total > safe_patterns.TABLE_SIZE:
        place.error(
            "rows",
            f"the rules of all rows together are too large: their size is {total}",
            f"at most {safe_patterns.TABLE_SIZE}: smaller upper bounds of repetitions",
        )


def _rule_problem(rule: object) -> str | None:
    try:
        safe_patterns.rule_size(str(rule))
    except ValueError as e:
        return f"it {e}"
    return None
