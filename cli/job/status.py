"""`job list` and `job status`: how jobs stand."""

import time
from typing import TYPE_CHECKING, Any

import click

from ...protocol.jobs.status import PURGED
from ..session.job_names import whole
from ..session.session import command, session
from ..terminal.quantities import duration, moment
from .tasks import at_most, attempt_line, hints

if TYPE_CHECKING:
    from ...client.api.replies import RunState

_HEADS = ("JOB", "STATE", "QUEUED", "TOOK", "REASON", "KIND", "COMMAND")
#: Of the attempts that are over, and of the runs that are waited for, so many are told.
_ATTEMPTS_SHOWN, _AFTER_SHOWN = 5, 5
#: What --porcelain says; of any other state `failed`.
_WORDS = {"pending": "running", "running": "running", "completed": "success"}
#: Characters of a command in the table.
_COMMAND_CHARS = 60
_STATUSES = ["pending", "running", "completed", "canceled", "error"]


@command()
@click.option("--all-users", is_flag=True, help="Jobs of everybody.")
@click.option(
    "--state", "--status", "status", type=click.Choice(_STATUSES), help="Only jobs in this state."
)
@click.option("--active", is_flag=True, help="Only jobs that are pending or running.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="So many at most."
)
@click.option(
    "--before",
    type=click.IntRange(1),
    metavar="POSITION",
    help="Go on where the last list ended (its `next`).",
)
def list_jobs(
    all_users: bool, status: str | None, active: bool, limit: int, before: int | None
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
    )
    if s.screen.json:
        s.screen.value("jobscribe.job.list/1", {"items": page.jobs, "next": page.next})
        return
    s.screen.table(_HEADS, [_row(r) for r in page.jobs])
    if page.next is not None and len(page.jobs) == limit:
        s.screen.say(f"there may be more: --before {page.next}")


def _row(row: dict[str, Any]) -> list[str]:
    started, ended = row.get("startedAt"), row.get("endedAt")
    took = "-" if started is None else duration((time.time() if ended is None else ended) - started)
    said = row.get("command") or f"({row['simulationType']})"
    command_ = said if len(said) <= _COMMAND_CHARS else said[: _COMMAND_CHARS - 3] + "..."
    return [
        row["jid"],
        row["state"],
        moment(row["queuedAt"]),
        took,
        row.get("reason") or "-",
        row["kind"],
        command_,
    ]


@command()
@click.option(
    "--porcelain",
    is_flag=True,
    help="Print one word a job, for scripts: running (or waiting), success or failed.",
)
@click.argument("names", nargs=-1, required=True, metavar="JOB...")
def status(names: tuple[str, ...], porcelain: bool) -> None:
    """Show how jobs stand. Exits with 0 whatever their status is; `job wait` exits with their code."""
    s = session()
    if porcelain and s.screen.json:
        raise click.UsageError("--porcelain and --json exclude each other")
    jids = [whole(s, name) for name in names]
    states = [s.client_for(jid).status(jid) for jid in jids]
    if porcelain:
        for state in states:
            s.screen.line(_word(state))
        return
    if s.screen.json:
        s.screen.value("jobscribe.job.status/1", {"items": [state.raw for state in states]})
        return
    for jid, state in zip(jids, states, strict=True):
        again = state.roles is not None or (state.attempt or 0) > 1
        answer = s.client_for(jid).tasks(jid) if again else None
        for line in _told(jid, state, answer):
            s.screen.line(line)
        for line in hints(s, jid, answer["tasks"]) if answer is not None else ():
            s.screen.say(line)


def _word(state: "RunState") -> str:
    """running, success or failed; of a purged run as it ended."""
    if state.state == PURGED:
        return "success" if state.exit is not None and state.exit.succeeded else "failed"
    return _WORDS.get(state.state, "failed")


def _told(jid: str, state: "RunState", answer: dict[str, Any] | None) -> list[str]:
    waits = state.queue_state if state.state in ("pending", "running") else None
    rows: list[tuple[str, object]] = [
        ("state", state.sentence()),
        ("waiting", waits),
        *(("after", other) for other in state.waits_for[:_AFTER_SHOWN]),
        ("serial", state.compute_job_serial),
        ("queued", moment(state.compute_job_queued)),
        ("started", moment(state.compute_job_start)),
        ("ended", moment(state.compute_job_end)),
        ("took", None if state.elapsed_time is None else duration(state.elapsed_time)),
        ("exit", None if state.exit is None else state.exit.sentence()),
        *_attempts(answer),
        *_roles(state),
        ("directory", _directory(state)),
    ]
    if not state.known:
        rows.insert(1, ("not known", f"since {moment(state.since)}"))
    return [jid, *(f"  {name:<10}{value}" for name, value in rows if value not in (None, "-"))]


def _directory(state: "RunState") -> str | None:
    """With the cluster, where it is not a path of this site."""
    return (
        f"{state.run_dir} on {state.run_dir_on}"
        if state.run_dir and state.run_dir_on
        else state.run_dir
    )


def _attempts(answer: dict[str, Any] | None) -> list[tuple[str, object]]:
    """The latest, and how those ended that are over; of a run that may have only one, nothing."""
    if (
        answer is None
        or not answer["attempt"]
        or (answer["policy"] is None and answer["attempt"] == 1)
    ):
        return []
    over = [a for a in answer["attempts"] if a["endedAt"] is not None][-_ATTEMPTS_SHOWN:]
    if answer["attempt"] == 1 and answer["state"] == "completed":
        return []
    rows: list[tuple[str, object]] = [("attempt", f"{answer['attempt']}{at_most(answer)}")]
    return rows + [("", f"{a['number']} {attempt_line(a, rule=False)}") for a in over]


def _roles(state: "RunState") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for name, counts in (state.roles or {}).items():
        tasks = counts.get("tasks", 0)
        told = ", ".join(f"{n} {what}" for what, n in counts.items() if what != "tasks" and n)
        many = "1 task" if tasks == 1 else f"{tasks} tasks"
        rows.append(("" if rows else "roles", f"{name}: {many}, {told or 'none placed'}"))
    return rows
