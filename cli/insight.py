"""`job why` and `trace`: what happened to a job, and why it is as it is."""

from typing import Any

import click

from .names import is_whole, whole
from .session import command, session

_WIDTH = 9


@command()
@click.argument("name", metavar="JOB")
def why(name: str) -> None:
    """Explain why a job waits, or ended as it did: the cause, what shows it, and what to do next."""
    s = session()
    jid = whole(s, name)
    answer = s.client_for(jid).why(jid)
    if s.screen.json:
        s.screen.value("jobscribe.job.why/1", answer)
        return
    cause = f" ({answer['cause']})" if answer.get("cause") else ""
    s.screen.line(f"job {jid} {answer.get('state')}{cause}: {answer.get('sentence')}")
    failed = answer.get("state") == "error" or answer.get("cause") in ("debug_hold", "retry_wait")
    means = _diagnosis(answer.get("diagnosis")) if failed else []
    for label, values in (*means, *_sections(answer)):
        for i, value in enumerate(values):
            s.screen.line(f"  {label if i == 0 else '':<{_WIDTH}}{value}")


def _diagnosis(found: dict[str, Any] | None) -> list[tuple[str, list[str]]]:
    """What the exit table says, in lines; a hint apart, as it may be wrong. Its excerpt is among the last lines anyway."""
    if not found:
        return []
    who = f" (task {found['task']})" if found.get("task") else ""
    lines = [("means", [f"{found['phrase']} ({found['code']}){who}: {found['reason']}"])]
    if (found["type"], found["behavior"]) != ("unknown", "unknown"):
        lines[0][1].append(f"{found['whose']}; {found['again']}")
    if found.get("hint"):
        lines.append(("hint", [f"perhaps {found['hint']}, by this line of its output:", f"  {found['matched']}"]))
    return lines


def _sections(answer: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """(label, lines) in the order in which they are read; what is empty has no lines."""
    return [
        ("evidence", list(answer.get("evidence") or [])),
        ("not", list(answer.get("not") or [])),
        ("said", str(answer.get("terminationMessage") or "").splitlines()),
        ("last", str(answer.get("lastLines") or "").splitlines()),
        ("logs", list(answer.get("logs") or [])),
        ("try", list(answer.get("try") or [])),
    ]


@command()
@click.argument("name", metavar="ID")
@click.option("--all-users", is_flag=True, help="Look among the jobs of everybody. A computeJid in full needs no such option.")
@click.option("--events", is_flag=True, help="Only what the event log says, without the lines of the log files.")
def trace(name: str, all_users: bool, events: bool) -> None:
    """Show the whole way of a job, op, request or agent: any id, or a unique beginning of one. Times are UTC."""
    s = session()
    jid = whole(s, name) if name == "last" or is_whole(name) else None
    client = s.client() if jid is None else s.client_for(jid)
    answer = client.trace(jid or name, all_users=all_users, logs=not events)
    if s.screen.json:
        s.screen.value("jobscribe.trace/1", answer)
        return
    for line in _timeline([*_timed(answer.get("items", [])), *_timed(answer.get("lines", []))]):
        s.screen.line(line)
    for sentence in answer.get("gaps", []):
        s.screen.say(sentence)


def _timed(items: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Each with the second in which it stands. A clock that was set back does not change the order in which a log was written."""
    newest: dict[str, int] = {}
    out = []
    for item in items:
        log = str(item.get("source")) if "position" not in item else ""
        newest[log] = max(newest.get(log, 0), int(item.get("at", 0)))
        out.append((newest[log], item))
    return out


def _timeline(timed: list[tuple[int, dict[str, Any]]]) -> list[str]:
    """The lines in order; where the next one comes from somewhere else, that is said above it.

    A log file has whole seconds only: within one, the front end comes first, then the event log, then those who act on it.
    """
    out: list[str] = []
    source = None
    for _, item in sorted(timed, key=lambda t: (t[0], _rank(str(t[1].get("source"))))):
        if item.get("source") != source:
            source = item.get("source")
            out.append(str(source))
        out.append(f"  {item.get('text', '')}")
    return out


_FILES = ("/server.log", "(events)", "/supervisor.log", "/keeper.log", "/agent.log")


def _rank(source: str) -> int:
    return next((n for n, end in enumerate(_FILES) if source.endswith(end)), _FILES.index("(events)"))
