"""`jobscribe job status`: state, times, exit and attempts of jobs."""

from typing import TYPE_CHECKING, Any

import click

from ...protocol.jobs.status import ACTIVE, COMPLETED, PURGED
from ..session.job_names import resolve_job
from ..session.session import command, session
from ..terminal.quantities import duration, moment
from .tasks import at_most, attempt_line, hints

if TYPE_CHECKING:
    from ...client.api.replies import RunState

#: Maximum number of ended attempts and of awaited runs in the output.
_ATTEMPTS_SHOWN, _AFTER_SHOWN = 5, 5
#: Word printed by --porcelain for a state; `failed` for all other states.
_PORCELAIN = {"pending": "running", "running": "running", "completed": "success"}


@command()
@click.option(
    "--porcelain",
    is_flag=True,
    help="Print one word per job, for scripts: running (or waiting), success or failed.",
)
@click.argument("names", nargs=-1, required=True, metavar="JOB...")
def status(names: tuple[str, ...], porcelain: bool) -> None:
    """Show the status of jobs. Exits with 0 for any status, unlike `job wait`."""
    s = session()
    if porcelain and s.screen.json:
        raise click.UsageError("--porcelain and --json exclude each other")
    jids = [resolve_job(s, name) for name in names]
    states = [s.client_for(jid).status(jid) for jid in jids]
    if porcelain:
        for state in states:
            s.screen.line(_porcelain(state))
        return
    if s.screen.json:
        s.screen.value("jobscribe.job.status/1", {"items": [state.raw for state in states]})
        return
    for jid, state in zip(jids, states, strict=True):
        again = state.roles is not None or (state.attempt or 0) > 1
        answer = s.client_for(jid).tasks(jid) if again else None
        for line in _lines(jid, state, answer):
            s.screen.line(line)
        for line in hints(s, jid, answer["tasks"]) if answer is not None else ():
            s.screen.message(line)


def _porcelain(state: "RunState") -> str:
    """Return running, success or failed. A purged run is reported as it ended."""
    if state.state == PURGED:
        return "success" if state.exit is not None and state.exit.succeeded else "failed"
    return _PORCELAIN.get(state.state, "failed")


def _lines(jid: str, state: "RunState", answer: dict[str, Any] | None) -> list[str]:
    waits = state.queue_state if state.state in ACTIVE else None
    rows: list[tuple[str, object]] = [
        ("state", state.sentence()),
        ("waiting", waits),
        *(("after", other) for other in state.waits_for[:_AFTER_SHOWN]),
        ("serial", state.compute_job_serial),
        ("queued", moment(state.compute_job_queued)),
        ("started", moment(state.compute_job_start)),
        ("ended", moment(state.compute_job_end)),
        ("duration", None if state.elapsed_time is None else duration(state.elapsed_time)),
        ("exit", None if state.exit is None else state.exit.sentence()),
        *_attempts(answer),
        *_roles(state),
        ("directory", _directory(state)),
        ("tags", ", ".join(state.raw.get("tags") or ()) or None),
        ("warning", state.raw.get("debugging")),
    ]
    if not state.known:
        rows.insert(1, ("unknown", f"since {moment(state.since)}"))
    return [jid, *(f"  {name:<10}{value}" for name, value in rows if value not in (None, "-"))]


def _directory(state: "RunState") -> str | None:
    """Return the run directory, with its cluster if it is not a path of this site."""
    return (
        f"{state.run_dir} on {state.run_dir_on}"
        if state.run_dir and state.run_dir_on
        else state.run_dir
    )


def _attempts(answer: dict[str, Any] | None) -> list[tuple[str, object]]:
    """Return rows for the current attempt and the ended ones. Empty for a run with a single
    attempt.
    """
    if (
        answer is None
        or not answer["attempt"]
        or (answer["policy"] is None and answer["attempt"] == 1)
    ):
        return []
    over = [a for a in answer["attempts"] if a["endedAt"] is not None][-_ATTEMPTS_SHOWN:]
    if answer["attempt"] == 1 and answer["state"] == COMPLETED:
        return []
    rows: list[tuple[str, object]] = [("attempt", f"{answer['attempt']}{at_most(answer)}")]
    return rows + [("", f"{a['number']} {attempt_line(a, rule=False)}") for a in over]


def _roles(run: "RunState") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for name, counts in (run.roles or {}).items():
        tasks = counts.get("tasks", 0)
        by_state = ", ".join(
            f"{n} {state}" for state, n in counts.items() if state != "tasks" and n
        )
        many = "1 task" if tasks == 1 else f"{tasks} tasks"
        rows.append(("" if rows else "roles", f"{name}: {many}, {by_state or 'none placed'}"))
    return rows
