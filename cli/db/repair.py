"""`jobscribe db repair`: repair of a damaged event store."""

import sys
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
    from ...db.maintenance.repair import Damage, Repaired


@command()
@click.option("--yes", is_flag=True, help="Repair without asking.")
@shard_option
def repair(yes: bool, shard: int | None) -> None:
    """Report the damage, the events kept and the events lost. Then, after a confirmation, repair
    the store with the intact events.

    The old files are kept. Only while no supervisor uses the root. On a site with shards: one shard
    after the other, each with a confirmation of its own.
    """
    s = session()
    results: dict[int | None, dict[str, Any]] = {}
    for k, root in store_roots(s, shard):
        damage, done = _repair(s, root, head_of(k), yes)
        results[k] = {"damage": damage, "repaired": done}
        if not s.screen.json:  # at once: a later shard may be refused
            for line in _result_lines(damage, done, yes):
                s.screen.line(head_of(k) + line)
    print_result(s, "jobscribe.db.repair/1", [], of_site(results))
    if any(r["repaired"] is None and not r["damage"].nothing for r in results.values()):
        raise SystemExit(1)


def _repair(s: Session, root: Path, head: str, yes: bool) -> "tuple[Damage, Repaired | None]":
    """Return the damage, and the result of the repair unless nothing is to do or nobody is there to
    be asked.
    """
    from ...db.maintenance import repair as repairing

    damage = repairing.examine(root, progress_reporter(s))
    if damage.nothing:
        return damage, None
    if not yes:
        for line in _damage_lines(damage):
            s.screen.message(head + line)
        if s.screen.json or not sys.stdin.isatty():
            s.screen.message(f"{head}nothing was changed: add --yes to repair the store")
            return damage, None
        click.confirm(f"{head}Repair it now?", abort=True, err=True)
    return damage, repairing.repair(root, progress=progress_reporter(s))


def _result_lines(damage: "Damage", done: "Repaired | None", yes: bool) -> list[str]:
    if done is None:
        return ["no fault found"] if damage.nothing else []
    lines = [
        *(_damage_lines(damage) if yes else []),
        f"repaired: {done.events} events, {done.jobs} jobs kept",
    ]
    if done.kept_aside:
        lines.append(f"the previous files are in {done.kept_aside}")
    return lines


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
