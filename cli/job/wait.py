"""`jobscribe job wait`: waiting for the end of jobs and groups."""

import time
from typing import TYPE_CHECKING

import click

from ..session.job_names import resolve_job
from ..session.session import Session, command, session
from ..terminal.quantities import SECS

if TYPE_CHECKING:
    from ...client.api.replies import RunState

TIMED_OUT = 124


@command()
@click.argument("names", nargs=-1, required=True, metavar="JOB...")
@click.option(
    "--timeout", type=SECS, metavar="SECS", help="Maximum time to wait; then exit with 124."
)
@click.option("--group", is_flag=True, help="The names are groups: wait for all their runs.")
def wait(names: tuple[str, ...], timeout: float | None, group: bool) -> None:
    """Wait until the jobs are over. Exits with the job's code (128+n for signal n); for several
    jobs, with the first code that is not 0.
    """
    s = session()
    if group:
        from .group import wait_for_groups

        wait_for_groups(s, names, timeout)
    begun = time.monotonic()
    jids = [resolve_job(s, name) for name in names]
    states = [_wait_for(s, jid, begun, timeout) for jid in jids]
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
                s.screen.message(f"{jid} {state.sentence()}")
    raise SystemExit(TIMED_OUT if late else next((c for c in codes if c), 0))


def _wait_for(s: Session, jid: str, begun: float, timeout: float | None) -> "RunState":
    """Return the state of the job when it is over or the timeout has passed (seconds after
    `begun`).
    """
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
