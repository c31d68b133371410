"""The command `trace`: the timeline of a job, op, request, container, Slurm job or agent."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ..session.job_names import is_full_jid, resolve_job
from ..session.session import Session, command, session
from .phase_bars import picture

if TYPE_CHECKING:
    from ...client.sync_client import Client

#: A shorter name is a Slurm job number or the beginning of a simulation id.
MIN_ID_CHARS = 4
#: Characters of an event's text before its sentence: time and interval.
_SENTENCE_AT = 36
_ID = re.compile(r"[A-Za-z0-9_.:@+-]{1,100}\Z", re.ASCII)
_SIMULATION = re.compile(r"[A-Za-z0-9]{1,8}(-[A-Za-z0-9_]*)?\Z", re.ASCII)


@command()
@click.argument("name", metavar="ID")
@click.option(
    "--all-users",
    is_flag=True,
    help="Search the jobs of all users. A complete computeJid needs no such option.",
)
@click.option(
    "--events",
    is_flag=True,
    help="Only events, without lines of log files.",
)
@click.option(
    "--perfetto",
    metavar="FILE",
    help="Also write a trace file for ui.perfetto.dev (or chrome://tracing).",
)
def trace(name: str, all_users: bool, events: bool, perfetto: str | None) -> None:
    """Show the timeline of a job, op, request, container, Slurm job or agent, by its id or a
    beginning of the id. Times are UTC.
    """
    s = session()
    jid = resolve_job(s, name) if name == "last" or is_full_jid(name) else None
    client = s.client() if jid is None else s.client_for(jid)
    answer = _fetch(client, jid or name, all_users, not events)
    if perfetto is not None:
        _export(s, answer, perfetto)
    if s.screen.json:
        s.screen.value("jobscribe.trace/1", answer)
        return
    for line in _lines(jid or name, answer):
        s.screen.line(line)
    for offset in answer.get("clocks", []):
        s.screen.message(str(offset.get("text")))
    for sentence in answer.get("gaps", []):
        s.screen.message(sentence)


def _fetch(client: "Client", name: str, all_users: bool, logs: bool) -> dict[str, Any]:
    """Return the supervisor's reply. A name that is not found is also tried as a simulation id of
    this user.
    """
    from ...client.api.errors import ClientError
    from ...protocol.errors import Refusal

    if not _ID.match(name):
        raise Refusal(
            "badRequest",
            f"not an id: {ascii(name)[:60]}; ids consist of letters, digits and _ . : @ + -",
        )
    own = f"{client.uid}-{name}"
    if len(name) < MIN_ID_CHARS and not name.isdigit():
        return client.trace(own, all_users=all_users, logs=logs)
    try:
        return client.trace(name, all_users=all_users, logs=logs)
    except ClientError as e:
        if e.code != "notFound" or not _SIMULATION.match(name):
            raise
        first = e
    try:
        return client.trace(own, all_users=all_users, logs=logs)
    except ClientError as e:
        raise (
            e if "; near it: " in e.sentence and "; near it: " not in first.sentence else first
        ) from None


def _export(s: Session, answer: dict[str, Any], file: str) -> None:
    import json

    from ...protocol.errors import Refusal
    from .perfetto import chrome_trace

    try:
        with open(file, "w", encoding="utf-8") as f:
            json.dump(chrome_trace(answer), f)
    except OSError as e:
        raise Refusal("badRequest", f"{file} cannot be written: {e.strerror}") from None
    s.screen.message(
        f"wrote {file}: open it in ui.perfetto.dev, which reads it in the browser without an upload"
    )


def _lines(name: str, answer: dict[str, Any]) -> Iterator[str]:
    matches = answer.get("matches") or []
    if len(matches) > 1:
        more = " and more" if answer.get("moreMatches") else ""
        yield f"{len(matches)}{more} ids match {name}, newest first:"
    if len(matches) > 1 or any(
        m.get("name") != name or m.get("what") not in ("job", "agent") for m in matches
    ):
        yield from (f"  {_match(m)}" for m in matches)
    others = answer.get("others") or []
    if len(matches) > 1 + len(others):
        yield "give more characters of one id to see its timeline"
        return
    for timeline in (answer, *others):
        yield from _timeline(timeline)
        yield from picture(timeline.get("phases") or [])


_KINDS = {
    "job": "job",
    "op": "op",
    "request": "request",
    "slurm": "Slurm job",
    "container": "container",
    "agent": "agent",
    "agentId": "agentId (its first four characters)",
}


def _match(m: dict[str, Any]) -> str:
    owner = m.get("jid") or m.get("agent")
    of = "" if m.get("name") == owner else f" of {owner}"
    status = f", {m['status']}" if m.get("status") else ""
    return f"{_KINDS.get(str(m.get('what')), m.get('what'))} {m.get('name')}{of}{status}"


def _timeline(answer: dict[str, Any]) -> Iterator[str]:
    """Yield the lines in order, with the waits between them. A heading names the source whenever it
    changes. The cause of an effect follows its log line.
    """
    events = {i.get("position"): i for i in answer.get("items") or []}
    waits = {w.get("before"): w for w in answer.get("waits") or []}
    source = None
    for item in ordered(answer.get("items") or [], answer.get("lines") or []):
        wait = waits.get(item.get("position"))
        if wait is not None:
            yield f"    ... {wait.get('text')}"
        if item.get("source") != source:
            source = item.get("source")
            yield str(source)
        yield f"  {item.get('text', '')}"
        cause = item.get("cause") or {}
        if "name" in cause:
            yield f"    cause: {_cause(cause, events.get(cause.get('position')))}"


def _cause(cause: dict[str, Any], event: dict[str, Any] | None) -> str:
    """Return the name of a cause, with the sentence of the event if the timeline has it."""
    version = f"@{cause['version']}" if "version" in cause else ""
    sentence = "" if event is None else f", {str(event['text'])[_SENTENCE_AT:].strip()}"
    return f"{cause['name']}{version}{sentence}"


def ordered(items: list[dict[str, Any]], lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge events and log lines into one timeline. Text log lines have only whole seconds. So
    within a second, the front end comes first, then the event log, then the other logs. If all log
    lines have exact times, the order is by time alone.
    """
    exact = all(line.get("exact") for line in lines)
    timed = [*_timed(items, exact), *_timed(lines, exact)]
    return [item for _, item in sorted(timed, key=lambda t: (t[0], _rank(str(t[1].get("source")))))]


def _timed(items: list[dict[str, Any]], exact: bool) -> list[tuple[float, dict[str, Any]]]:
    """Return each item with its time on the timeline. A clock that was set back does not change the
    order of lines within a log.
    """
    newest: dict[str, float] = {}
    out = []
    for item in items:
        log = str(item.get("source")) if "position" not in item else ""
        at = float(item.get("orderAt", item.get("at", 0)))
        newest[log] = max(newest.get(log, 0.0), at if exact else int(at))
        out.append((newest[log], item))
    return out


_FILES = ("/server.log", "(events)", "/supervisor.log", "/keeper.log", "/agent.log")


def _rank(source: str) -> int:
    return next(
        (n for n, end in enumerate(_FILES) if source.endswith(end)), _FILES.index("(events)")
    )
