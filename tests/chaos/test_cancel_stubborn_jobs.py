"""Stubborn jobs that are canceled, exceed their time limit, or end: all their processes are gone in
time, their slots are free, and the reason is true.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from consistency_check import check_books
from oracle import Oracle
from site_locations import ROOM, new_site
from stubborn_jobs import ANIMALS, CODE, ends, stays
from supervisor_process import (
    SupervisorProcess,
    fresh_nap,
    jid_of,
    napping,
    naps,
    req_id,
    shell,
    until,
)

GRACE_SECS = 0.5
#: A stopped job is gone within its grace and this time.
GONE_SECS = 1.0
LIMIT_SECS = 3.0


@pytest.fixture(scope="module")
def site(who: int | None) -> Iterator[SupervisorProcess]:
    """As many slots as there are animals: a slot that is not released is missing for the next job."""
    site = new_site(who, f"slots.local_sequential={len(ANIMALS)}")
    try:
        yield site.start()
    finally:
        left = site.end()
    assert left == {}, "processes outlived their keeper"


class Cage:
    """One animal and its run. Each has its own user, so that its processes cannot be confused with
    others.
    """

    def __init__(self, n: int, kind: str, way: str, oracle: Oracle) -> None:
        self.nap, self.animal = fresh_nap(), ANIMALS[kind]
        text = ends(self.animal, self.nap) if way == "ends" else stays(self.animal, self.nap)
        limit = {"timeLimitSecs": LIMIT_SECS} if way == "runs out of time" else {}
        self.kind, self.oracle = kind, oracle
        self.run = oracle.job(text, uid=f"ZooUsr{n:02d}", graceSecs=GRACE_SECS, **limit)

    def ready(self) -> bool:
        return (
            any(s.what == "ready" for s in self.oracle.stamps(self.run))
            and len(naps(self.nap)) >= self.animal.naps
        )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["is canceled", "runs out of time", "ends"])
def test_nothing_of_any_is_left(site: SupervisorProcess, way: str) -> None:
    oracle = Oracle(site)
    cages = [Cage(n, kind, way, oracle) for n, kind in enumerate(ANIMALS)]
    for cage in cages:
        oracle.submit(cage.run, req_id())
    if way == "is canceled":
        for cage in cages:
            until(lambda cage=cage: cage.ready(), f"the one that {cage.kind} is ready")
        for cage in cages:
            assert site.cancel(cage.run)["state"] == "canceled"
    for cage in cages:
        until(lambda cage=cage: oracle.started(cage.run), "it started")
    gone = _gone(cages)
    for cage in cages:
        said = site.wait(cage.run)
        _check(cage, said, way)
        if way == "is canceled":
            assert gone[cage.kind] <= (GRACE_SECS + GONE_SECS) * ROOM, cage.kind
        elif way == "runs out of time":
            assert said["canceledAfterSecs"] == LIMIT_SECS
            assert (
                said["computeJobEnd"] - said["computeJobStart"]
                <= LIMIT_SECS + (GRACE_SECS + GONE_SECS) * ROOM
            ), cage.kind
    print(
        f"{way}: {len(cages)} jobs, the last was gone after {max(gone.values()):.2f} s ({max(gone, key=lambda k: gone[k])})"
    )
    _check_slots(site, cages)
    check_books(site)
    oracle.check(killed=frozenset(jid_of(c.run) for c in cages) if way == "ends" else frozenset())


def _gone(cages: list[Cage]) -> dict[str, float]:
    """Return for each cage the seconds until none of its processes was seen any more. Check that
    none came back.
    """
    begun = time.monotonic()
    out: dict[str, float] = {}

    def look() -> bool:
        asleep = napping(cage.nap for cage in cages)
        for cage in cages:
            if asleep[cage.nap] or cage.oracle.alive(cage.run):
                out.pop(cage.kind, None)
            else:
                out.setdefault(cage.kind, time.monotonic() - begun)
        return len(out) == len(cages)

    until(look, "nothing of any is left", 60, pause=0.1)
    return out


def _check(cage: Cage, said: dict[str, Any], way: str) -> None:
    assert naps(cage.nap) == [], cage.kind
    wanted = {
        "is canceled": ("canceled", "cancel", "cancel"),
        "runs out of time": ("canceled", "timeLimit", "timeLimit"),
        "ends": ("error", "exit", None),
    }[way]
    assert (said["state"], said["reason"], said["exit"]["stopReason"]) == wanted, (cage.kind, said)
    assert said["exit"]["source"] == "keeper"
    if way == "ends":
        assert said["exit"]["code"] == CODE, (cage.kind, said)


def _check_slots(site: SupervisorProcess, cages: list[Cage]) -> None:
    """Check that each user's next job starts: all slots were released, all at once."""
    nap = fresh_nap()
    runs = [shell(f"sleep {nap}", cage.run["uid"], graceSecs=0) for cage in cages]
    for run in runs:
        site.submit(run)
    until(lambda: len(naps(nap)) == len(runs), "all slots are taken again")
    for run in runs:
        site.cancel(run)
    for run in runs:
        site.wait(run)
