"""Output for users and scripts: data on standard output, messages on standard error. Only this
module decides on their format.

Untrusted text (names, reasons, error messages) passes `clean`, so that a job cannot send control
characters to another user's terminal. A job's own output is passed on byte for byte.
"""

import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

#: Shorter operations show no progress.
QUIET_SECS = 2.0
#: Interval between similar progress lines if lines cannot be overwritten.
REPEAT_SECS = 10.0

_CONTROL = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]"
)
_NUMBER = re.compile(r"\b[0-9.]+ ?(s|m|h|d)?\b")


def clean(text: object) -> str:
    """Replace control characters of a text, except line breaks."""
    return _CONTROL.sub("?", str(text).replace("\t", " "))


class Screen:
    """Standard output and standard error of one command line. json: print JSON."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self._shown_at = 0.0
        self._shown = ""
        self._open_line = False

    # ---- standard output: data

    def value(self, schema: str, value: dict[str, Any]) -> None:
        """Print one JSON value. `schema` is the name and version of its format."""
        self._end_line()
        _write_line(_json({"schema": schema, **value}))

    def record(self, value: dict[str, Any]) -> None:
        """Print one line of a stream of JSON values."""
        self._end_line()
        _write_line(_json(value))

    def line(self, text: str) -> None:
        self._end_line()
        _write_line(clean(text))

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print aligned columns; at a terminal with colours and lines that fit."""
        self._end_line()
        cells = [[clean(c) for c in row] for row in rows]
        if sys.stdout.isatty():
            _rich_table(heads, cells)
            return
        widths = [max(len(r[i]) for r in [list(heads), *cells]) for i in range(len(heads))]
        for row in [list(heads), *cells]:
            _write_line("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())

    # ---- standard error: messages

    def message(self, text: str) -> None:
        """Print a sentence for the user."""
        self._end_line()
        click.echo(clean(text), err=True)

    def failed(self, error: Any) -> None:
        """Print an error and its advice. `error` is the body of a Refusal or ClientError."""
        self._end_line()
        if self.json:
            click.echo(_json(error), err=True)
            return
        click.echo(f"jobscribe: {clean(error['error'])}", err=True)
        if error.get("advice"):
            click.echo(f"  {clean(error['advice'])}", err=True)

    def progress(self, text: str, secs: float) -> None:
        """Report on an operation that has lasted `secs` seconds. Overwrites its line at a terminal,
        and prints few lines elsewhere.
        """
        text, overwrites = clean(text), _overwrites()
        # In a log, skip lines that differ in their numbers only.
        about, since = (
            text if overwrites else _NUMBER.sub("", text),
            time.monotonic() - self._shown_at,
        )
        if secs < QUIET_SECS or (about == self._shown and since < REPEAT_SECS):
            return
        if overwrites:
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            click.echo("\r\x1b[K" + text[: width - 1], err=True, nl=False)
            self._open_line = True
        elif since < 1.0:
            return
        else:
            click.echo(text, err=True)
        self._shown, self._shown_at = about, time.monotonic()

    def _end_line(self) -> None:
        if self._open_line:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._open_line = False


def _overwrites() -> bool:
    """Return whether standard error is a terminal that can overwrite lines, and NO_COLOR is not
    set.
    """
    return (
        sys.stderr.isatty()
        and os.environ.get("TERM", "") not in ("", "dumb")
        and not os.environ.get("NO_COLOR")
    )


def _write_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _json(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _rich_table(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, head in enumerate(heads):
        # Never wrap or shorten a cell, or an id could not be copied: a narrow terminal cuts off the
        # last columns instead.
        table.add_column(head, no_wrap=True, min_width=max(len(r[i]) for r in [heads, *cells]))
    for row in cells:
        table.add_row(*(Text(c, style=_STYLES.get(c, "")) for c in row))
    Console().print(table)


_STYLES = {"completed": "green", "error": "red", "canceled": "yellow", "running": "cyan"}
