"""`job exits`: what exit codes and signals mean, by the table that ships. Needs no supervisor."""

from typing import TYPE_CHECKING, Any

import click

from .session import command, session

if TYPE_CHECKING:
    from ..protocol.diagnosis import Row
    from ..protocol.exits import ExitInfo

_WIDTH = 9


@command(context_settings={"ignore_unknown_options": True})
@click.argument("code", metavar="[CODE]", required=False)
@click.option("--table", metavar="FILE", type=click.Path(), help="With the rows of this file, which is checked (the setting exits.table).")
def exits(code: str | None, table: str | None) -> None:
    """List what exits can mean; or explain one: an exit code (137), a signal (SIGSEGV, -11), or the code of a row (2001).

    What a run really ended with is known to `job why`: it knows more than the code.
    """
    from ..service.exit_table import load

    rows = load(table).rows
    if code is None:
        _list(rows)
    elif code.isdecimal() and len(code) > 3:
        row = next((r for r in rows if r.code == int(code)), None)
        if row is None:
            raise click.UsageError(f"there is no row {code}; 'jobscribe job exits' lists them")
        _explain(f"row {code}: {row.phrase}", row, "")
    else:
        _raw(code, rows)


def _list(rows: "tuple[Row, ...]") -> None:
    s = session()
    if s.screen.json:
        s.screen.value("jobscribe.job.exits/1", {"items": [_as_data(row) for row in rows]})
        return
    s.screen.table(
        ("CODE", "PHRASE", "TYPE", "BEHAVIOR", "WHEN"),
        [(str(r.code), r.phrase, r.type, "(hint)" if r.when.log else r.behavior, _conditions(r)) for r in rows],
    )


def _raw(code: str, rows: "tuple[Row, ...]") -> None:
    from ..protocol.diagnosis import Table, classified
    from ..protocol.exits import signal_name

    exit_ = _exit(code)
    if exit_.code == 0:
        s = session()
        if s.screen.json:
            s.screen.value("jobscribe.job.exits/1", {"exitCode": 0, "signal": None, "row": None})
        else:
            s.screen.line("exit code 0: it completed, whatever it printed and whatever happened to its children")
        return
    if exit_.signal is not None:
        what, more = f"signal {exit_.signal} ({signal_name(exit_.signal)})", ""
    else:
        what, more = f"exit code {exit_.code}", ""
        number = (exit_.code or 0) - 128
        if 1 <= number <= 64:
            more = f"jobscribe job exits {-number}   (what a shell says as {exit_.code}: {signal_name(number)})"
    row = classified(exit_, Table(rows=rows))
    _explain(f"{what}: {row.phrase} ({row.code})", row, more, exit_)


def _exit(code: str) -> "ExitInfo":
    """What is asked about, as an exit that nobody stopped."""
    from signal import Signals

    from ..protocol.exits import ExitInfo

    if code.isdecimal() and code.isascii() and int(code) <= 255:
        return ExitInfo(code=int(code))
    number = code[1:] if code.startswith("-") else ""
    if number.isdecimal() and number.isascii() and 1 <= int(number) <= 64:
        return ExitInfo(signal=int(number))
    name = code.upper()
    found = Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}")
    if found is None:
        raise click.UsageError(f"{code!r} is no exit code (0 to 255), no signal (SIGSEGV, segv, -11), and no row (1000 and more)")
    return ExitInfo(signal=int(found))


def _explain(what: str, row: "Row", more: str, exit_: "ExitInfo | None" = None) -> None:
    from ..protocol.diagnosis import AGAIN, WHOSE

    s = session()
    if s.screen.json:
        raw = {} if exit_ is None else {"exitCode": exit_.code, "signal": exit_.signal}
        s.screen.value("jobscribe.job.exits/1", {**raw, "row": _as_data(row)})
        return
    again = "a hint: it decides nothing" if row.when.log else AGAIN[row.behavior]
    lines = [("reason", row.reason), ("type", f"{row.type}: {WHOSE[row.type]}"), ("again", again), ("when", _conditions(row))]
    lines += [("try" if n == 0 else "", solution) for n, solution in enumerate(row.solutions)]
    lines += [("see also", more)] if more else []
    s.screen.line(what)
    for label, text in lines:
        s.screen.line(f"  {label:<{_WIDTH}}{text}")


def _conditions(row: "Row") -> str:
    """When it applies, in words."""
    from ..protocol.exits import signal_name

    when = row.when
    parts = [
        ("stopped: ", when.stop), ("source ", when.source), ("fault ", when.fault), ("", ("memory ran out",) if when.memory else ()),
        ("signal ", [signal_name(n) for n in when.signals] if len(when.signals) < 60 else ["any"]), ("exit code ", when.codes),
        ("", ("a line of output",) if when.log else ()),
    ]
    return ", ".join(before + " ".join(map(str, values)) for before, values in parts if values) or "everything else"


def _as_data(row: "Row") -> dict[str, Any]:
    from msgspec import to_builtins

    data: dict[str, Any] = to_builtins(row)
    return data | {"hint": bool(row.when.log)}
