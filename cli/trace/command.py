"""`trace`: everything that happened to a job, an op, a request, a container, a job of Slurm's or an
agent, on one timeline.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ..session.job_names import is_full_jid, resolve_job
from ..session.session import Session, command, session
from .phase_bars import picture

if TYPE_CHECKING:
    from ...client.sync_client import Client

#: What is shorter is the number of a job of Slurm's, or the beginning of a simulation id.
LEAST = 4
_ID = re.compile(r"[A-Za-z0-9_.:@+-]{1,100}\Z", re.ASCII)
_SIMULATION = re.compile(r"[A-Za-z0-9]{1,8}(-[A-Za-z0-9_]*)?\Z", re.ASCII)


@command()
@click.argument("name", metavar="ID")
@click.option(
    "--all-users",
    is_flag=True,
    help="Look among the jobs of everybody. A computeJid in full needs no such option.",
)
@click.option(
    "--events",
    is_flag=True,
    help="Only what the event log says, without the lines of the log files.",
)
@click.option(
    "--perfetto",
    metavar="FILE",
    help="Also write it as a trace that ui.perfetto.dev (or chrome://tracing) opens.",
)
def trace(name: str, all_users: bool, events: bool, perfetto: str | None) -> None:
    """Show the whole way of a job, op, request, container, Slurm job or agent: any id, or the
    beginning of one. Times are UTC.
    """
    s = session()
    jid = resolve_job(s, name) if name == "last" or is_full_jid(name) else None
    client = s.client() if jid is None else s.client_for(jid)
    answer = _asked(client, jid or name, all_users, not events)
    if perfetto is not None:
        _export(s, answer, perfetto)
    if s.screen.json:
        s.screen.value("jobscribe.trace/1", answer)
        return
    for line in _told(jid or name, answer):
        s.screen.line(line)
    for offset in answer.get("clocks", []):
        s.screen.message(str(offset.get("text")))
    for sentence in answer.get("gaps", []):
        s.screen.message(sentence)


def _asked(client: "Client", name: str, all_users: bool, logs: bool) -> dict[str, Any]:
    """People know their jobs by the simulation id, after their own uid: what is nothing by itself
    is looked for there.
    """
    from ...client.api.errors import ClientError
    from ...protocol.errors import Refusal

    if not _ID.match(name):
        raise Refusal(
            "badRequest",
            f"an id is made of letters, digits and _ . : @ + -; got {ascii(name)[:60]}",
        )
    own = f"{client.uid}-{name}"
    if len(name) < LEAST and not name.isdigit():
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
        f"{file}: open it in ui.perfetto.dev, which reads it in the browser and sends it nowhere"
    )


def _told(name: str, answer: dict[str, Any]) -> Iterator[str]:
    matches = answer.get("matches") or []
    if len(matches) > 1:
        more = " and more" if answer.get("moreMatches") else ""
        yield f"{name} is the name, or the beginning of the name, of {len(matches)}{more}, newest first:"
    if len(matches) > 1 or any(
        m.get("name") != name or m.get("what") not in ("job", "agent") for m in matches
    ):
        yield from (f"  {_match(m)}" for m in matches)
    others = answer.get("others") or []
    if len(matches) > 1 + len(others):
        yield "give more of the one that is meant, to see its way"
        return
    for timeline in (answer, *others):
        yield from _timeline(timeline)
        yield from picture(timeline.get("phases") or [])


_WHATS = {
    "job": "job",
    "op": "op",
    "request": "request",
    "slurm": "Slurm job",
    "container": "container",
    "agent": "agent",
    "agentId": "agentId (its first four characters)",
}


def _match(m: dict[str, Any]) -> str:
    whose = m.get("jid") or m.get("agent")
    of = "" if m.get("name") == whose else f" of {whose}"
    status = f", {m['status']}" if m.get("status") else ""
    return f"{_WHATS.get(str(m.get('what')), m.get('what'))} {m.get('name')}{of}{status}"


def _timeline(answer: dict[str, Any]) -> Iterator[str]:
    """The lines in order, with what was waited for between them; where the next one comes from
    somewhere else, that is said above it.
    """
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


def ordered(items: list[dict[str, Any]], lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events and lines of logs on one timeline. Lines of text have whole seconds: within one, the
    front end comes first, then the event log, then those who act on it. Where all lines say more
    than that, their times count.
    """
    exact = all(line.get("exact") for line in lines)
    timed = [*_timed(items, exact), *_timed(lines, exact)]
    return [item for _, item in sorted(timed, key=lambda t: (t[0], _rank(str(t[1].get("source")))))]


def _timed(items: list[dict[str, Any]], exact: bool) -> list[tuple[float, dict[str, Any]]]:
    """Each with the moment in which it stands. A clock that was set back does not change the order
    in which a log was written.
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
