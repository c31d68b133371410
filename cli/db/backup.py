"""`jobscribe db backup`: a verified copy of the event store."""

from pathlib import Path

import click

from ..session.session import command, session
from .store_access import print_result, progress_reporter, store_root


@command()
@click.argument("destination", metavar="DEST", type=click.Path(path_type=Path))
def backup(destination: Path) -> None:
    """Copy a consistent snapshot of the store into DEST, a new or empty folder, and verify it.

    The supervisor may keep running.
    """
    from ...db.maintenance import backup as backups

    s = session()
    done = backups.backup(store_root(s), destination.absolute(), progress_reporter(s))
    lines = [
        f"{done.path}: {done.events} events up to position {done.position}, {done.size / 1e6:.1f} MB, verified"
    ]
    print_result(s, "jobscribe.db.backup/1", lines, done)
