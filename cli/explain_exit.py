"""`jobscribe explain-exit`: meaning and owner of an exit code, signal, cause or row of the exit
table, without a supervisor.
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
#: Advice for a run whose exit code is ambiguous.
_ASK = "jobscribe job why JOB   (shows which of these applies)"
#: Slurm's signal number for a process killed for lack of memory; further final states of Slurm.
_SLURM_OOM = 125
_SLURM_STATES = {"TIMEOUT", "COMPLETED", "FAILED"}
#: Codes with several possible reasons.
_AMBIGUOUS = {
    130: "SIGINT: Ctrl-C or kill -INT by a user, reported by a shell; or a program that exits with 130",
    141: "SIGPIPE: a reader that ended first, reported by a shell; or a program that exits with 141",
    137: "SIGKILL: lack of memory, kill -9 by a user, a cancel that it ignored, or a program that exits with 137",
    143: "SIGTERM: a cancel, a time limit, a machine shutdown, kill by a user, or a program that exits with 143",
}


@command(context_settings={"ignore_unknown_options": True})
@click.argument("code", metavar="CODE")
@click.option(
    "--table",
    metavar="FILE",
    type=click.Path(),
    help="Add the rows of this file (the setting exits.table); it is checked.",
)
def explain_exit(code: str, table: str | None) -> None:
    """Explain an exit code (137), a signal (SIGSEGV, -11), Slurm's numbers or state (0:9, TIMEOUT),
    a row (2001), or a word that `job why` prints (outOfMemory, imageMissing, likely).

    For the actual cause of a run's end use `job why`: it uses more data than the code.
    """
    explain(code, table)


def explain(code: str, table: str | None) -> None:
    """Print the explanation. Raises click.UsageError for an unknown code."""
    from ..diagnosis.causes import CAUSES
    from ..diagnosis.why_words import cause_word, row_of, sentence
    from ..service.site.exit_table_file import load

    rows = load(table).rows
    if code.isdecimal() and code.isascii() and len(code) > 3:
        row = next((r for r in rows if r.code == int(code)), None)
        if row is None:
            raise click.UsageError(f"there is no row {code}; 'jobscribe job exits' lists them")
        _print(f"row {code}: {row.phrase}", row=row)
        return
    word = cause_word(code)
    if word is not None:
        _print(f"{word}: {CAUSES[word].sentence}", cause=CAUSES[word])
        return
    row = row_of(code, rows)
    if row is not None:
        _print(f"row {row.code}: {row.phrase}", row=row)
        return
    meaning = sentence(code)
    if meaning is not None:
        _print_word(code, meaning)
        return
    _print_exit(exit_of(code), rows)


def _print_word(word: str, meaning: str) -> None:
    s = session()
    if s.screen.json:
        value = {"row": None, "cause": None, "word": word, "meaning": meaning}
        s.screen.value("jobscribe.job.exits/1", value)
    else:
        s.screen.line(f"{word}: {meaning}")


def exit_of(code: str) -> "ExitInfo":
    """Parse the argument into an exit without a stop reason. Raises click.UsageError."""
    from difflib import get_close_matches
    from signal import Signals

    from ..diagnosis.causes import CAUSES
    from ..protocol.jobs.exit_info import SCHEDULER_END_STATES, ExitInfo

    state = code.upper()
    if state in SCHEDULER_END_STATES | _SLURM_STATES:
        return _slurm_exit(state)
    first, colon, second = code.partition(":")
    if colon and first in ("0", "1") and second == str(_SLURM_OOM):
        return _slurm_exit("OUT_OF_MEMORY")
    if (
        colon
        and all(part.isdecimal() and part.isascii() for part in (first, second))
        and int(first) <= 255
        and int(second) <= 64
    ):
        # Slurm's format: exit code and signal; 0:0 is success
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
            f"{code!r} is not an exit code (0 to 255), signal (SIGSEGV, segv, -11, 0:11), Slurm state (TIMEOUT), "
            "cause (outOfMemory) or row (1000 and above)"
            + (f"; near it: {', '.join(words[n] for n in near)}" if near else "")
        )
    return ExitInfo(signal=int(found))


def _slurm_exit(state: str) -> "ExitInfo":
    """Return the exit for a final state of Slurm."""
    from ..protocol.clusters.batch import BatchState, SlurmState
    from ..protocol.jobs.exit_info import ExitInfo

    batch = BatchState(cluster="", state=state)
    match state:
        case SlurmState.COMPLETED:
            return ExitInfo(code=0, batch=batch)
        case SlurmState.FAILED:
            return ExitInfo(batch=batch)
        case SlurmState.TIMEOUT:
            return ExitInfo(stop_reason="timeLimit", batch=batch)
        case _:
            return ExitInfo(
                source="scheduler",
                out_of_memory=True if state == SlurmState.OUT_OF_MEMORY else None,
                batch=batch,
            )


def exit_lines(exit_: "ExitInfo") -> "tuple[str, ...]":
    """Return the explanation of a failed exit as lines. Data about its run may tell more."""
    from ..service.site.exit_table_file import load

    title, row, found, more = _explained(exit_, load(None).rows)
    lines = _lines(row, _cause(found), found, exit_, more)
    return title, *(f"  {label:<{_WIDTH}}{text}" for label, text in lines if text != _ASK)


def _cause(found: "Classification") -> "Cause":
    from ..diagnosis.causes import CAUSES

    return CAUSES[found.cause]


def _print_exit(exit_: "ExitInfo", rows: "tuple[Row, ...]") -> None:
    title, row, found, more = _explained(exit_, rows)
    _print(title, row=row, found=found, exit_=exit_, more=more)


def _explained(
    exit_: "ExitInfo", rows: "tuple[Row, ...]"
) -> "tuple[str, Row | None, Classification, str]":
    """Return title, row, classification and a hint for a similar exit."""
    from ..diagnosis.classification import classify_exit
    from ..diagnosis.exit_table import Table, classified
    from ..protocol.clusters.batch import BatchState
    from ..protocol.jobs.exit_info import signal_name

    found = classify_exit(exit_)
    if exit_.code == 0:
        sentence = "exit code 0: completed, regardless of its output and of its child processes"
        return sentence, None, found, ""
    title, more = f"exit code {exit_.code}", ""
    if exit_.signal is not None:
        title = f"signal {exit_.signal} ({signal_name(exit_.signal)})"
    elif 1 <= (exit_.code or 0) - 128 <= 64:
        number = (exit_.code or 0) - 128
        more = f"jobscribe explain-exit -{number}   (a shell reports {signal_name(number)} as {exit_.code})"
    elif 1 <= (exit_.code or 0) <= 64:
        more = f"jobscribe explain-exit -{exit_.code}   (signal {exit_.code}, {signal_name(exit_.code or 0)}, if you mean the signal)"
    if isinstance(exit_.batch, BatchState):
        title = f"Slurm state {exit_.batch.state}"
    row = classified(exit_, Table(rows=rows))
    return f"{title}: {row.phrase} ({row.code})", row, found, more


def _print(
    title: str,
    *,
    row: "Row | None" = None,
    cause: "Cause | None" = None,
    found: "Classification | None" = None,
    exit_: "ExitInfo | None" = None,
    more: str = "",
) -> None:
    """Print one explanation, as lines or as a JSON value."""
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
    s.screen.line(title)
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
        again = "a hint: it has no effect" if row.when.log else AGAIN[row.behavior]
        guess = "if so: " if found is not None and is_guess(found.cause, found.confidence) else ""
        type_guess, again_guess = (
            guess if v != "unknown" else "" for v in (row.type, row.behavior)
        )
        lines += [
            ("reason", reason_of(row, exit_)),
            ("type", f"{type_guess}{row.type}: {WHOSE[row.type]}"),
            ("again", f"{again_guess}{again}"),
            ("when", conditions(row)),
        ]
    if cause is not None and cause.word != "completed":
        sure = f" ({found.confidence}, from this alone)" if found is not None else ""
        lines += (
            [("cause", f"{cause.word}{sure}: {cause.sentence}")]
            if row is not None
            else [("whose", WHOSE_CAUSE[cause.whose])]
        )
        if exit_ is None or exit_.code not in _AMBIGUOUS:
            lines += [("not" if n == 0 else "", text) for n, text in enumerate(cause.excludes)]
    if exit_ is not None and exit_.code in _AMBIGUOUS:
        lines.append(("may be", _AMBIGUOUS[exit_.code]))
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
    """Return the conditions of a row as text."""
    from ..protocol.jobs.exit_info import signal_name

    when = row.when
    parts = [
        ("stopped: ", when.stop),
        ("source ", when.source),
        ("fault ", when.fault),
        ("", ("out of memory",) if when.memory else ()),
        ("Slurm state ", when.slurm),
        ("cause ", when.cause),
        ("possible cause ", when.perhaps),
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
