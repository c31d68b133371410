"""The distribution of tests over workers (tests/support/worker_groups.py)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from worker_groups import BROWSERS, BROWSERS_AT_ONCE, DOCKER_DEATHS, WorkerGroups, group

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ("tests/docker/test_deaths.py::test_a", "tests/docker/test_image.py::test_b")
PAGES = tuple(f"{file}::test_c" for file in sorted(BROWSERS))
OTHERS = tuple(f"tests/unit/test_{n}.py::test_{i}" for n in range(40) for i in range(4))


class Worker:
    """Runs what it is given when a test says so."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, indexes: list[int]) -> None:
        self.given += indexes

    def shutdown(self) -> None:
        self.shutting_down = True


def started(tests: list[str], workers: int, config: Any) -> tuple[WorkerGroups, list[Worker]]:
    config = SimpleNamespace(
        getvalue=lambda name: ["popen"] * workers,
        getoption=lambda *a: None,
        option=SimpleNamespace(loadscopereorder=False),
        hook=config.hook,
    )
    groups, made = WorkerGroups(config), [Worker() for _ in range(workers)]
    for worker in made:
        groups.add_node(worker)
    for worker in made:
        groups.add_node_collection(worker, tests)
    groups.schedule()
    return groups, made


def test_the_files_that_are_named_exist() -> None:
    docker = {f"tests/docker/{name}" for name in DOCKER_DEATHS}
    assert [file for file in sorted(BROWSERS | docker) if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("tests/docker/test_deaths.py::test_a[b::c]", "docker, deaths"),
        ("tests/docker/test_image.py::test_a", "docker"),
        ("tests/slurm/test_gangs.py::test_a", "slurm"),
        ("tests/slurm/test_trial.py::test_a", "tests/slurm/test_trial.py"),
        ("tests/unit/db/test_chain.py::test_a", "tests/unit/db/test_chain.py"),
    ],
)
def test_tests_that_share_an_engine_are_one_group(test: str, expected: str) -> None:
    assert group(test) == expected


def test_each_test_runs_once_and_browsers_wait_for_docker(pytestconfig: pytest.Config) -> None:
    tests = [*DOCKER, *PAGES, *OTHERS]
    groups, workers = started(tests, 6, pytestconfig)
    done: list[str] = []
    slow = [tests.index(test) for test in DOCKER]
    while groups.has_pending:
        pages = [t for w in workers for n in w.given if (t := tests[n]) in PAGES]
        if any(scope not in BROWSERS for scope in groups.workqueue):
            assert len(pages) <= BROWSERS_AT_ONCE
        busy = [w for w in workers if w.given]
        quick = [w for w in busy if w.given[0] not in slow]
        worker = (quick if len(done) < 40 else busy)[len(done) % 3 % len(quick)]
        done.append(tests[worker.given.pop(0)])
        groups.mark_test_complete(worker, tests.index(done[-1]))
    assert sorted(done) == sorted(tests)
    last_docker = max(done.index(test) for test in DOCKER)
    assert all(done.index(test) > last_docker for test in PAGES)


def test_groups_of_a_worker_that_crashed_go_to_the_others(pytestconfig: pytest.Config) -> None:
    tests = list(OTHERS)
    groups, workers = started(tests, 2, pytestconfig)
    lost, left = workers
    crashed = groups.remove_node(lost)
    assert crashed == tests[lost.given[0]]
    groups.workqueue[group(str(crashed))][str(crashed)] = True  # as pytest-xdist does
    done = []
    while left.given:
        done.append(tests[left.given.pop(0)])
        groups.mark_test_complete(left, tests.index(done[-1]))
    assert sorted([*done, str(crashed)]) == sorted(tests)
