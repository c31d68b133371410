"""A host that is unreachable for a while: firewall rules block the supervisor, and the relay is
silent. Jobs there continue.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest
from docker_hosts import Host, Hosts
from docker_supervisor import (
    AGENT,
    CODE,
    GONE_SECS,
    LOST_SECS,
    TASK,
    USERS,
    Case,
    DockerSupervisor,
    check_next,
    ended,
    yards,
)
from site_locations import SOAK
from supervisor_process import fresh_nap, naps, until

PINGS = ("limits.ping_interval_secs=1", "limits.ping_timeout_secs=1")


@pytest.fixture(scope="module")
def observed(pool: Hosts) -> Iterator[DockerSupervisor]:
    with yards(pool, *PINGS) as docker_site:
        yield docker_site


@pytest.fixture
def docker_site(
    observed: DockerSupervisor, host_a: Host, host_b: Host
) -> Iterator[DockerSupervisor]:
    """Supervisor whose hosts are restored after the test; then records and job stamps are
    checked.
    """
    yield observed
    for host in (host_a, host_b):
        host.well()
    print(observed.check())


@contextlib.contextmanager
def cut_off(host: Host, way: str) -> Iterator[None]:
    """Block both the host's daemon and its agents."""
    (relay,) = host.containers("jobscribe.part=relay", running=True)
    pid = host.inspect(relay)["State"]["Pid"]
    host.cut(way)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
        host.mend()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["drop", "reject"] if SOAK else ["drop"])
def test_nothing_is_false_lost_or_doubled_and_others_are_served(
    docker_site: DockerSupervisor, host_a: Host, host_b: Host, way: str
) -> None:
    """A cancel during the outage is final, even if the supervisor is then killed. It is carried out
    when the host is back.
    """
    nap = fresh_nap()
    here, there = USERS[:2]
    unwanted = [
        Case(docker_site, place, f"sleep {nap} & sleep {nap}", uid=here, graceSecs=0.5, deaf=True)
        for place in (AGENT, TASK)
    ]
    jobs = [Case(docker_site, place, uid=here) for place in (AGENT, TASK) for _ in range(2)]
    others = [Case(docker_site, AGENT, uid=there)]
    unwanted[0].submit().started()
    for case in (*others, unwanted[1], *jobs):
        case.submit()
    for case in (*unwanted, *others, *jobs):
        case.started()
    for case in (*unwanted, *jobs):
        assert case.on(host_a), "the first one's user is on the first host, and his tasks"
    assert others[0].on(host_b)
    stay, end = jobs[::2], jobs[1::2]
    stamps = {case: case.oracle.stamps(case.run) for case in (*stay, *others)}
    with cut_off(host_a, way):
        until(
            lambda: _said([*stay, *end, *unwanted], ("running", False)),
            "of what is there nothing is known",
            LOST_SECS,
        )
        assert _said(others, ("running", True))
        for case in end:
            until(lambda case=case: case.go() or not case.oracle.alive(case.run), f"{case} ends")  # type: ignore[misc]
        for case in unwanted:
            assert case.oracle.heard(docker_site.site.cancel(case.run))["state"] == "canceled"
        assert len(naps(nap)) == 4, "nobody can reach them"
        if way == "reject":
            docker_site.restart()
        elsewhere = [Case(docker_site, place).submit().started() for place in (AGENT, TASK)]
        assert all(case.on(host_b) for case in elsewhere)
        until(
            lambda: _said([*stay, *end], ("running", False)) and _said(others, ("running", True)),
            "the others are known",
            LOST_SECS,
        )
        assert {case.status()["state"] for case in unwanted} == {"canceled"}
    begun = time.monotonic()
    until(
        lambda: _never_again(unwanted) and not naps(nap),
        "what was canceled is gone",
        LOST_SECS + GONE_SECS,
    )
    gone = time.monotonic() - begun
    for case, said in ended(end, LOST_SECS, go=False).items():
        assert (said["exit"]["code"], said["exit"]["source"]) == (
            CODE,
            "keeper" if case.place == AGENT else "script",
        ), said
    until(
        lambda: _said([*stay, *others], ("running", True)), "everything is known again", LOST_SECS
    )
    print(
        f"{way}: what was canceled is gone {gone:.1f} s after the host is back, all is known after {time.monotonic() - begun:.1f} s"
    )
    assert {case: case.oracle.stamps(case.run) for case in (*stay, *others)} == stamps
    assert {s["exit"]["code"] for s in ended([*stay, *others, *elsewhere]).values()} == {CODE}
    assert {s["state"] for s in ended(unwanted).values()} == {"canceled"}
    check_next([*stay, *unwanted])


def _said(cases: list[Case], wanted: tuple[str, bool]) -> bool:
    """Check that every case has the wanted state. Return whether `known` is as wanted, too."""
    said = [case.status() for case in cases]
    assert {s["state"] for s in said} == {wanted[0]}, said
    return all(s["known"] == wanted[1] for s in said)


def _never_again(cases: list[Case]) -> bool:
    said = [case.status() for case in cases]
    assert {s["state"] for s in said} == {"canceled"}, said
    return True
