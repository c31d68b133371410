"""A Docker daemon that is killed, frozen, stopped, or restarted without its containers: running
containers continue, and every reported status stays true.
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
    LOST_SECS,
    TASK,
    Case,
    DockerSupervisor,
    check_next,
    crowd,
    ended,
    killed,
    yards,
)
from site_locations import share
from supervisor_process import until

from jobscribe.runtime import processes

FROZEN_SECS = share(10, 30)


@pytest.fixture(scope="module")
def observed(pool: Hosts) -> Iterator[DockerSupervisor]:
    with yards(pool) as docker_site:
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


def _told(case: Case) -> tuple[str, int | None, int | None, str | None]:
    """Return state, exit code, signal and source of a finished run."""
    said = case.status()
    return said["state"], said["exit"]["code"], said["exit"]["signal"], said["exit"]["source"]


def _running(cases: list[Case], known: bool | None = None) -> bool:
    """Check that all cases are reported as running. Return whether `known` has the wanted value in
    each status.
    """
    said = [case.status() for case in cases]
    assert {s["state"] for s in said} == {"running"} and not any(s["over"] for s in said), said
    return known is None or all(s["known"] == known for s in said)


@pytest.mark.timeout(300)
def test_one_that_is_killed_comes_back_to_jobs_that_went_on(
    docker_site: DockerSupervisor, host_a: Host, host_b: Host
) -> None:
    """Jobs that end during the outage get their true exit status, even where only the engine could
    know it.
    """
    jobs = crowd(docker_site, 2)
    (ends, stays), (task_ends, task_stays) = jobs[AGENT, "a"], jobs[TASK, "a"]
    others = [*jobs[AGENT, "b"], *jobs[TASK, "b"]]
    killed_task = Case(docker_site, TASK, uid=task_stays.uid).submit().started()
    stamps = {case: case.oracle.stamps(case.run) for case in (stays, task_stays, *others)}
    job = killed_task.job
    host_a.crash()
    killed(job)
    docker_site.killed.add(killed_task.jid)
    for case in (ends, task_ends):
        until(lambda case=case: case.go() or not case.oracle.alive(case.run), f"{case} ends")  # type: ignore[misc]
    until(
        lambda: _running([task_stays, task_ends], known=False),
        "of tasks there nothing is known",
        LOST_SECS,
    )
    elsewhere = [Case(docker_site, place).submit().started() for place in (AGENT, TASK)]
    assert all(case.on(host_b) for case in elsewhere)
    host_a.start()
    ended([ends, task_ends, killed_task], LOST_SECS, go=False)
    assert _told(ends) == ("error", CODE, None, "keeper") and _told(task_ends) == (
        "error",
        CODE,
        None,
        "script",
    )
    assert _told(killed_task)[0] == "error" and _told(killed_task)[2] in (signal.SIGKILL, None), (
        killed_task.status()
    )
    on = [stays, task_stays, *others]
    until(lambda: _running(on, known=True), "everything is known again", LOST_SECS)
    assert {case: case.oracle.stamps(case.run) for case in on} == stamps
    assert {s["exit"]["code"] for s in ended([*on, *elsewhere]).values()} == {CODE}
    check_next([stays, task_stays])


@pytest.mark.timeout(300)
def test_one_that_is_frozen_makes_nothing_false(
    docker_site: DockerSupervisor, host_a: Host, host_b: Host
) -> None:
    """A time limit that passes during the freeze does not change the result of a command that ended
    before.
    """
    jobs = crowd(docker_site, 1)
    (agent,), (task,) = jobs[AGENT, "a"], jobs[TASK, "a"]
    limited = (
        Case(docker_site, TASK, uid=task.uid, timeLimitSecs=FROZEN_SECS - 2).submit().started()
    )
    assert limited.on(host_a)
    others = [*jobs[AGENT, "b"], *jobs[TASK, "b"]]
    host_a.freeze()
    frozen = time.monotonic()
    for case in (task, limited):
        until(lambda case=case: case.go() or not case.oracle.alive(case.run), f"{case} ends")  # type: ignore[misc]
    until(lambda: _running([task], known=False), "of the task nothing is known", LOST_SECS)
    elsewhere = Case(docker_site, TASK).submit().started()
    assert elsewhere.on(host_b)
    while time.monotonic() < frozen + FROZEN_SECS:
        assert _running([agent, *others], known=True) and _running([task])
        time.sleep(0.2)
    host_a.thaw()
    ended([task, limited], LOST_SECS, go=False)
    assert _told(task) == _told(limited) == ("error", CODE, None, "script")
    assert {s["exit"]["code"] for s in ended([agent, elsewhere, *others]).values()} == {CODE}


@pytest.mark.timeout(300)
def test_runs_that_come_while_no_daemon_answers_wait_and_say_for_whom(
    docker_site: DockerSupervisor, host_a: Host, host_b: Host
) -> None:
    """Then they start on the first host that comes back. A run canceled meanwhile never starts."""
    for host in (host_a, host_b):
        host.stop()
    site = docker_site.site

    def down() -> bool:
        return {n for n, h in _hosts(docker_site).items() if h == "down"} == {"a", "b"}

    until(down, "both are said to be down", LOST_SECS)
    cases = [Case(docker_site, place, "exit 0").submit() for place in (AGENT, TASK, AGENT, TASK)]
    unwanted = cases.pop()
    for case in cases:
        said = until(lambda case=case: _waits(case), f"{case} says for whom it waits")  # type: ignore[misc]
        assert "host a" in said and "host b" in said, said
    assert site.cancel(unwanted.run)["state"] == "canceled"
    host_b.start()
    assert {s["state"] for s in ended(cases, LOST_SECS).values()} == {"completed"}
    assert not host_b.containers(f"jobscribe.jid={unwanted.jid}") and not unwanted.oracle.stamps(
        unwanted.run
    )
    host_a.start()
    until(lambda: set(_hosts(docker_site).values()) == {"up"}, "both are up", LOST_SECS)
    check_next(cases)


def _waits(case: Case) -> str | None:
    said = case.status()
    assert said["state"] == "pending", said
    return str(said["jobStatusMessage"]) if said["queueState"] == "host_down" else None


def _hosts(docker_site: DockerSupervisor) -> dict[str, str]:
    """Return the last log message of the supervisor about each host."""
    out = {}
    for line in docker_site.site.log().splitlines():
        for name in ("a", "b"):
            if f"docker host {name} answers" in line:
                out[name] = "up"
            elif f"docker host {name} is down" in line:
                out[name] = "down"
    return out


@pytest.mark.timeout(300)
def test_what_a_host_lost_when_it_went_down_is_said_to_be_lost_and_the_other_one_goes_on(
    docker_site: DockerSupervisor, host_a: Host
) -> None:
    """Like a reboot: the daemon comes back, and none of its containers runs."""
    jobs = crowd(docker_site, 1)
    lost, others = [*jobs[AGENT, "a"], *jobs[TASK, "a"]], [*jobs[AGENT, "b"], *jobs[TASK, "b"]]
    done = jobs[TASK, "a"][0]
    over = (
        Case(docker_site, TASK, uid=done.uid).submit().started()
    )  # it ends before its host goes down, and no report is sent
    first = [
        host_a.inspect(name)["State"]["Pid"]
        for name in host_a.containers("jobscribe.deployment", running=True)
    ]
    own = host_a.inspect(over.container[1])["State"]["Pid"]
    stamps = {case: case.oracle.stamps(case.run) for case in others}
    host_a.crash()
    # wait for the whole container: the exit status is written after the command ended
    until(lambda: over.go() or (process := processes.find(own)) is None or process.over, "it ends")  # type: ignore[func-returns-value]
    for pid in first:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    docker_site.killed.update(case.jid for case in lost)
    until(lambda: not any(case.oracle.alive(case.run) for case in lost), "all of them are dead")
    host_a.start()
    begun = time.monotonic()
    said = ended([*lost, over], LOST_SECS, go=False)
    print(f"lost is said {time.monotonic() - begun:.1f} s after the daemon is back")
    assert _told(over) == ("error", CODE, None, "script"), over.status()
    for case in lost:
        assert said[case]["state"] == "error" and said[case]["reason"] in ("lost", "signal"), said[
            case
        ]
        assert (
            "its engine or host went down" in f"{said[case]['error']}"
            or "by signal 9" in f"{said[case]['error']}"
        ), said[case]
    assert (
        _running(others, known=True)
        and {case: case.oracle.stamps(case.run) for case in others} == stamps
    )
    check_next(lost)
    assert {s["exit"]["code"] for s in ended(others).values()} == {CODE}
