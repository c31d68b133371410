"""Planted bugs about limits of hours in a month."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.effects import SetTimer
from jobscribe.supervisor.core.scheduling import gang_placement, placement
from jobscribe.supervisor.core.state import user_hours
from jobscribe.supervisor.engine import decision_loop

Patch = tuple[Any, str, Any]


def starts_runs_without_hours() -> list[Patch]:
    return [(placement, "_waits_for_hours", lambda tx, key, ticket: False)]


def looks_at_hours_once() -> list[Patch]:
    original = placement._waits_for_hours

    def waits_for_hours(tx: Any, key: Any, ticket: Any) -> bool:
        waits = original(tx, key, ticket)
        tx.caused = [
            c
            for c in tx.caused
            if not (
                isinstance(c.effect, SetTimer) and isinstance(c.effect.timer, timers.HoursCheck)
            )
        ]
        return waits

    return [(placement, "_waits_for_hours", waits_for_hours)]


def forgets_hours_over_a_restart() -> list[Patch]:
    return [(decision_loop, "month_of", lambda wall: 2**40)]


def counts_hours_by_the_wall_clock() -> list[Patch]:
    def secs(world: Any, job: Any, task: Any, now: Any) -> float:
        return 0.0 if task.started_at is None else max(0.0, now.wall - task.started_at)

    return [(user_hours, "_secs", secs)]


def starts_gangs_that_waited_without_hours() -> list[Patch]:
    return [(gang_placement, "user_hours", SimpleNamespace(used_up=lambda *_: None))]


HOUR_BUGS: tuple[Callable[[], list[Patch]], ...] = (
    starts_runs_without_hours,
    looks_at_hours_once,
    forgets_hours_over_a_restart,
    counts_hours_by_the_wall_clock,
    starts_gangs_that_waited_without_hours,
)
