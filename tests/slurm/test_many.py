"""Two users run many short jobs through two agents while the supervisor is killed: no job is lost,
none runs twice, and Slurm gets few queries.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from login_nodes import Users
from observed_runs import ALICE, BOB, PEOPLE, ObservedRun, ObservedSupervisor, ended, houses
from site_locations import dice, share
from slurm_cluster import OVER, Slurm
from supervisor_process import until

#: Jobs of each user.
JOBS = int(os.environ.get("JOBS", share(12, 100)))
#: Minimum interval between queries to Slurm (seconds).
ASKED_SECS = 2.0
#: Extra queries when an agent starts or a job ends.
BESIDES = 10


@pytest.fixture
def observed(_cluster: tuple[Slurm, Users]) -> Iterator[ObservedSupervisor]:
    with houses(*_cluster, fields={"pollSecs": ASKED_SECS, "pollMaxSecs": 30}) as observed:
        yield observed
        print(observed.check())


@pytest.mark.timeout(200 + 2 * JOBS * 4)
def test_none_is_lost_and_none_is_doubled(observed: ObservedSupervisor) -> None:
    chance, begun = dice("slurm/many"), time.monotonic()
    cases: list[tuple[int, ObservedRun]] = []
    for _ in range(JOBS):
        for uid in PEOPLE:
            code = chance.choice((0, 0, 3))
            cases.append(
                (
                    code,
                    ObservedRun(
                        observed,
                        f"sleep 0.0{chance.randrange(10)}; exit {code}",
                        uid=uid,
                        batch={"memoryMb": 20},
                    ).submit(),
                )
            )
    until(lambda: _done(observed) >= len(cases) // 3, "a share of them is done", 60 + 2 * JOBS, 0.1)
    observed.restart()
    said = ended([case for _, case in cases], 120 + 4 * JOBS, go=False)
    took = time.monotonic() - begun
    for code, case in cases:
        assert (said[case]["exit"]["code"], said[case]["exit"]["source"]) == (code, "script"), said[
            case
        ]
        assert [s.what for s in observed.oracle.stamps(case.run)] == ["start", "end"], str(case)
    names = [
        job.name
        for job in observed.slurm.queued(active=False)
        if job.name.startswith(tuple(f"js-{c.jid}-" for _, c in cases))
    ]
    assert len(set(names)) == len(names) == len(cases), "each is one job of Slurm's"
    assert {job.state for job in observed.slurm.queued(active=False)} <= OVER
    _counted(observed, took, len(cases))


def _done(observed: ObservedSupervisor) -> int:
    return sum(s.what == "end" for s in observed.oracle.stamps())


def _counted(observed: ObservedSupervisor, took: float, jobs: int) -> None:
    """Check that one query serves all jobs of an agent."""
    calls = observed.calls()
    count = Counter(name for _, name, _ in calls)
    minutes = took / 60
    asked = count["squeue"] + count["sacct"]
    print(
        f"{jobs} jobs of 2 users in {took:.1f} s, one kill of the supervisor; Slurm's programs: {dict(count)}; "
        f"squeue and sacct: {asked / minutes / 2:.1f} a minute and agent, {asked / jobs:.2f} a job"
    )
    assert count["sbatch"] == jobs, count
    for uid in (ALICE, BOB):
        at = [
            at for at, name, who in calls if name == "squeue" and who == observed.users[PEOPLE[uid]]
        ]
        assert len(at) <= took / ASKED_SECS + BESIDES, (uid, at)
    assert count["sacct"] <= count["squeue"], count
