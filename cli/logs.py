"""`job logs`: what a job wrote."""

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from .names import whole
from .pump import Pump, json_sink, raw_sink, sink_for
from .session import command, session

if TYPE_CHECKING:
    from ..client.http import Client
    from ..client.replies import LogPart

NEWEST_BYTES = 4096


@command()
@click.argument("name", metavar="JOB")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over; from the beginning, unless --tail is given.")
@click.option("--stdout", "only", flag_value="stdout", help="Only its standard output.")
@click.option("--stderr", "only", flag_value="stderr", help="Only its standard error, on standard output.")
@click.option("--role", metavar="ROLE", help="Of a task of this role (default: the one that stands for the run, else its first).")
@click.option("--index", type=click.IntRange(0), metavar="I", help="With --role: of this one (default: 0).")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Of this attempt (default: the latest).")
@click.option("--tail", type=click.IntRange(1, 512 * 1024), metavar="BYTES", help="Only the newest bytes (default: 4096).")
@click.option("--all", "everything", is_flag=True, help="From the beginning.")
def logs(
    name: str, follow: bool, only: str | None, role: str | None, index: int | None, attempt: int | None, tail: int | None, everything: bool,
) -> None:
    """Print what a job wrote: its standard output to standard output, its standard error to standard error, byte for byte.

    Of a run with roles that is what one of its tasks wrote; -f ends with that task.
    """
    if everything and tail:
        raise click.UsageError("--all and --tail exclude each other")
    if index is not None and role is None:
        raise click.UsageError("--index goes with --role")
    s = session()
    jid = whole(s, name)
    newest = tail or (0 if follow or everything else NEWEST_BYTES)
    client = s.client_for(jid)
    said = _Whose(s, index is None and _several(client.status(jid).roles, role))
    pumps = []
    for stream in [only] if only else ["stdout", "stderr"]:
        sink = _only_sink(s) if only else sink_for(s.screen, stream)

        def parts(own: "Client", stream: Any = stream) -> "Iterator[LogPart]":
            pieces: Iterator[LogPart] = own.logs(
                jid, stream, attempt=attempt or 0, role=role, index=index or 0, tail=newest, follow=follow,
            )
            pieces = said.of(pieces)
            return _said_where(s, pieces, tail) if newest else pieces

        pump = Pump(client.copy(), parts, sink, lambda _: None)
        pumps.append(pump)
        if not follow:
            pump.join()
    for pump in pumps:
        pump.join()


def _only_sink(s: Any) -> Any:
    import sys

    return json_sink(s.screen) if s.screen.json else raw_sink(s.screen, sys.stdout.fileno())


def _said_where(s: Any, parts: "Iterator[LogPart]", asked: int | None) -> "Iterator[LogPart]":
    """The same parts; says that there is more before them, unless that was asked for."""
    for i, part in enumerate(parts):
        if i == 0 and part.offset > 0 and asked is None:
            s.screen.say(f"[the newest {NEWEST_BYTES} bytes of {part.stream}; {part.offset} more before them: --all]")
        yield part


def _several(roles: "dict[str, dict[str, int]] | None", role: str | None) -> bool:
    """Are there others that could have been meant?"""
    return sum(counts["tasks"] for name, counts in (roles or {}).items() if role in (None, name)) > 1


class _Whose:
    """Says once whose output it is, where somebody asked for several tasks and gets one of them."""

    def __init__(self, s: Any, wanted: bool) -> None:
        self._screen, self._lock, self._wanted = s.screen, threading.Lock(), wanted

    def of(self, parts: "Iterator[LogPart]") -> "Iterator[LogPart]":
        for part in parts:
            with self._lock:
                if self._wanted and part.role is not None:
                    self._wanted = False
                    self._screen.say(f"[task {part.role}/{part.index}, attempt {part.attempt}; another one: --role, --index]")
            yield part
