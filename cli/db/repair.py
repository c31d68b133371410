"""`jobscribe db repair`: repair of a damaged event store."""

import sys
from typing import TYPE_CHECKING

import click

from ..session.session import command, session
from .store_access import print_result, progress_reporter, store_root

if TYPE_CHECKING:
    from ...db.maintenance.repair import Damage


@command()
@click.option("--yes", is_flag=True, help="Repair without asking.")
def repair(yes: bool) -> None:
    """Report the damage, the events kept and the events lost. Then, after a confirmation, repair
    the store with the intact events.

    The old files are kept. Only while no supervisor uses the root.
    """
    from ...db.maintenance import repair as repairing

    s = session()
    root = store_root(s)
    damage = repairing.examine(root, progress_reporter(s))
    if damage.nothing:
        print_result(
            s, "jobscribe.db.repair/1", ["no fault found"], {"damage": damage, "repaired": None}
        )
        return
    if not yes:
        for line in _damage_lines(damage):
            s.screen.message(line)
        if s.screen.json or not sys.stdin.isatty():
            s.screen.message("nothing was changed: add --yes to repair the store")
            if s.screen.json:
                print_result(s, "jobscribe.db.repair/1", [], {"damage": damage, "repaired": None})
            raise SystemExit(1)
        click.confirm("Repair it now?", abort=True, err=True)
    done = repairing.repair(root, progress=progress_reporter(s))
    lines = [
        *(_damage_lines(damage) if yes else []),
        f"repaired: {done.events} events, {done.jobs} jobs kept",
    ]
    if done.kept_aside:
        lines.append(f"the previous files are in {done.kept_aside}")
    print_result(s, "jobscribe.db.repair/1", lines, {"damage": damage, "repaired": done})


def _damage_lines(damage: "Damage") -> list[str]:
    lines = [damage.path, *(f"  {reason}" for reason in damage.reasons)]
    if not damage.cut:
        return [
            *lines,
            f"the log is intact ({damage.kept_events} events): nothing is lost, derived files are written again",
        ]
    lines.append(
        f"kept: {damage.kept_events} events; nothing is lost up to position {damage.kept_up_to}, the last position was {damage.lost_up_to}"
    )
    if not damage.losses:
        lines.append("lost: no known event; later events may be missing without a trace")
    for loss in damage.losses:
        if loss.stream.startswith("job/"):
            kept = (
                f"set back to its event {loss.kept} at position {loss.up_to}"
                if loss.kept
                else "no event of it is kept"
            )
            lines.append(
                f"lost: {loss.lost} or more events of job {loss.stream.removeprefix('job/')}: {kept}"
            )
        else:
            lines.append(f"lost: {loss.lost} events of {loss.stream}; its other events are kept")
    if damage.jobs_lost > len(damage.named):
        lines.append(f"{damage.jobs_lost} jobs are set back in total, the others are unchanged")
    return lines
