"""`job cancel` and `job wait`: what changes a run, and what waits for its end."""

import time
from typing import TYPE_CHECKING

import click

from ..session.job_names import whole
from ..session.session import Session, command, session
from ..terminal.quantities import SECS

if TYPE_CHECKING:
    from ...client.api.replies import RunState

TIMED_OUT = 124


@command()
@click.argument("names", nargs=-1, required=True, metavar="JOB...")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")
@click.option(
    "--group", is_flag=True, help="The names are those of groups: cancel all of their runs."
)
@click.option("--indices", metavar="0-9,20", help="With --group: only these.")
@click.option(
    "--status",
    type=click.Choice(["pending", "running"]),
    help="With --group: only those that are as yet so.",
)
def cancel(
    names: tuple[str, ...], reason: str, group: bool, indices: str | None, status: str | None
) -> None:
    """Cancel jobs. What is canceled stays canceled; a job that is over, or whose command has ended,
    is left as it is.

    One that has failed and is only kept for debugging ends with the exit that it had.
    """
    s = session()
    if not group and (indices is not None or status is not None):
        raise click.UsageError("--indices and --status go with --group")
    if group:
        from .group import cancel_groups

        return cancel_groups(s, names, indices, status, reason)
    states = []
    for name in names:
        jid = whole(s, name)
        state = s.client_for(jid).cancel(jid, reason=reason)
        states.append(state)
        if not s.screen.json:
            s.screen.say(f"{jid} {state.sentence()}{_was_over(state)}")
    if s.screen.json:
        s.screen.value("jobscribe.job.cancel/1", {"items": [state.raw for state in states]})


def _was_over(state: "RunState") -> str:
    """Why a run that was canceled is not called so."""
    if state.state in ("canceled", "pending", "running", "missing"):
        return ""
    if state.raw.get("lateStop") is not None:
        return " (its command had ended before it was canceled: the result is its own)"
    if state.state == "error" and state.raw.get("roles") is not None:
        return " (it had failed before it was canceled, and ended with the exit that it had)"
    return " (it was over before)"


@command()
@click.argument("names", nargs=-1, required=True, metavar="JOB...")
@click.option("--timeout", type=SECS, metavar="SECS", help="Wait no longer; then exit with 124.")
@click.option(
    "--group", is_flag=True, help="The names are those of groups: wait for all of their runs."
)
def wait(names: tuple[str, ...], timeout: float | None, group: bool) -> None:
    """Wait until nothing of the jobs is left. Exits with the job's code (128+n for signal n); of
    several, the first that is not 0.
    """
    s = session()
    if group:
        from .group import wait_for_groups

        wait_for_groups(s, names, timeout)
    begun = time.monotonic()
    jids = [whole(s, name) for name in names]
    states = [_over(s, jid, begun, timeout) for jid in jids]
    late = [jid for jid, state in zip(jids, states, strict=True) if not state.finished]
    codes = [TIMED_OUT if not state.finished else state.shell_code for state in states]
    if s.screen.json:
        items = [
            {**state.raw, "exitCode": None if not state.finished else state.shell_code}
            for state in states
        ]
        s.screen.value("jobscribe.job.wait/1", {"items": items})
    else:
        for jid, state in zip(jids, states, strict=True):
            if state.shell_code or not state.finished:
                s.screen.say(f"{jid} {state.sentence()}")
    raise SystemExit(TIMED_OUT if late else next((c for c in codes if c), 0))


def _over(s: Session, jid: str, begun: float, timeout: float | None) -> "RunState":
    """The state of the job when it is over, or when the time is up."""
    client = s.client_for(jid)
    step = 2.0
    while True:
        passed = time.monotonic() - begun
        left = step if timeout is None else min(step, max(0.0, timeout - passed))
        state = client.wait(jid, timeout=left)
        if state.finished or (timeout is not None and time.monotonic() - begun >= timeout):
            return state
        s.screen.progress(f"waiting for {jid}: {state.sentence()}", time.monotonic() - begun)
        step = 5.0
