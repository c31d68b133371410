"""`db repair|compact|backup|restore`: what replaces the event store of a root, or copies it. All
but `backup` want it out of use.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..session.session import Session, command, session
from .inspection import shown, store_root

if TYPE_CHECKING:
    from ...db.maintenance.compaction import Compacted
    from ...db.maintenance.repair import Damage

DAY = 86_400.0


@command()
@click.option("--yes", is_flag=True, help="Do it without asking.")
def repair(yes: bool) -> None:
    """Say what is damaged, what would be kept and what is lost; then, if that is wanted, keep what
    is whole and go on from it.

    The old files are kept aside. Only while no supervisor uses the root.
    """
    from ...db.maintenance import repair as repairing

    s = session()
    root = store_root(s)
    damage = repairing.examine(root, shown(s))
    if damage.nothing:
        _answer(
            s, "jobscribe.db.repair/1", ["nothing is wrong"], {"damage": damage, "repaired": None}
        )
        return
    if not yes:
        for line in _damage_lines(damage):
            s.screen.say(line)
        if s.screen.json or not sys.stdin.isatty():
            s.screen.say("nothing was done: say --yes to repair it")
            if s.screen.json:
                _answer(s, "jobscribe.db.repair/1", [], {"damage": damage, "repaired": None})
            raise SystemExit(1)
        click.confirm("Repair it now?", abort=True, err=True)
    done = repairing.repair(root, progress=shown(s))
    lines = [
        *(_damage_lines(damage) if yes else []),
        f"repaired: {done.events} events, {done.jobs} jobs are kept",
    ]
    if done.kept_aside:
        lines.append(f"what was there before is in {done.kept_aside}")
    _answer(s, "jobscribe.db.repair/1", lines, {"damage": damage, "repaired": done})


def _damage_lines(damage: "Damage") -> list[str]:
    lines = [damage.path, *(f"  {reason}" for reason in damage.reasons)]
    if not damage.cut:
        return [
            *lines,
            f"the log is whole ({damage.kept_events} events): nothing is lost, what is derived from it is made anew",
        ]
    lines.append(
        f"kept: {damage.kept_events} events; up to position {damage.kept_up_to} nothing is lost, {damage.lost_up_to} was the last"
    )
    if not damage.losses:
        lines.append("lost: nothing that can be seen; but nobody can say whether there was more")
    for loss in damage.losses:
        if loss.stream.startswith("job/"):
            kept = (
                f"set back to its event {loss.kept} at position {loss.up_to}"
                if loss.kept
                else "nothing of it is kept"
            )
            lines.append(
                f"lost: {loss.lost} or more events of job {loss.stream.removeprefix('job/')}: {kept}"
            )
        else:
            lines.append(f"lost: {loss.lost} events of {loss.stream}; all others of it are kept")
    if damage.jobs_lost > len(damage.named):
        lines.append(f"{damage.jobs_lost} jobs are set back in all, the others are as they were")
    return lines


@command()
@click.option(
    "--older-than",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    metavar="DAYS",
    help="Fold jobs to which nothing has happened for so long.",
)
@click.option(
    "--history",
    type=click.IntRange(0, 50),
    default=10,
    show_default=True,
    metavar="N",
    help="Earlier runs kept of each.",
)
@click.option("--no-keep", is_flag=True, help="Do not keep the old log aside.")
@click.option("--dry-run", is_flag=True, help="Say what it would save, and change nothing.")
def compact(older_than: float, history: int, no_keep: bool, dry_run: bool) -> None:
    """Make the log shorter: the events of jobs that are long over become one each, with all that
    records show of them.

    Only while no supervisor uses the root (with --dry-run at any time).
    """
    from ...db.maintenance import compaction

    s = session()
    rules: dict[str, Any] = {
        "older_than_secs": older_than * DAY,
        "history": history,
        "progress": shown(s),
    }
    root = store_root(s)
    done = (
        compaction.estimate(root, **rules)
        if dry_run
        else compaction.compact(root, keep=not no_keep, **rules)
    )
    _answer(
        s,
        "jobscribe.db.compact/1",
        _compacted_lines(done, dry_run),
        {"dryRun": dry_run, "changed": done.changed, "compacted": done},
    )


def _compacted_lines(done: "Compacted", dry_run: bool) -> list[str]:
    if not done.changed:
        return [f"{done.events_before} events, {done.jobs} jobs: there is nothing to fold"]
    would = "would become" if dry_run else "became"
    lines = [
        f"{done.events_before} events {would} {done.events_after}: {done.jobs_folded} of {done.jobs} jobs folded,"
        f" about {max(0, done.bytes_saved) / 1e6:.1f} MB saved",
    ]
    if done.kept_aside:
        lines.append(
            f"the log as it was is in {done.kept_aside}; remove it when you do not need it any more"
        )
    return lines


@command()
@click.argument("destination", metavar="DEST", type=click.Path(path_type=Path))
def backup(destination: Path) -> None:
    """Copy the store into DEST, a new or empty folder, as it is at one moment; verified when it is
    written.

    The supervisor may go on meanwhile.
    """
    from ...db.maintenance import backup as backups

    s = session()
    done = backups.backup(store_root(s), destination.absolute(), shown(s))
    lines = [
        f"{done.path}: {done.events} events up to position {done.position}, {done.size / 1e6:.1f} MB, verified"
    ]
    _answer(s, "jobscribe.db.backup/1", lines, done)


@command()
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Although there is a store; it is kept aside.")
def restore(source: Path, replace: bool) -> None:
    """Put the backup SRC in the place of the store, and write all records from it. Only while no
    supervisor uses the root.

    What came after the backup is gone; what still runs of it is stopped when the supervisor starts.
    """
    from ...db.maintenance import backup as backups

    s = session()
    done = backups.restore(store_root(s), source.absolute(), replace=replace, progress=shown(s))
    lines = [
        f"{done.events} events, {done.jobs} jobs: the log goes on from position {done.position}"
    ]
    if done.lost_up_to > done.position:
        lines.append(f"not in it any more: what came after that, up to position {done.lost_up_to}")
    if done.kept_aside:
        lines.append(f"what was there before is in {done.kept_aside}")
    _answer(s, "jobscribe.db.restore/1", lines, done)


def _answer(s: Session, schema: str, lines: list[str], value: Any) -> None:
    if s.screen.json:
        import msgspec

        s.screen.value(schema, msgspec.to_builtins(value))
        return
    for line in lines:
        s.screen.line(line)
