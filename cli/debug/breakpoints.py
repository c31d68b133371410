"""`jobscribe debug list`: the processes of jobs that wait for a debugger."""

import os
import time
from typing import Any

import click

from ..session.job_names import resolve_job
from ..session.session import Session, command, session
from ..terminal.quantities import duration

_HEADS = ("ID", "JOB", "TASK", "HOST", "PID", "WHERE", "WAITS", "TIME LIMIT")


@command(name="list")
@click.argument("name", required=False, metavar="[JOB]")
def list_stops(name: str | None) -> None:
    """List the processes of your jobs that wait for a debugger: at a breakpoint(), or at an uncaught
    exception. WAITS: when the process continues by itself. TIME LIMIT: how much is left of the
    run's.
    """
    s = session()
    jid = None if name is None else resolve_job(s, name)
    answer = (s.client() if jid is None else s.client_for(jid)).debug_list(jid)
    if s.screen.json:
        s.screen.value("jobscribe.debug.list/1", answer)
        return
    s.screen.table(_HEADS, [_row(stop) for stop in answer["stops"]])
    for note in answer["notes"]:
        s.screen.message(note)


def _row(stop: dict[str, Any]) -> list[str]:
    left = stop["timeLimitLeftSecs"]
    waits = "attached" if stop["attached"] else duration(max(0.0, stop["until"] - time.time()))
    return [
        stop["id"],
        stop["computeJid"],
        f"{stop['role']}/{stop['index']}" + rank(stop),
        stop["host"],
        str(stop["pid"]),
        place(stop),
        waits,
        "-" if left is None else duration(max(0.0, left)),
    ]


def stops_of(s: Session, name: str) -> list[dict[str, Any]]:
    """Return the stop with this id, or else those of this job. Raises Refusal, ClientError."""
    stops: list[dict[str, Any]] = s.client().debug_list()["stops"]
    found = [stop for stop in stops if stop["id"] == name]
    if not found:
        jid = resolve_job(s, name)
        found = s.client_for(jid).debug_list(jid)["stops"]
    return found


def rank(stop: dict[str, Any]) -> str:
    """Return the rank of a process of a parallel program."""
    return "" if stop.get("rank") is None else f" rank {stop['rank']}"


def place(stop: dict[str, Any]) -> str:
    """Return file and line of a stop, and its exception."""
    where = f"{os.path.basename(stop['file'])}:{stop['line']} {stop['function']}"
    return f"{where}: {stop['error'][:60]}" if stop["kind"] == "error" else where
