"""`job logs`: what a job wrote, of any attempt; never an empty answer."""

import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ...protocol.errors import Refusal
from ..session.job_names import whole
from ..session.session import Session, command, session
from ..terminal.output_stream import OutputStreamer, json_sink, raw_sink, sink_for
from .log_reader import Reading, matching

if TYPE_CHECKING:
    from ...client.api.replies import LogPart
    from ...client.sync_client import Client

NEWEST_BYTES = 4096


def _compiled(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> "re.Pattern[str] | None":
    try:
        return None if value is None else re.compile(value)
    except re.error as e:
        raise click.BadParameter(f"{value!r} is no regular expression: {e}") from None


@command()
@click.argument("name", metavar="JOB")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Go on until the job is over, through restarts and other attempts; from the beginning, unless --tail is given.",
)
@click.option("--stdout", "only", flag_value="stdout", help="Only its standard output.")
@click.option(
    "--stderr", "only", flag_value="stderr", help="Only its standard error, on standard output."
)
@click.option(
    "--role",
    metavar="ROLE",
    help="Of a task of this role (default: the one that stands for the run, else its first).",
)
@click.option(
    "--index", type=click.IntRange(0), metavar="I", help="With --role: of this one (default: 0)."
)
@click.option(
    "--attempt", type=click.IntRange(1), metavar="N", help="Of this attempt (default: the latest)."
)
@click.option("--previous", is_flag=True, help="Of the attempt before the latest.")
@click.option(
    "--tail",
    type=click.IntRange(1, 512 * 1024),
    metavar="BYTES",
    help="Only the newest bytes (default: 4096).",
)
@click.option("--all", "everything", is_flag=True, help="From the beginning.")
@click.option(
    "--since-byte",
    type=click.IntRange(0),
    metavar="N",
    help="With --stdout or --stderr: from this byte on, to go on later.",
)
@click.option(
    "--grep",
    "pattern",
    callback=_compiled,
    metavar="PATTERN",
    help="Only lines in which this regular expression is found; of all that it wrote, unless --tail is given.",
)
def logs(
    name: str,
    follow: bool,
    only: str | None,
    role: str | None,
    index: int | None,
    attempt: int | None,
    previous: bool,
    tail: int | None,
    everything: bool,
    since_byte: int | None,
    pattern: "re.Pattern[str] | None",
) -> None:
    """Print what a job wrote: its standard output to standard output, its standard error to
    standard error, byte for byte.

    Of a run with roles that is what one of its tasks wrote; -f ends with that task. Where there is
    nothing to print, a sentence on standard error says why.
    """
    _exclude(("--all", everything), ("--tail", tail), ("--since-byte", since_byte is not None))
    _exclude(("--previous", previous), ("--attempt", attempt))
    if index is not None and role is None:
        raise click.UsageError("--index goes with --role")
    if since_byte is not None and only is None:
        raise click.UsageError(
            "--since-byte goes with --stdout or --stderr: each has bytes of its own"
        )
    s = session()
    jid = whole(s, name)
    whole_of_it = follow or everything or since_byte is not None or pattern is not None
    newest = tail or (0 if whole_of_it else NEWEST_BYTES)
    client = s.client_for(jid)
    reading = Reading(
        jid,
        attempt=_before_the_latest(client, jid) if previous else attempt or 0,
        role=role,
        index=index or 0,
        tail=newest,
        offset=since_byte or 0,
        follow=follow,
        say=s.screen.say,
    )
    said = _Whose(s, index is None and _several(client.status(jid).roles, role))
    silences = _Silences(s, pattern, since_byte)
    pumps = []
    for stream in [only] if only else ["stdout", "stderr"]:
        sink = _only_sink(s) if only else sink_for(s.screen, stream)

        def parts(own: "Client", stream: Any = stream) -> "Iterator[LogPart]":
            pieces = said.of(reading.of(own, stream))
            pieces = _said_where(s, pieces, tail) if newest else pieces
            return silences.of(stream, pieces if pattern is None else matching(pattern, pieces))

        pump = OutputStreamer(client.copy(), parts, sink, lambda _: None)
        pumps.append(pump)
        if not follow:
            pump.join()
    for pump in pumps:
        pump.join()
    silences.say()


def _exclude(*options: tuple[str, Any]) -> None:
    given = [name for name, value in options if value]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other")


def _before_the_latest(client: "Client", jid: str) -> int:
    """Raises Refusal where there was none."""
    latest = client.status(jid).attempt or 0
    if latest > 1:
        return latest - 1
    why = "this is its first" if latest else "it has had none yet"
    raise Refusal(
        "notFound",
        f"there is no previous attempt of {jid}: {why}",
        {"advice": f"jobscribe job tasks {jid}"},
    )


def _only_sink(s: Session) -> Any:
    import sys

    return json_sink(s.screen) if s.screen.json else raw_sink(s.screen, sys.stdout.fileno())


def _said_where(s: Session, parts: "Iterator[LogPart]", asked: int | None) -> "Iterator[LogPart]":
    """The same parts; says that there is more before them, unless that was asked for."""
    for i, part in enumerate(parts):
        if i == 0 and part.offset > 0 and asked is None:
            s.screen.say(
                f"[the newest {NEWEST_BYTES} bytes of {part.stream}; {part.offset} more before them: --all]"
            )
        yield part


def _several(roles: "dict[str, dict[str, int]] | None", role: str | None) -> bool:
    """Are there others that could have been meant?"""
    return (
        sum(counts["tasks"] for name, counts in (roles or {}).items() if role in (None, name)) > 1
    )


class _Whose:
    """Says once whose output it is, where somebody asked for several tasks and gets one of them."""

    def __init__(self, s: Session, wanted: bool) -> None:
        self._screen, self._lock, self._wanted = s.screen, threading.Lock(), wanted

    def of(self, parts: "Iterator[LogPart]") -> "Iterator[LogPart]":
        for part in parts:
            with self._lock:
                if self._wanted and part.role is not None:
                    self._wanted = False
                    self._screen.say(
                        f"[task {part.role}/{part.index}, attempt {part.attempt}; another one: --role, --index]"
                    )
            yield part


class _Silences:
    """Sees which streams have nothing to print, and why, and says it at the end; in JSON as records
    of their own.
    """

    def __init__(self, s: Session, pattern: "re.Pattern[str] | None", since: int | None) -> None:
        self._screen, self._pattern, self._since = s.screen, pattern, since
        self._notes: dict[str, tuple[str, str]] = {}
        self._next: dict[str, int] = {}
        self._spoke = False

    def of(self, stream: str, parts: "Iterator[LogPart]") -> "Iterator[LogPart]":
        spoke, read, note = False, False, ("", "")
        self._next[stream] = self._since or 0
        for part in parts:
            self._next[stream] = max(self._next[stream], part.next_offset)
            note = (part.note, part.sentence) if part.note else note
            read = read or part.next_offset > part.offset
            if part.data or part.dropped:
                self._spoke = spoke = True
                yield part
        if not spoke:
            self._notes[stream] = self._why(stream, read, note)

    def say(self) -> None:
        if self._screen.json:
            for stream, (word, sentence) in self._notes.items():
                self._screen.record(
                    {
                        "type": "note",
                        "stream": stream,
                        "note": word,
                        "sentence": sentence,
                        "nextOffset": self._next[stream],
                    }
                )
            return
        if not self._spoke:
            for sentence in dict.fromkeys(sentence for _, sentence in self._notes.values()):
                self._screen.say(f"[{sentence}]")
        if self._since is not None:
            for at in self._next.values():
                self._screen.say(f"[to go on from here: --since-byte {at}]")

    def _why(self, stream: str, read: bool, note: tuple[str, str]) -> tuple[str, str]:
        if note[0]:
            return note
        if self._pattern is not None and read:
            return "noMatch", f"no line of its {stream} matches {self._pattern.pattern!r}"
        if self._since:
            return "nothingYet", f"there is nothing of its {stream} from byte {self._since} on"
        return "unknown", f"there is nothing of its {stream}"
