"""`jobscribe job purge`: removal of the files of jobs that are over."""

import sys

import click

from ...session.job_names import resolve_job
from ...session.session import command, session


@command()
@click.argument("names", nargs=-1, required=True, metavar="JOB...")
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(names: tuple[str, ...], yes: bool) -> None:
    """Remove the run directories and outputs of jobs that are over, to free disk space. Their status,
    exits and history stay.

    An active job is refused, and so is a job whose files are on a cluster.
    """
    s = session()
    jids = list(dict.fromkeys(resolve_job(s, name) for name in names))
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise click.UsageError(
                f"this is not a terminal, and the files of {', '.join(jids)} would go: add --yes"
            )
        click.confirm(f"Remove all files of {', '.join(jids)}?", abort=True, err=True)
    states = []
    for jid in jids:
        states.append(s.client_for(jid).purge(jid))
        if not s.screen.json:
            s.screen.message(f"{jid}: its files are removed")
    if s.screen.json:
        s.screen.value("jobscribe.job.purge/1", {"items": [state.raw for state in states]})
