"""`jobscribe job cancel`: cancellation of jobs and groups."""

from typing import TYPE_CHECKING

import click

from ...protocol.jobs.status import CANCELED, ERROR, MISSING, PENDING, RUNNING
from ..session.job_names import resolve_job
from ..session.session import command, session

if TYPE_CHECKING:
    from ...client.api.replies import RunState


@command()
@click.argument("names", nargs=-1, required=True, metavar="JOB...")
@click.option("--reason", default="", metavar="TEXT", help="Reason, for the event log.")
@click.option("--group", is_flag=True, help="The names are groups: cancel all their runs.")
@click.option("--indices", metavar="0-9,20", help="With --group: only these indices.")
@click.option(
    "--status",
    type=click.Choice(["pending", "running"]),
    help="With --group: only runs in this state.",
)
def cancel(
    names: tuple[str, ...], reason: str, group: bool, indices: str | None, status: str | None
) -> None:
    """Cancel jobs. A canceled job stays canceled. A job that is over, or whose command has ended,
    keeps its result.

    A failed job that is only held for debugging ends with its original exit.
    """
    s = session()
    if not group and (indices is not None or status is not None):
        raise click.UsageError("--indices and --status require --group")
    if group:
        from .group import cancel_groups

        return cancel_groups(s, names, indices, status, reason)
    states = []
    for name in names:
        jid = resolve_job(s, name)
        state = s.client_for(jid).cancel(jid, reason=reason)
        states.append(state)
        if not s.screen.json:
            s.screen.message(f"{jid} {state.sentence()}{_unchanged_reason(state)}")
    if s.screen.json:
        s.screen.value("jobscribe.job.cancel/1", {"items": [state.raw for state in states]})


def _unchanged_reason(state: "RunState") -> str:
    """Return why a cancel request did not change the result of a run. Empty if it did."""
    if state.state in (CANCELED, PENDING, RUNNING, MISSING):
        return ""
    if state.raw.get("lateStop") is not None:
        return " (its command had ended before the cancel request; it keeps its result)"
    if state.state == ERROR and state.raw.get("roles") is not None:
        return " (it had failed before the cancel request; it keeps its exit)"
    return " (it was over before the cancel request)"
