"""Planted bugs in the lease of a site with several supervisors (see `sim_bugs`): in the product's
`lease_protocol`, and in the counterparts of its fences.
"""

from collections.abc import Callable
from typing import Any

import sim_database
from sim_supervisor import Supervisor

from jobscribe.db.postgres import lease_protocol
from jobscribe.db.postgres.lease_protocol import Connect, Find, LeaseHolder, Lost

Patch = tuple[Any, str, Any]


def commits_in_an_earlier_epoch() -> list[Patch]:
    return [(sim_database.Database, "may_commit", lambda self, epoch, head: head == self.head)]


def answers_without_its_lease() -> list[Patch]:
    return [(Supervisor, "fence_answer", lambda self: _only_checked(self, "answered a request"))]


def acts_without_its_lease() -> list[Patch]:
    def fence_effect(self: Supervisor, effect: Any) -> None:
        _only_checked(self, f"performed {type(effect).__name__}")

    return [(Supervisor, "fence_effect", fence_effect)]


def _only_checked(supervisor: Supervisor, what: str) -> None:
    if supervisor.site is not None:
        supervisor.site.did(supervisor, what)


def counts_its_deadline_from_the_answer() -> list[Patch]:
    def extend(deadline: Any, sent: float) -> None:
        deadline.extend(deadline.now())

    return [(lease_protocol, "_extend", extend)]


def reads_an_outcome_that_may_still_change() -> list[Patch]:
    def outcome(self: LeaseHolder) -> Any:
        while isinstance((yield Connect()), Lost):
            yield lease_protocol.Pause(lease_protocol.RETRY_SECS)
        return (yield Find()) is True

    return [(LeaseHolder, "outcome", outcome)]


def takes_an_unknown_outcome_for_a_failure() -> list[Patch]:
    def outcome(self: LeaseHolder) -> Any:
        yield from self.take_again()
        return False

    return [(LeaseHolder, "outcome", outcome)]


def takes_a_lease_that_has_not_ended() -> list[Patch]:
    return [(sim_database.Database, "free", True), (sim_database, "may_take", lambda *a, **k: True)]


LEASE_BUGS: tuple[Callable[[], list[Patch]], ...] = (
    commits_in_an_earlier_epoch,
    answers_without_its_lease,
    acts_without_its_lease,
    counts_its_deadline_from_the_answer,
    reads_an_outcome_that_may_still_change,
    takes_an_unknown_outcome_for_a_failure,
    takes_a_lease_that_has_not_ended,
)
