"""`job why` and `trace`: what happened to a job, and why it is as it is."""

from typing import Any

import click

from .names import whole
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
    for label, values in _sections(answer):
        for i, value in enumerate(values):
            s.screen.line(f"  {label if i == 0 else '':<{_WIDTH}}{value}")


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
@click.option("--all-users", is_flag=True, help="Look among the jobs of everybody.")
def trace(name: str, all_users: bool) -> None:
    """Show the whole way of a job, op, request or agent: any id, or a unique beginning of one."""
    s = session()
    answer = s.client().trace(name if name != "last" else whole(s, name), all_users=all_users)
    if s.screen.json:
        s.screen.value("jobscribe.trace/1", answer)
        return
    for line in _timeline(answer.get("items", [])):
        s.screen.line(line)


def _timeline(items: list[dict[str, Any]]) -> list[str]:
    """The lines in order; where the next one comes from somewhere else, that is said above it."""
    out: list[str] = []
    source = None
    for item in items:
        if item.get("source") != source:
            source = item.get("source")
            out.append(str(source))
        out.append(f"  {item.get('text', '')}")
    return out
