"""`jobscribe job list` and `jobscribe job tag`: jobs with state and command, and the tags of a job, by
which lists are filtered.
"""

import time
from typing import Any

import click

from ..session.job_names import resolve_job
from ..session.session import command, session
from ..terminal.quantities import duration, moment

_HEADS = ("JOB", "STATE", "QUEUED", "DURATION", "REASON", "KIND", "COMMAND")
#: Characters of a command in the table.
_COMMAND_CHARS = 60
_STATES = ["pending", "running", "completed", "canceled", "error"]


@command(name="list")
@click.option("--all-users", is_flag=True, help="Jobs of all users.")
@click.option(
    "--state", "--status", "status", type=click.Choice(_STATES), help="Only jobs in this state."
)
@click.option("--active", is_flag=True, help="Only pending or running jobs.")
@click.option(
    "--tag", "tags", multiple=True, metavar="TAG", help="Only jobs with this tag, or one of these."
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="Maximum number of jobs.",
)
@click.option(
    "--before",
    type=click.IntRange(1),
    metavar="POSITION",
    help="Continue after the previous page (its `next`).",
)
def list_jobs(
    all_users: bool,
    status: str | None,
    active: bool,
    tags: tuple[str, ...],
    limit: int,
    before: int | None,
) -> None:
    """List jobs, newest change first."""
    s = session()
    page = s.client().jobs(
        all_users=all_users,
        status=status,
        active=True if active else None,
        before=before,
        limit=limit,
        commands=True,
        tags=tags,
    )
    if s.screen.json:
        s.screen.value("jobscribe.job.list/1", {"items": page.jobs, "next": page.next})
        return
    s.screen.table(_HEADS, [_row(r) for r in page.jobs])
    if page.next is not None and len(page.jobs) == limit:
        s.screen.message(f"there may be more jobs: --before {page.next}")


@command()
@click.argument("name", metavar="JOB")
@click.argument("change", type=click.Choice(["add", "remove"]), required=False)
@click.argument("tags", nargs=-1, metavar="[TAG]...")
def tag(name: str, change: str | None, tags: tuple[str, ...]) -> None:
    """Show the tags of a job, add tags to it, or remove them. `job list --tag` finds jobs by tags."""
    if change is not None and not tags:
        raise click.UsageError(f"'{change}' requires at least one TAG")
    s = session()
    jid = resolve_job(s, name)
    have = s.client_for(jid).tag(jid, **({change: tags} if change else {}))
    if s.screen.json:
        s.screen.value("jobscribe.job.tag/1", {"computeJid": jid, "tags": have})
        return
    s.screen.message(f"{jid}: {'tags: ' + ', '.join(have) if have else 'no tags'}")


def _row(row: dict[str, Any]) -> list[str]:
    started, ended = row.get("startedAt"), row.get("endedAt")
    took = "-" if started is None else duration((time.time() if ended is None else ended) - started)
    text = row.get("command") or f"({row['simulationType']})"
    text = f"{row['name']}: {text}" if row.get("name") else text
    command_ = text if len(text) <= _COMMAND_CHARS else text[: _COMMAND_CHARS - 3] + "..."
    return [
        row["jid"],
        row["state"],
        moment(row["queuedAt"]),
        took,
        row.get("reason") or "-",
        row["kind"],
        command_,
    ]
