"""`jobscribe db rebuild`: records and index written again from the log."""

from ..session.session import command, session
from .store_access import (
    head_of,
    of_site,
    print_result,
    progress_reporter,
    shard_option,
    store_roots,
)


@command()
@shard_option
def rebuild(shard: int | None) -> None:
    """Write index and records again from the log. Only while no supervisor uses the root."""
    from ...db.maintenance import rebuild as rebuilding

    s = session()
    results = {
        k: rebuilding.rebuild(root, progress_reporter(s)) for k, root in store_roots(s, shard)
    }
    lines = [
        f"{head_of(k)}{done.events} events, {done.jobs} jobs"
        + (f", {done.records_removed} records removed" if done.records_removed else "")
        for k, done in results.items()
    ]
    print_result(s, "jobscribe.db.rebuild/1", lines, of_site(results))
