"""The command `job logs`. If there is no output, it prints the reason."""

import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ....protocol.errors import Refusal
from ...session.job_names import resolve_job
from ...session.session import Session, command, session
from ...terminal.output_stream import OutputStreamer, json_sink, raw_sink, sink_for
from .reader import Reader, matching

if TYPE_CHECKING:
    from ....client.api.replies import LogPart
    from ....client.sync_client import Client

NEWEST_BYTES = 4096


def _compiled(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> "re.Pattern[str] | None":
    try:
        return None if value is None else re.compile(value)
    except re.error as e:
        raise click.BadParameter(f"{value!r} is not a regular expression: {e}") from None


@command()
@click.argument("name", metavar="JOB")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Follow until the job is over, across restarts and later attempts; from the beginning, unless --tail is given.",
)
@click.option("--stdout", "only", flag_value="stdout", help="Only standard output.")
@click.option(
    "--stderr", "only", flag_value="stderr", help="Only standard error, printed on standard output."
)
@click.option(
    "--role",
    metavar="ROLE",
    help="Output of a task of this role (default: the task that represents the run, else the first).",
)
@click.option(
    "--index",
    type=click.IntRange(0),
    metavar="I",
    help="With --role: index of the task (default: 0).",
)
@click.option(
    "--attempt", type=click.IntRange(1), metavar="N", help="Attempt number (default: the latest)."
)
@click.option("--previous", is_flag=True, help="The attempt before the latest.")
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
    help="With --stdout or --stderr: start at this byte, to continue an earlier call.",
)
@click.option(
    "--grep",
    "pattern",
    callback=_compiled,
    metavar="PATTERN",
    help="Only lines that match this regular expression; searches the whole output, unless --tail is given.",
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
    """Print the output of a job byte for byte: its standard output on standard output, its standard
    error on standard error.

    For a run with roles this is the output of one task; -f ends with that task. If there is no
    output, a sentence on standard error gives the reason.
    """
    _exclude(("--all", everything), ("--tail", tail), ("--since-byte", since_byte is not None))
    _exclude(("--previous", previous), ("--attempt", attempt))
    if index is not None and role is None:
        raise click.UsageError("--index requires --role")
    if since_byte is not None and only is None:
        raise click.UsageError(
            "--since-byte requires --stdout or --stderr: each stream has its own offsets"
        )
    s = session()
    jid = resolve_job(s, name)
    full = follow or everything or since_byte is not None or pattern is not None
    newest = tail or (0 if full else NEWEST_BYTES)
    client = s.client_for(jid)
    reader = Reader(
        jid,
        attempt=_previous_attempt(client, jid) if previous else attempt or 0,
        role=role,
        index=index or 0,
        tail=newest,
        offset=since_byte or 0,
        follow=follow,
        message=s.screen.message,
    )
    heading = _TaskHeading(s, index is None and _is_ambiguous(client.status(jid).roles, role))
    missing = _MissingOutput(s, pattern, since_byte)
    streamers = []
    for stream in [only] if only else ["stdout", "stderr"]:
        sink = _only_sink(s) if only else sink_for(s.screen, stream)

        def parts(own: "Client", stream: Any = stream) -> "Iterator[LogPart]":
            pieces = heading.announce(reader.read(own, stream))
            pieces = _announce_omitted(s, pieces, tail) if newest else pieces
            return missing.observe(stream, pieces if pattern is None else matching(pattern, pieces))

        streamer = OutputStreamer(client.copy(), parts, sink, lambda _: None)
        streamers.append(streamer)
        if not follow:
            streamer.join()
    for streamer in streamers:
        streamer.join()
    missing.report()


def _exclude(*options: tuple[str, Any]) -> None:
    given = [name for name, value in options if value]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} cannot be combined")


def _previous_attempt(client: "Client", jid: str) -> int:
    """Return the number of the attempt before the latest. Raises Refusal if there is none."""
    latest = client.status(jid).attempt or 0
    if latest > 1:
        return latest - 1
    why = "the latest attempt is the first" if latest else "no attempt has started yet"
    raise Refusal(
        "notFound",
        f"there is no previous attempt of {jid}: {why}",
        {"advice": f"jobscribe job tasks {jid}"},
    )


def _only_sink(s: Session) -> Any:
    import sys

    return json_sink(s.screen) if s.screen.json else raw_sink(s.screen, sys.stdout.fileno())


def _announce_omitted(
    s: Session, parts: "Iterator[LogPart]", asked: int | None
) -> "Iterator[LogPart]":
    """Yield the parts; report omitted earlier output, unless the user chose the size (`asked`)."""
    for i, part in enumerate(parts):
        if i == 0 and part.offset > 0 and asked is None:
            s.screen.message(
                f"[the newest {NEWEST_BYTES} bytes of {part.stream}; {part.offset} earlier bytes omitted; --all prints all]"
            )
        yield part


def _is_ambiguous(roles: "dict[str, dict[str, int]] | None", role: str | None) -> bool:
    """Return whether the options match several tasks."""
    return (
        sum(counts["tasks"] for name, counts in (roles or {}).items() if role in (None, name)) > 1
    )


class _TaskHeading:
    """Reports once which task the output belongs to, if the options match several tasks."""

    def __init__(self, s: Session, wanted: bool) -> None:
        self._screen, self._lock, self._wanted = s.screen, threading.Lock(), wanted

    def announce(self, parts: "Iterator[LogPart]") -> "Iterator[LogPart]":
        for part in parts:
            with self._lock:
                if self._wanted and part.role is not None:
                    self._wanted = False
                    self._screen.message(
                        f"[task {part.role}/{part.index}, attempt {part.attempt}; for other tasks: --role, --index]"
                    )
            yield part


class _MissingOutput:
    """Collects the reasons why streams have no output, and reports them at the end (in JSON, as
    records of type `note`).
    """

    def __init__(self, s: Session, pattern: "re.Pattern[str] | None", since: int | None) -> None:
        self._screen, self._pattern, self._since = s.screen, pattern, since
        self._notes: dict[str, tuple[str, str]] = {}
        self._next: dict[str, int] = {}
        self._has_output = False

    def observe(self, stream: str, parts: "Iterator[LogPart]") -> "Iterator[LogPart]":
        has_output, read, note = False, False, ("", "")
        self._next[stream] = self._since or 0
        for part in parts:
            self._next[stream] = max(self._next[stream], part.next_offset)
            note = (part.note, part.sentence) if part.note else note
            read = read or part.next_offset > part.offset
            if part.data or part.dropped:
                self._has_output = has_output = True
                yield part
        if not has_output:
            self._notes[stream] = self._reason(stream, read, note)

    def report(self) -> None:
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
        if not self._has_output:
            for sentence in dict.fromkeys(sentence for _, sentence in self._notes.values()):
                self._screen.message(f"[{sentence}]")
        if self._since is not None:
            for at in self._next.values():
                self._screen.message(f"[to continue from here: --since-byte {at}]")

    def _reason(self, stream: str, read: bool, note: tuple[str, str]) -> tuple[str, str]:
        if note[0]:
            return note
        if self._pattern is not None and read:
            return "noMatch", f"no line of {stream} matches {self._pattern.pattern!r}"
        if self._since:
            return "nothingYet", f"no output on {stream} from byte {self._since} on"
        return "unknown", f"no output on {stream}"
