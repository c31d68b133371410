"""`jobscribe db restore`: a backup in place of the event store."""

from pathlib import Path

import click

from ..session.session import command, session
from .store_access import print_result, progress_reporter, store_root


@command()
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Replace an existing store; the old files are kept.")
def restore(source: Path, replace: bool) -> None:
    """Replace the store by the backup SRC, and write all records from it. Only while no supervisor
    uses the root.

    Events after the backup are lost. Their jobs that still run are stopped when the supervisor
    starts.
    """
    from ...db.maintenance import backup as backups

    s = session()
    done = backups.restore(
        store_root(s), source.absolute(), replace=replace, progress=progress_reporter(s)
    )
    lines = [
        f"{done.events} events, {done.jobs} jobs: the log continues from position {done.position}"
    ]
    if done.lost_up_to > done.position:
        lines.append(f"lost: later events, up to position {done.lost_up_to}")
    if done.kept_aside:
        lines.append(f"the previous files are in {done.kept_aside}")
    print_result(s, "jobscribe.db.restore/1", lines, done)
