"""`jobscribe db backup`: a verified copy of the event store."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..session.session import command, session
from .store_access import (
    head_of,
    of_site,
    print_result,
    progress_reporter,
    shard_option,
    store_roots,
)

if TYPE_CHECKING:
    from ...db.maintenance.backup import BackedUp


@command()
@click.argument("destination", metavar="DEST", type=click.Path(path_type=Path))
@shard_option
def backup(destination: Path, shard: int | None) -> None:
    """Copy a consistent snapshot of the store into DEST, a new or empty folder, and verify it.

    The supervisor may keep running. On a site with shards: all shards, into DEST/0, DEST/1, ...
    """
    from ...db.maintenance import backup as backups

    s = session()
    to, progress = destination.absolute(), progress_reporter(s)
    results: dict[int | None, BackedUp] = {}
    roots = dict(store_roots(s, shard))
    shards = {k: root for k, root in roots.items() if k is not None and shard is None}
    if shards:
        results = dict(backups.backup_shards(shards, to, progress).items())
    else:
        for k, root in roots.items():
            results[k] = backups.backup(root, to, progress)
    lines = [
        f"{head_of(k)}{done.path}: {done.events} events up to position {done.position},"
        f" {done.size / 1e6:.1f} MB, verified"
        for k, done in results.items()
    ]
    print_result(s, "jobscribe.db.backup/1", lines, of_site(results))
