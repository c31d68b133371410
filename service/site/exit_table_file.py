"""The exit table from its YAML files: the shipped rows, and a site's own rows that precede or
replace them (docs/exits.md).

All mistakes of a file are reported together, each with row and field. The table is data;
`diagnosis` evaluates it.
"""

import difflib
import os
import signal
from collections.abc import Callable, Iterable
from typing import Any, get_args

from ...diagnosis import safe_patterns
from ...diagnosis.causes import CAUSES
from ...diagnosis.exit_table import Behavior, Cause, Row, Table, When
from ...protocol.errors import Refusal
from ...protocol.jobs.exit_info import SCHEDULER_END_STATES, Source
from ...schema.text.yaml_subset import MAX_BYTES, LocatedMapping, YamlError, parse

SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "exit_table.yml")
FIRST_CODE, LAST_CODE = 1000, 99_999
MAX_ROWS, MAX_LIST, MAX_PROBLEMS = 500, 300, 50

_FIELDS = ("code", "phrase", "type", "behavior", "when", "reason", "solutions")
_CONDITIONS = (
    "stop",
    "source",
    "fault",
    "memory",
    "slurm",
    "cause",
    "perhaps",
    "signals",
    "codes",
    "log",
)
#: (place, problem) of all mistakes.
Problems = list[tuple[str, str]]


def load(also: str | None) -> Table:
    """Return the exit table. also: the site's own file. Raises Refusal("badConfig") with all
    mistakes.
    """
    shipped = _rows(SHIPPED)
    return Table(rows=shipped if also is None else _combine(_rows(also), shipped, also))


def _combine(own: tuple[Row, ...], shipped: tuple[Row, ...], path: str) -> tuple[Row, ...]:
    """Combine tables: a row with the code of a shipped row replaces it, all other rows precede the
    shipped rows.
    """
    instead, codes = {row.code: row for row in own}, {row.code for row in shipped}
    rows = tuple(row for row in own if row.code not in codes) + tuple(
        instead.get(row.code, row) for row in shipped
    )
    problems: Problems = []
    taken = {row.phrase: row.code for row in shipped if row.code not in instead}
    for n, row in enumerate(own, 1):
        if row.phrase in taken:
            problems.append(
                (
                    f"row {n}, phrase",
                    f"must not be that of the shipped row {taken[row.phrase]}: {row.phrase!r}",
                )
            )
    _steps(rows, problems)
    _refuse(path, problems)
    return rows


def _rows(path: str) -> tuple[Row, ...]:
    try:
        with open(path, "rb") as f:
            content = f.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise YamlError(f"it has more than {MAX_BYTES} bytes")
        data = parse(content.decode("utf-8"))
    except (OSError, UnicodeDecodeError, YamlError) as e:
        reason = (e.strerror or "cannot be opened") if isinstance(e, OSError) else str(e)
        raise Refusal("badConfig", f"the exit table {path} cannot be read: {reason}") from None
    problems: Problems = []
    rows = _table(data, problems)
    _refuse(path, problems)
    return rows


def _refuse(path: str, problems: Problems) -> None:
    if not problems:
        return
    listed = [f"{where}: {what}" for where, what in problems[:MAX_PROBLEMS]]
    more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
    raise Refusal("badConfig", f"the exit table {path} has mistakes: {'; '.join(listed)}{more}")


def _table(data: Any, problems: Problems) -> tuple[Row, ...]:
    form = f"must be a mapping with 'rows', a list of 1 to {MAX_ROWS}"
    if (
        not isinstance(data, dict)
        or not isinstance(data.get("rows"), list)
        or not 0 < len(data["rows"]) <= MAX_ROWS
    ):
        problems.append(("the file", form))
        return ()
    _unknown("", data, ("rows",), problems)
    rows = []
    codes: dict[object, int] = {}
    phrases: dict[object, int] = {}
    for n, given in enumerate(data["rows"], 1):
        if not isinstance(given, LocatedMapping):
            problems.append(
                (f"row {n}", f"must be a mapping of {', '.join(_FIELDS)}; got {_shown(given)}")
            )
            continue
        where = f"row {n} (line {given.line})"
        rows.append(_row(where, given, problems))
        for field, seen in (("code", codes), ("phrase", phrases)):
            if isinstance(value := given.get(field), int | str) and seen.setdefault(value, n) != n:
                problems.append(
                    (f"{where}, {field}", f"is also that of row {seen[value]}: {_shown(value)}")
                )
    if not problems:
        _steps(rows, problems)
    return tuple(rows)


def _row(where: str, given: LocatedMapping, problems: Problems) -> Row:
    field = _Fields(where, given, problems)
    field.unknown(_FIELDS)
    when = _when(f"{where}, when", given.get("when"), problems)
    if when.log and "behavior" in given:
        problems.append(
            (
                f"{where}, behavior",
                "must be removed: a row with when.log is a hint and has no behavior",
            )
        )
    behavior: Any = "unknown" if when.log else field.word("behavior", get_args(Behavior))
    return Row(
        code=field.number("code", FIRST_CODE, LAST_CODE),
        phrase=field.text("phrase", 60),
        type=field.word("type", get_args(Cause)),
        behavior=behavior,
        reason=field.text("reason", 500),
        solutions=field.each("solutions", lambda v: _text(v, 500)),
        when=when,
    )


def _when(where: str, given: Any, problems: Problems) -> When:
    if not isinstance(given, LocatedMapping):
        problems.append(
            (
                where,
                f"must be a mapping of some of {', '.join(_CONDITIONS)}; {{}} matches every exit without another row",
            )
        )
        return When()
    field = _Fields(where, given, problems)
    field.unknown(_CONDITIONS)
    if given.get("memory", True) is not True:
        problems.append(
            (f"{where}.memory", f"must be true, or left out; got {_shown(given['memory'])}")
        )
    when = When(
        stop=field.each("stop", _word),
        source=field.each("source", _source),
        fault=field.each("fault", _word),
        memory="memory" in given,
        slurm=field.each("slurm", _slurm),
        cause=field.each("cause", _cause),
        perhaps=field.each("perhaps", _cause),
        signals=field.each("signals", _signal),
        codes=field.each("codes", _exit_code),
        log=field.each("log", _rule),
    )
    if when.stop and len(given) > 1:
        problems.append(
            (
                f"{where}.stop",
                "must be the only condition: it identifies stopped tasks, whatever their exit",
            )
        )
    if when.signals and when.codes:
        problems.append(
            (f"{where}.codes", "must not be combined with signals: an exit has only one of the two")
        )
    return when


class _Fields:
    """Reads the fields of one mapping, and records mistakes."""

    def __init__(self, where: str, given: LocatedMapping, problems: Problems) -> None:
        self._where, self._given, self._problems = where, given, problems

    def _wrong(self, name: str, what: str) -> None:
        self._problems.append((self._path(name), what))

    def _path(self, name: str) -> str:
        return f"{self._where}{'.' if self._where.endswith('when') else ', '}{name}"

    def unknown(self, known: tuple[str, ...]) -> None:
        _unknown(self._path(""), self._given, known, self._problems)

    def _read(self, name: str, read: Callable[[Any], Any], otherwise: Any) -> Any:
        try:
            return read(self._given.get(name))
        except ValueError as e:
            self._wrong(
                name,
                f"{e}; got {_shown(self._given[name])}"
                if name in self._given
                else f"is missing: it {e}",
            )
            return otherwise

    def number(self, name: str, least: int, most: int) -> int:
        return int(self._read(name, lambda v: _number(v, least, most), least))

    def text(self, name: str, most: int) -> str:
        return str(self._read(name, lambda v: _text(v, most), ""))

    def word(self, name: str, words: tuple[Any, ...]) -> Any:
        return self._read(name, lambda v: _one_of(v, words), words[-1])

    def each(self, name: str, read: Callable[[Any], Any]) -> tuple[Any, ...]:
        """Return a list of parsed items; empty if the field is missing."""
        if name not in self._given:
            return ()
        values = self._given[name]
        if not isinstance(values, list) or not 0 < len(values) <= MAX_LIST:
            self._wrong(name, f"must be a list of 1 to {MAX_LIST}; got {_shown(values)}")
            return ()
        out = []
        for n, value in enumerate(values):
            try:
                out.append(read(value))
            except ValueError as e:
                self._wrong(f"{name}[{n}]", f"{e}; got {_shown(value)}")
        return tuple(out)


def _unknown(
    before: str, given: dict[str, Any], known: tuple[str, ...], problems: Problems
) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            problems.append((f"{before}{ascii(name)[1:-1][:60]}", f"is unknown; {advice}"))


def _steps(rows: Iterable[Row], problems: Problems) -> None:
    total = sum(safe_patterns.rule_size(rule) for row in rows for rule in row.when.log)
    if total > safe_patterns.TABLE_SIZE:
        what = f"are too large: a size of {total}, at most {safe_patterns.TABLE_SIZE}; use smaller upper bounds of repetitions"
        problems.append(("when.log of all rows together", what))


# ---- values


def _number(value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"must be a whole number from {least} to {most}")
    return value


def _text(value: Any, most: int) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not 0 < len(text) <= most or not text.isprintable():
        raise ValueError(f"must be one line of text, 1 to {most} characters")
    return str(text)


def _one_of(value: Any, words: tuple[Any, ...]) -> str:
    if value not in words:
        near = difflib.get_close_matches(str(value), words, n=1)
        raise ValueError(
            f"must be one of {', '.join(words)}" + (f" (did you mean {near[0]!r}?)" if near else "")
        )
    return str(value)


def _word(value: Any) -> str:
    if not isinstance(value, str) or not value.isascii() or not value.isalnum() or len(value) > 60:
        raise ValueError("must be a word of letters and digits")
    return value


def _source(value: Any) -> str:
    return _one_of(value, get_args(Source))


def _slurm(value: Any) -> str:
    return _one_of(value, tuple(sorted(SCHEDULER_END_STATES)))


def _cause(value: Any) -> str:
    return _one_of(value, tuple(CAUSES))


def _exit_code(value: Any) -> int:
    return _number(value, 1, 255)


def _signal(value: Any) -> int:
    """Parse a signal name, with or without SIG, or a number."""
    if isinstance(value, str):
        name = value.upper()
        found = getattr(signal.Signals, name if name.startswith("SIG") else f"SIG{name}", None)
        if found is None:
            raise ValueError("must be a signal, such as SIGKILL, or its number from 1 to 64")
        return int(found)
    return _number(value, 1, 64)


def _rule(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a regular expression as text")
    safe_patterns.rule_size(value)
    return value


def _shown(value: Any) -> str:
    return ascii(value)[:60]
