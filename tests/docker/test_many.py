"""Two users on two hosts run many short jobs while the supervisor is killed twice: no job is lost,
none runs twice.
"""

import os
import time
from collections.abc import Iterator

import pytest
from docker_hosts import Hosts
from docker_supervisor import AGENT, TASK, Case, DockerSupervisor, ended, yards
from site_locations import dice, share
from supervisor_process import until

#: Jobs of each user.
JOBS = int(os.environ.get("JOBS", share(20, 200)))
#: Every n-th job is a task in its own container.
TASK_EVERY = 10
UIDS = ("ManyUsrA", "ManyUsrB")


@pytest.fixture
def docker_site(pool: Hosts) -> Iterator[DockerSupervisor]:
    """Supervisor where neither user's quota fits on one host."""
    host = {"cpu": 4, "memoryMb": 512, "agentsMb": 3072, "sequential": 6}
    with yards(
        pool, "slots.op_run=24", host=host, sequential={"memoryMb": 256, "runs": 4}
    ) as docker_site:
        yield docker_site
        print(docker_site.check())


@pytest.mark.timeout(200 + 2 * JOBS * 3)
def test_none_is_lost_and_none_is_doubled(docker_site: DockerSupervisor) -> None:
    chance, begun = dice("docker/many"), time.monotonic()
    cases = []
    for n in range(JOBS):
        for uid in UIDS:
            place, code = (
                (TASK if n % TASK_EVERY == TASK_EVERY - 1 else AGENT),
                chance.choice((0, 0, 3)),
            )
            cases.append(
                (
                    code,
                    Case(
                        docker_site, place, f"sleep 0.0{chance.randrange(10)}; exit {code}", uid=uid
                    ).submit(),
                )
            )
    for over in (1, 2):
        until(
            lambda over=over: _done(docker_site) >= over * len(cases) // 4,
            "a share of them is done",
            60 + JOBS,
        )  # type: ignore[misc]
        docker_site.restart()
    said = ended([case for _, case in cases], 120 + 2 * JOBS, go=False)
    took = time.monotonic() - begun
    for code, case in cases:
        assert said[case]["exit"]["code"] == code, said[case]
        assert [s.what for s in case.oracle.stamps(case.run)] == ["start", "end"], str(case)
    hosts = {path.name.rpartition("@")[2] for path in (docker_site.site.root / "agent").iterdir()}
    assert hosts == {"a", "b"}, "both hosts were used"
    print(
        f"{len(cases)} jobs of {len(UIDS)} users in {took:.1f} s, 2 kills of the supervisor, {hosts}"
    )


def _done(docker_site: DockerSupervisor) -> int:
    return sum(s.what == "end" for uid in UIDS for s in docker_site.oracle(uid).stamps())
