"""`jobscribe db restore`: a backup in place of the event store."""

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
    from ...db.maintenance.backup import Restored


@command()
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Replace an existing store; the old files are kept.")
@shard_option
def restore(source: Path, replace: bool, shard: int | None) -> None:
    """Replace the store by the backup SRC, and write all records from it. Only while no supervisor
    uses the root.

    Events after the backup are lost. Their jobs that still run are stopped when the supervisor
    starts. On a site with shards: all shards, from a backup of the site.
    """
    from ...db.maintenance import backup as backups

    s = session()
    source, progress = source.absolute(), progress_reporter(s)
    results: dict[int | None, Restored] = {}
    saved = backups.shards_in(source)
    roots = dict(store_roots(s, shard, also=saved if shard is None else (shard,)))
    shards = {k: root for k, root in roots.items() if k is not None and shard is None}
    if shards:
        restored = backups.restore_shards(shards, source, replace=replace, progress=progress)
        results = dict(restored.items())
    else:
        if shard in saved:
            source /= str(shard)
        for k, root in roots.items():
            results[k] = backups.restore(root, source, replace=replace, progress=progress)
    lines = [head_of(k) + line for k, done in results.items() for line in _restored_lines(done)]
    print_result(s, "jobscribe.db.restore/1", lines, of_site(results))


def _restored_lines(done: "Restored") -> list[str]:
    lines = [
        f"{done.events} events, {done.jobs} jobs: the log continues from position {done.position}"
    ]
    if done.lost_up_to > done.position:
        lines.append(f"lost: later events, up to position {done.lost_up_to}")
    if done.kept_aside:
        lines.append(f"the previous files are in {done.kept_aside}")
    return lines
