"""An acknowledged cancel of a run in a container is final, at any moment and whatever the
job does.
"""

import time
from collections.abc import Iterator

import pytest
from docker_hosts import Hosts
from docker_supervisor import (
    AGENT,
    GONE_SECS,
    TASK,
    Case,
    DockerSupervisor,
    check_next,
    ended,
    yards,
)
from oracle import FINAL
from site_locations import dice, share
from supervisor_process import fresh_nap, naps, until

GRACE_SECS = 0.5
#: Number of races for each placement (agent or task).
RACES = share(4, 500)
#: Simultaneous runs of one user.
AT_ONCE = 4
ZOO = {
    "deaf": "sleep NAP & while :; do sleep NAP; done",
    "setsid": "( setsid sh -c 'sleep NAP & exec sleep NAP' & ) ; sleep NAP & wait",
    "forks twice": "( setsid env -i /bin/sh -c 'exec 0<&- 1>&- 2>&-; /bin/sleep NAP & exec /bin/sleep NAP' & ) ; sleep NAP & wait",
    "stopped": "setsid sh -c 'sleep NAP & kill -STOP $! $$; sleep NAP' x NAP & sleep NAP & kill -STOP $$; wait",
}


@pytest.fixture(scope="module")
def observed(pool: Hosts) -> Iterator[DockerSupervisor]:
    with yards(pool, sequential={"memoryMb": 256, "runs": AT_ONCE}) as docker_site:
        yield docker_site


@pytest.fixture
def docker_site(observed: DockerSupervisor) -> Iterator[DockerSupervisor]:
    """Supervisor shared by the tests; records and job stamps are checked after each test."""
    yield observed
    print(observed.check())


@pytest.mark.timeout(200)
def test_nothing_of_any_is_left_after_its_grace_and_a_second(docker_site: DockerSupervisor) -> None:
    nap, uid = fresh_nap(), {AGENT: "CancelZ1", TASK: "CancelZ2"}
    zoo = [
        Case(
            docker_site,
            place,
            text.replace("NAP", nap),
            uid=uid[place],
            graceSecs=GRACE_SECS,
            deaf=True,
        )
        for place in uid
        for text in ZOO.values()
    ]
    for case in zoo:
        case.submit()
    for case in zoo:
        case.started()
    until(lambda: len(naps(nap)) >= 2 * len(zoo), "all of them are there")
    queued = Case(docker_site, AGENT, uid=uid[AGENT]).submit()
    assert queued.oracle.heard(docker_site.site.cancel(queued.run))["over"], "it needs nobody"
    begun = time.monotonic()
    for case in zoo:
        assert case.oracle.heard(docker_site.site.cancel(case.run))["state"] == "canceled"
    until(lambda: not naps(nap), "nothing of any is left", GRACE_SECS + GONE_SECS)
    print(f"{len(zoo)} jobs, nothing was left after {time.monotonic() - begun:.2f} s")
    for case, said in ended(zoo, go=False).items():
        assert (said["state"], said["reason"], said["exit"]["stopReason"]) == (
            "canceled",
            "cancel",
            "cancel",
        ), (str(case), said)
    assert not queued.oracle.started(queued.run)
    check_next([zoo[0], zoo[-1]])


@pytest.mark.timeout(200 + RACES * 8)
def test_races_with_the_start(docker_site: DockerSupervisor) -> None:
    """The supervisor is killed after the last answer of some batches. No run is reported as running
    after it was reported as canceled.
    """
    chance, nap = dice("docker/races"), fresh_nap()
    runs: list[Case] = []
    last = 0.0
    while len(runs) < 2 * RACES:
        batch = [
            Case(
                docker_site,
                place,
                f"setsid sleep {nap} & sleep {nap}",
                uid=f"CancelR{n}",
                graceSecs=0.3,
                deaf=True,
            )
            for n, place in enumerate((AGENT, TASK))
            for _ in range(AT_ONCE)
        ]
        chance.shuffle(batch)
        for case in batch:
            case.submit()
            time.sleep(
                chance.choice((0, chance.random() * 0.05, chance.random() * 0.4, chance.random()))
            )
            assert case.oracle.heard(docker_site.site.cancel(case.run))["state"] == "canceled"
        begun = time.monotonic()
        if len(runs) % (4 * AT_ONCE) == 0:
            docker_site.restart()
        until(
            lambda batch=batch: _stays_canceled(batch) and not naps(nap),
            "nothing of any is left",
            10 * GONE_SECS,
        )  # type: ignore[misc]
        last = max(last, time.monotonic() - begun)
        assert {s["reason"] for s in ended(batch, 60, go=False).values()} == {"cancel"}
        runs += batch
    started = {
        place: sum(bool(c.oracle.started(c.run)) for c in runs if c.place == place)
        for place in (AGENT, TASK)
    }
    print(
        f"{len(runs)} races, had started: {started}; nothing was left after {last:.2f} s at the latest, restarts included"
    )
    for case in runs:
        said = docker_site.site.post("job-story", uid=case.uid, computeJid=case.jid)["events"]
        ends = [e["event"]["status"] for e in said if e["event"]["type"] == "RunEnded"]
        assert ends == ["canceled"] and ends[0] in FINAL, (str(case), said)
    check_next([runs[0], next(c for c in runs if c.place != runs[0].place)])


def _stays_canceled(cases: list[Case]) -> bool:
    assert {case.status()["state"] for case in cases} == {"canceled"}
    return True
