"""`jobscribe db export`: all events as JSON lines."""

import sys

import click

from ..session.session import command, session
from .store_access import store_root


@command()
@click.option(
    "--after",
    type=click.IntRange(0),
    default=0,
    metavar="POSITION",
    help="Only events after this position.",
)
def export(after: int) -> None:
    """Write all events as JSON lines, oldest first, and verify each."""
    from ...db.maintenance.verification import export as lines

    for line in lines(store_root(session()), after):
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
