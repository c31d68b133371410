"""`explain-exit`: what an exit code, signal, cause or row of the exit table means, whose it is,
what it is not. Needs no supervisor.
"""

from typing import TYPE_CHECKING, Any

import click

from .session.session import command, session

if TYPE_CHECKING:
    from ..diagnosis.causes import Cause
    from ..diagnosis.exit_table import Row
    from ..diagnosis.kill_attribution import Classification
    from ..protocol.jobs.exit_info import ExitInfo

_WIDTH = 9
#: What is asked of a run whose code alone says too little.
_ASK = "jobscribe job why JOB   (it knows which of these it was)"
#: What Slurm says of a process that was killed for want of memory, as a signal; and its other
#: states that are ends.
_SLURM_OOM = 125
_SLURM_STATES = {"TIMEOUT", "COMPLETED", "FAILED"}
#: Codes that several ends have in common.
_SEVERAL = {
    130: "SIGINT: Ctrl-C or somebody's kill -INT, told by a shell; or a program that says 130 by itself",
    141: "SIGPIPE: a reader that ended first, told by a shell; or a program that says 141 by itself",
    137: "SIGKILL: memory that ran out, somebody's kill -9, a cancel that it did not heed, or a program that says 137 by itself",
    143: "SIGTERM: a cancel, a time limit, a machine that goes down, somebody's kill, or a program that says 143 by itself",
}


@command(context_settings={"ignore_unknown_options": True})
@click.argument("code", metavar="CODE")
@click.option(
    "--table",
    metavar="FILE",
    type=click.Path(),
    help="With the rows of this file, which is checked (the setting exits.table).",
)
def explain_exit(code: str, table: str | None) -> None:
    """Explain an exit code (137), a signal (SIGSEGV, -11), Slurm's numbers or state (0:9, TIMEOUT),
    a cause (outOfMemory), or a row (2001).

    What a run really ended with is known to `job why`: it knows more than the code.
    """
    explain(code, table)


def explain(code: str, table: str | None) -> None:
    """Print what is known of this, or refuse it as wrong usage."""
    from ..diagnosis.causes import CAUSES
    from ..service.site.exit_table_file import load

    rows = load(table).rows
    if code.isdecimal() and code.isascii() and len(code) > 3:
        row = next((r for r in rows if r.code == int(code)), None)
        if row is None:
            raise click.UsageError(f"there is no row {code}; 'jobscribe job exits' lists them")
        _tell(f"row {code}: {row.phrase}", row=row)
        return
    cause = next((c for word, c in CAUSES.items() if word.lower() == code.lower()), None)
    if cause is not None:
        _tell(f"{cause.word}: {cause.sentence}", cause=cause)
        return
    _raw(exit_of(code), rows)


def exit_of(code: str) -> "ExitInfo":
    """What is asked about, as an exit that nobody stopped."""
    from difflib import get_close_matches
    from signal import Signals

    from ..diagnosis.causes import CAUSES
    from ..protocol.jobs.exit_info import SCHEDULER_END_STATES, ExitInfo

    state = code.upper()
    if state in SCHEDULER_END_STATES | _SLURM_STATES:
        return _of_slurm(state)
    first, colon, second = code.partition(":")
    if colon and first in ("0", "1") and second == str(_SLURM_OOM):
        return _of_slurm("OUT_OF_MEMORY")
    if (
        colon
        and all(part.isdecimal() and part.isascii() for part in (first, second))
        and int(first) <= 255
        and int(second) <= 64
    ):
        # Slurm's own way: the exit code, and the signal that ended it; 0:0 is a success
        return ExitInfo(signal=int(second)) if int(second) else ExitInfo(code=int(first))
    if code.isdecimal() and code.isascii() and int(code) <= 255:
        return ExitInfo(code=int(code))
    number = code[1:] if code.startswith("-") else ""
    if number.isdecimal() and number.isascii() and 1 <= int(number) <= 64:
        return ExitInfo(signal=int(number))
    name = code.upper()
    found = Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}")
    if found is None:
        near = get_close_matches(
            code.casefold(), words := {word.casefold(): word for word in CAUSES}, 3
        )
        raise click.UsageError(
            f"{code!r} is no exit code (0 to 255), no signal (SIGSEGV, segv, -11, 0:11), no state of Slurm (TIMEOUT), "
            "no cause (outOfMemory), and no row (1000 and more)"
            + (f"; near it: {', '.join(words[n] for n in near)}" if near else "")
        )
    return ExitInfo(signal=int(found))


def _of_slurm(state: str) -> "ExitInfo":
    """An end that Slurm calls so."""
    from ..protocol.clusters.batch import BatchState
    from ..protocol.jobs.exit_info import ExitInfo

    said = BatchState(cluster="", state=state)
    match state:
        case "COMPLETED":
            return ExitInfo(code=0, batch=said)
        case "FAILED":
            return ExitInfo(batch=said)
        case "TIMEOUT":
            return ExitInfo(stop_reason="timeLimit", batch=said)
        case _:
            return ExitInfo(
                source="scheduler",
                out_of_memory=True if state == "OUT_OF_MEMORY" else None,
                batch=said,
            )


def _raw(exit_: "ExitInfo", rows: "tuple[Row, ...]") -> None:
    from ..diagnosis.classification import of_exit
    from ..diagnosis.exit_table import Table, classified
    from ..protocol.clusters.batch import BatchState
    from ..protocol.jobs.exit_info import signal_name

    found = of_exit(exit_)
    if exit_.code == 0:
        _tell(
            "exit code 0: it completed, whatever it printed and whatever happened to its children",
            found=found,
            exit_=exit_,
        )
        return
    what, more = f"exit code {exit_.code}", ""
    if exit_.signal is not None:
        what = f"signal {exit_.signal} ({signal_name(exit_.signal)})"
    elif 1 <= (exit_.code or 0) - 128 <= 64:
        number = (exit_.code or 0) - 128
        more = f"jobscribe explain-exit -{number}   (what a shell says as {exit_.code}: {signal_name(number)})"
    elif 1 <= (exit_.code or 0) <= 64:
        more = f"jobscribe explain-exit -{exit_.code}   (signal {exit_.code}, {signal_name(exit_.code or 0)}, if that is meant)"
    if isinstance(exit_.batch, BatchState):
        what = f"Slurm's {exit_.batch.state}"
    row = classified(exit_, Table(rows=rows))
    _tell(f"{what}: {row.phrase} ({row.code})", row=row, found=found, exit_=exit_, more=more)


def _tell(
    what: str,
    *,
    row: "Row | None" = None,
    cause: "Cause | None" = None,
    found: "Classification | None" = None,
    exit_: "ExitInfo | None" = None,
    more: str = "",
) -> None:
    """One answer, as lines or as a value."""
    from ..diagnosis.causes import CAUSES

    cause = CAUSES[found.cause] if found is not None else cause
    s = session()
    if s.screen.json:
        value: dict[str, Any] = (
            {} if exit_ is None else {"exitCode": exit_.code, "signal": exit_.signal}
        )
        value |= {
            "row": None if row is None else row_as_data(row),
            "cause": None if cause is None else _cause_as_data(cause, found),
        }
        s.screen.value("jobscribe.job.exits/1", value)
        return
    s.screen.line(what)
    for label, text in _lines(row, cause, found, exit_, more):
        s.screen.line(f"  {label:<{_WIDTH}}{text}")


def _lines(
    row: "Row | None",
    cause: "Cause | None",
    found: "Classification | None",
    exit_: "ExitInfo | None",
    more: str,
) -> "list[tuple[str, str]]":
    from ..diagnosis.causes import WHOSE as WHOSE_CAUSE
    from ..diagnosis.classification import is_guess
    from ..diagnosis.exit_table import AGAIN, WHOSE, reason_of

    lines: list[tuple[str, str]] = []
    if row is not None:
        again = "a hint: it decides nothing" if row.when.log else AGAIN[row.behavior]
        guess = (
            "if that is so: "
            if found is not None and is_guess(found.cause, found.confidence)
            else ""
        )
        whose, helps = (guess if word != "unknown" else "" for word in (row.type, row.behavior))
        lines += [
            ("reason", reason_of(row, exit_)),
            ("type", f"{whose}{row.type}: {WHOSE[row.type]}"),
            ("again", f"{helps}{again}"),
            ("when", conditions(row)),
        ]
    if cause is not None and cause.word != "completed":
        sure = f" ({found.confidence}, by this alone)" if found is not None else ""
        lines += (
            [("cause", f"{cause.word}{sure}: {cause.sentence}")]
            if row is not None
            else [("whose", WHOSE_CAUSE[cause.whose])]
        )
        if exit_ is None or exit_.code not in _SEVERAL:
            lines += [("not" if n == 0 else "", text) for n, text in enumerate(cause.excludes)]
    if exit_ is not None and exit_.code in _SEVERAL:
        lines.append(("may be", _SEVERAL[exit_.code]))
    solutions = (
        row.solutions
        if row is not None and row.solutions
        else cause.todo
        if cause is not None and exit_ is None
        else ()
    )
    lines += [("try" if n == 0 else "", solution) for n, solution in enumerate(solutions)]
    lines += [("see also", more)] if more else []
    return [*lines, ("find out", _ASK)] if exit_ is not None and exit_.code != 0 else lines


def conditions(row: "Row") -> str:
    """When it applies, in words."""
    from ..protocol.jobs.exit_info import signal_name

    when = row.when
    parts = [
        ("stopped: ", when.stop),
        ("source ", when.source),
        ("fault ", when.fault),
        ("", ("memory ran out",) if when.memory else ()),
        ("Slurm says ", when.slurm),
        ("the facts show ", when.cause),
        ("the facts show perhaps ", when.perhaps),
        ("signal ", [signal_name(n) for n in when.signals] if len(when.signals) < 60 else ["any"]),
        ("exit code ", when.codes),
        ("", ("a line of output",) if when.log else ()),
    ]
    return (
        ", ".join(before + " ".join(map(str, values)) for before, values in parts if values)
        or "everything else"
    )


def row_as_data(row: "Row") -> dict[str, Any]:
    from msgspec import to_builtins

    data: dict[str, Any] = to_builtins(row)
    return data | {"hint": bool(row.when.log)}


def _cause_as_data(cause: "Cause", found: "Classification | None") -> dict[str, Any]:
    data: dict[str, Any] = {
        "word": cause.word,
        "whose": cause.whose,
        "sentence": cause.sentence,
        "not": list(cause.excludes),
        "try": list(cause.todo),
    }
    return data if found is None else data | {"confidence": found.confidence}
