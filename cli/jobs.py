"""`job list` and `job status`: how jobs stand."""

import time
from typing import TYPE_CHECKING, Any

import click

from .names import whole
from .quantities import duration, moment
from .session import command, session

if TYPE_CHECKING:
    from ..client.replies import RunState

_HEADS = ("JOB", "STATUS", "QUEUED", "TOOK", "REASON", "KIND")
_STATUSES = ["pending", "running", "completed", "canceled", "error"]


@command()
@click.option("--all-users", is_flag=True, help="Jobs of everybody.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only jobs with this status.")
@click.option("--active", is_flag=True, help="Only jobs that are pending or running.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="So many at most.")
@click.option("--before", type=click.IntRange(1), metavar="POSITION", help="Go on where the last list ended (its `next`).")
def list_jobs(all_users: bool, status: str | None, active: bool, limit: int, before: int | None) -> None:
    """List jobs, newest change first."""
    s = session()
    page = s.client().jobs(all_users=all_users, status=status, active=True if active else None, before=before, limit=limit)
    if s.screen.json:
        s.screen.value("jobscribe.job.list/1", {"items": page.jobs, "next": page.next})
        return
    s.screen.table(_HEADS, [_row(r) for r in page.jobs])
    if page.next is not None and len(page.jobs) == limit:
        s.screen.say(f"there may be more: --before {page.next}")


def _row(row: dict[str, Any]) -> list[str]:
    started, ended = row.get("startedAt"), row.get("endedAt")
    took = "-" if started is None else duration((time.time() if ended is None else ended) - started)
    return [row["jid"], row["status"], moment(row["queuedAt"]), took, row.get("reason") or "-", row["kind"]]


@command()
@click.argument("names", nargs=-1, required=True, metavar="JOB...")
def status(names: tuple[str, ...]) -> None:
    """Show how jobs stand. Exits with 0 whatever their status is; `job wait` exits with their code."""
    s = session()
    jids = [whole(s, name) for name in names]
    states = [s.client_for(jid).status(jid) for jid in jids]
    if s.screen.json:
        s.screen.value("jobscribe.job.status/1", {"items": [state.raw for state in states]})
        return
    for jid, state in zip(jids, states, strict=True):
        for line in _told(jid, state):
            s.screen.line(line)


def _told(jid: str, state: "RunState") -> list[str]:
    rows: list[tuple[str, object]] = [
        ("state", state.sentence()), ("serial", state.compute_job_serial), ("queued", moment(state.compute_job_queued)),
        ("started", moment(state.compute_job_start)), ("ended", moment(state.compute_job_end)),
        ("took", None if state.elapsed_time is None else duration(state.elapsed_time)),
        ("exit", None if state.exit is None else state.exit.sentence()),
        ("attempt", state.attempt if (state.attempt or 0) > 1 else None), ("directory", state.run_dir),
    ]
    if not state.known:
        rows.insert(1, ("not known", f"since {moment(state.since)}"))
    return [jid, *(f"  {name:<10}{value}" for name, value in rows if value not in (None, "-"))]
