"""Process deaths in containers: the files that jobs wrote decide the result, each death is reported
with its own reason, and no other job is affected.

Each row of a table is a user with one job; all of them die together.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from docker_hosts import Hosts
from docker_supervisor import (
    AGENT,
    CODE,
    LOST_SECS,
    TASK,
    TRUE_SECS,
    USERS,
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

#: Kills of the supervisor with active jobs on both hosts.
KILLS = share(2, 50)
#: Memory limit of a container in MiB.
MEMORY = 96
EATS = "tail /dev/zero"
OUT_OF_MEMORY = "memory ran out, so the kernel killed one of its processes"
OUTSIDE = "its container was killed from outside by signal 9 (SIGKILL) (docker kill, docker stop or an administrator)"
REMOVED = "its container was removed from outside"
SHUTDOWN = "stopped from outside: its machine was shut down, or its keeper was told to stop"


@pytest.fixture(scope="module")
def observed(pool: Hosts) -> Iterator[DockerSupervisor]:
    with yards(pool, sequential={"memoryMb": MEMORY, "runs": 4}) as docker_site:
        yield docker_site


@pytest.fixture
def docker_site(observed: DockerSupervisor) -> Iterator[DockerSupervisor]:
    """Supervisor shared by the tests; records and job stamps are checked after each test."""
    yield observed
    print(observed.check())


class Death(NamedTuple):
    """One death. told: expected state, reason, code, signal, source. sentence: part of the
    error.
    """

    place: str
    how: str
    deed: Callable[[Case], Any]
    told: tuple[str, str, int | None, int | None, str]
    sentence: str


def _ends_unseen(case: Case) -> None:
    """End the job while process 1 is stopped, then kill process 1."""
    first = case.first
    os.kill(first, signal.SIGSTOP)
    folder = next(
        (case.site.root / "agent").glob(
            f"*/run/{case.oracle.started(case.run)[0].token.replace('/', '-')}"
        )
    )

    # written by the agent beside the stopped keeper, or by the script of a task's container
    files = [folder / "wait-status.json", folder / "exit-code"]

    def written() -> bool:
        case.go()
        return any(file.exists() and file.stat().st_size > 0 for file in files)

    until(written, f"{case} has ended")
    killed(first)


LIVES = ("error", "exit", CODE, None, "keeper")
WRITTEN = ("error", "exit", CODE, None, "script")
LOST = ("error", "lost", None, None, "lost")
DEATHS = (
    Death(AGENT, "kill -9 of the agent", lambda c: killed(c.agent), LIVES, f"exit code {CODE}"),
    Death(AGENT, "kill -9 of the keeper", lambda c: killed(c.first), LOST, OUTSIDE),
    Death(AGENT, "the keeper dies after the job", _ends_unseen, LIVES, f"exit code {CODE}"),
    Death(
        AGENT,
        "kill -9 of the job",
        lambda c: killed(c.job),
        ("error", "signal", None, 9, "keeper"),
        "ended by signal 9 (SIGKILL)",
    ),
    Death(AGENT, "docker kill", lambda c: c.docker("kill"), LOST, OUTSIDE),
    Death(
        AGENT,
        "docker stop",
        lambda c: c.docker("stop"),
        ("error", "shutdown", None, 15, "keeper"),
        SHUTDOWN,
    ),
    Death(AGENT, "docker rm -f", lambda c: c.docker("rm", "-f"), LOST, REMOVED),
    Death(
        TASK,
        "kill -9 of process 1",
        lambda c: killed(c.first),
        ("error", "signal", None, 9, "engine"),
        OUTSIDE,
    ),
    Death(TASK, "process 1 dies after the job", _ends_unseen, WRITTEN, f"exit code {CODE}"),
    Death(
        TASK,
        "kill -9 of the job",
        lambda c: killed(c.job),
        ("error", "signal", None, 9, "script"),
        "ended by signal 9 (SIGKILL)",
    ),
    Death(
        TASK,
        "docker kill",
        lambda c: c.docker("kill"),
        ("error", "signal", None, 9, "engine"),
        OUTSIDE,
    ),
    Death(
        TASK,
        "docker stop",
        lambda c: c.docker("stop"),
        ("error", "signal", None, 15, "script"),
        "ended by signal 15 (SIGTERM)",
    ),
    Death(TASK, "docker rm -f", lambda c: c.docker("rm", "-f"), LOST, REMOVED),
)


@pytest.mark.timeout(400)
def test_each_death_has_its_own_reason_and_the_next_run_works(
    docker_site: DockerSupervisor,
) -> None:
    cases = [
        (death, Case(docker_site, death.place, uid=USERS[n] if death.place == AGENT else None))
        for n, death in enumerate(DEATHS)
    ]
    for _, case in cases:
        case.submit()
    for _, case in cases:
        case.started()
    begun = time.monotonic()
    for death, case in cases:
        death.deed(case)
        if death.told[2] is None:
            docker_site.killed.add(case.jid)
    said = ended([c for _, c in cases], LOST_SECS)
    print(f"{len(cases)} deaths, all told after {time.monotonic() - begun:.1f} s")
    for death, case in cases:
        status, exit_ = said[case], said[case]["exit"]
        told = status["state"], status["reason"], exit_["code"], exit_["signal"], exit_["source"]
        assert told == death.told, (death.place, death.how, status)
        assert death.sentence in f"{status['error']} {exit_['detail']}", (
            death.place,
            death.how,
            status,
        )
        if death.told[2] is not None:
            assert exit_["lastLines"] == "the last line", (death.how, status)
            assert docker_site.site.output(case.run).body.endswith(b"the last line\n"), (
                death.how,
                status,
            )
        assert not case.oracle.alive(case.run)
    check_next([c for _, c in cases])


# ---- memory


class Memory(NamedTuple):
    text: str
    state: str
    code: int | None


MEMORIES = (
    Memory(f"exec {EATS}", "error", None),
    Memory(f"{EATS}; exit 0", "completed", 0),
    Memory(f"{EATS}; exit 3", "error", 3),
)


@pytest.mark.timeout(300)
def test_memory_that_ran_out_is_said_and_changes_no_exit(docker_site: DockerSupervisor) -> None:
    """The job's own exit status is unchanged when a child is killed for memory. Keepers and agents
    survive.
    """
    cases = [
        (m, Case(docker_site, place, m.text, uid=USERS[n]))
        for place in (AGENT, TASK)
        for n, m in enumerate(MEMORIES)
    ]
    before = _dead(docker_site)
    for _, case in cases:
        case.submit()
    said = ended([c for _, c in cases], 120)
    for memory, case in cases:
        status, exit_ = said[case], said[case]["exit"]
        reason = "signal" if memory.code is None else "exit"
        assert (status["state"], status["reason"]) == (memory.state, reason), (
            case.place,
            memory,
            status,
        )
        assert exit_["code"] == memory.code and exit_["outOfMemory"] is True, (
            case.place,
            memory,
            status,
        )
        why = docker_site.site.post("job-why", uid=case.uid, computeJid=case.jid)["sentence"]
        assert OUT_OF_MEMORY in why, (case.place, memory, why)
        if memory.code is None:
            docker_site.killed.add(case.jid)
    assert _dead(docker_site) == before, "agents' containers lived through it"
    check_next([c for _, c in cases])


def _dead(docker_site: DockerSupervisor) -> list[str]:
    """Return the files about agents' containers that ended."""
    return sorted(
        file.read_text() for file in (docker_site.site.root / "agent").glob("*/container.log")
    )


# ---- the relay


@pytest.mark.timeout(200)
def test_a_relay_that_is_removed_comes_back_and_nothing_is_lost(
    docker_site: DockerSupervisor,
) -> None:
    first, second = (Case(docker_site, AGENT, uid=uid).submit().started() for uid in USERS[:2])
    host, _ = first.container
    (relay,) = host.containers("jobscribe.part=relay", running=True)
    before = host.inspect(relay)["Id"]
    host.docker("rm", "-f", relay)
    first.go()
    said = ended([first, second], LOST_SECS)
    for case, status in said.items():
        exit_ = status["exit"]
        assert (exit_["code"], exit_["source"], exit_["lastLines"]) == (
            CODE,
            "keeper",
            "the last line",
        ), (str(case), status)
    assert host.inspect(relay)["Id"] != before
    check_next([first, second])


# ---- the supervisor


@pytest.mark.timeout(200 + KILLS * 20)
def test_kills_of_the_supervisor_touch_no_job(docker_site: DockerSupervisor) -> None:
    cases = [case for found in crowd(docker_site, 2).values() for case in found]
    stamps = {case: case.oracle.stamps(case.run) for case in cases}
    slowest = 0.0
    for n in range(KILLS):
        ends = Case(docker_site, (AGENT, TASK)[n % 2], "sleep 0.1", uid=cases[n % len(cases)].uid)
        ends.run.pop("retry", None)  # if its container was not created yet, it is retried
        ends.submit()
        if n % 3:
            until(lambda ends=ends: ends.oracle.started(ends.run), "it has started", 60)  # type: ignore[misc]
        docker_site.restart()
        slowest = max(slowest, _true_again(cases))
        (status,) = ended([ends], 60).values()
        assert status["state"] == "completed", status
    assert {case: case.oracle.stamps(case.run) for case in cases} == stamps, (
        "nothing began, and nothing ended"
    )
    print(f"{KILLS} kills, {len(cases)} jobs kept, true again within {slowest:.1f} s")
    for case, status in ended(cases).items():
        assert (status["exit"]["code"], docker_site.site.output(case.run).body) == (
            CODE,
            b"the last line\n",
        ), status


def _true_again(cases: list[Case]) -> float:
    """Check that no status is ever false, and wait until all are known. Return the seconds that
    took.
    """
    begun = time.monotonic()

    def known() -> bool:
        said = [case.status() for case in cases]
        assert {s["state"] for s in said} == {"running"} and not any(s["over"] for s in said), said
        return all(s["known"] for s in said)

    until(known, "everything is known again", TRUE_SECS)
    assert all(case.oracle.alive(case.run) for case in cases)
    return time.monotonic() - begun
