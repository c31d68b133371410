"""`jobscribe db compact`: compaction of the log."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..session.session import Session, command, session
from .store_access import (
    head_of,
    of_site,
    print_result,
    progress_reporter,
    shard_option,
    store_roots,
)

if TYPE_CHECKING:
    from ...client import Client
    from ...db.maintenance.new_log import Compacted

DAY_SECS = 86_400.0
#: Attempts to exchange the log of a running supervisor, for example while a backup reads it.
TRIES, RETRY_SECS = 120, 5.0


@command()
@click.option(
    "--older-than",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    metavar="DAYS",
    help="Fold jobs without events for this number of days.",
)
@click.option(
    "--history",
    type=click.IntRange(0, 50),
    default=10,
    show_default=True,
    metavar="N",
    help="Earlier runs to keep of each job.",
)
@click.option("--no-keep", is_flag=True, help="Do not keep a copy of the old log.")
@click.option("--dry-run", is_flag=True, help="Report what would be saved, and change nothing.")
@shard_option
def compact(
    older_than: float, history: int, no_keep: bool, dry_run: bool, shard: int | None
) -> None:
    """Shorten the log: replace the events of each job that ended long ago by one event with all
    data that records show of it.

    A running supervisor exchanges its log for the shorter one between two writes. On a site with shards: the logs of
    all shards, one after the other.
    """
    from ...db.maintenance import compaction
    from ...db.store import head_file

    s = session()
    rules: dict[str, Any] = {
        "older_than_secs": older_than * DAY_SECS,
        "history": history,
        "progress": progress_reporter(s),
    }
    results: dict[int | None, Compacted] = {}
    for k, root in store_roots(s, shard):
        if dry_run:
            done = compaction.estimate(root, **rules)
        elif head_file.is_locked(root / "db"):
            client = s.client() if k is None else s.client_of_root(root)
            done = _compact_online(s, client, root, rules, keep=not no_keep)
        else:
            done = compaction.compact(root, keep=not no_keep, **rules)
        results[k] = done
    values = {
        k: {"dryRun": dry_run, "changed": done.changed, "compacted": done}
        for k, done in results.items()
    }
    lines = [
        head_of(k) + line for k, done in results.items() for line in _compacted_lines(done, dry_run)
    ]
    print_result(s, "jobscribe.db.compact/1", lines, of_site(values))


def _compact_online(
    s: Session, client: "Client", root: Path, rules: dict[str, Any], *, keep: bool
) -> "Compacted":
    """Build the new log here, and have the supervisor exchange it. Raises Refusal, ClientError."""
    import msgspec

    from ...client.api.errors import ClientError
    from ...db.maintenance import online_compaction
    from ...db.maintenance.database import compaction as database_compaction
    from ...db.maintenance.new_log import Compacted
    from ...db.store.database_marker import named_database

    progress = rules["progress"]
    if named_database(root) is None:
        catch_up, discard = online_compaction.catch_up, online_compaction.discard
        done = online_compaction.prepare(root, **rules)
    else:
        catch_up, discard = database_compaction.catch_up, database_compaction.discard
        done = database_compaction.prepare(root, **rules, keep=keep)
    if not done.changed:
        return done
    aside = done.kept_aside
    try:
        for left in reversed(range(TRIES)):
            try:
                exchanged = msgspec.convert(client.operating.log_exchange(keep=keep), Compacted)
                exchanged.kept_aside = exchanged.kept_aside or aside
                return exchanged
            except ClientError as e:
                if e.code != "conflict" or not left:
                    raise
            s.screen.progress("waiting: the log is being read or has grown", float(TRIES - left))
            time.sleep(RETRY_SECS)
            catch_up(root, progress)
        raise AssertionError
    finally:
        discard(root)


def _compacted_lines(done: "Compacted", dry_run: bool) -> list[str]:
    if not done.changed:
        return [f"{done.events_before} events, {done.jobs} jobs: nothing to fold"]
    would = "would become" if dry_run else "became"
    lines = [
        f"{done.events_before} events {would} {done.events_after}: {done.jobs_folded} of {done.jobs} jobs folded,"
        f" about {max(0, done.bytes_saved) / 1e6:.1f} MB saved",
    ]
    if done.kept_aside:
        lines.append(
            f"the previous log is in {done.kept_aside}; remove it when you no longer need it"
        )
    return lines
