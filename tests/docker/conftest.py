"""Fixtures with real Docker hosts. Where no host can be started, all tests of this folder are
skipped with the reason.
"""

import os
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_hosts import SCRIPT, Host, Hosts, Sites, sites
from supervisor_fork_server import MODULES
from supervisor_process import SupervisorProcess, add_logs


def _why_not() -> str:
    """Return why no hosts can be started here, or an empty string."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DOCKER_")}
    done = subprocess.run(
        [SCRIPT, "check"],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stderr.strip() if done.returncode else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set a timeout that covers the start of both hosts and all images (the first test waits for
    it).
    """
    for item in items:
        if item.nodeid.startswith("tests/docker/") and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    add_logs(report)
    return report


@pytest.fixture(scope="session")
def pool() -> Iterator[Hosts]:
    """Both hosts, started, with all images."""
    if reason := _why_not():
        pytest.skip(f"no Docker hosts of one's own: {reason}")
    os.environ[MODULES] = (
        "jobscribe.drivers.docker.agents.driver jobscribe.drivers.docker.tasks.controller"
    )
    hosts = Hosts()
    try:
        hosts.up()
        yield hosts
    finally:
        hosts.clean()


@pytest.fixture
def host_a(pool: Hosts) -> Iterator[Host]:
    """The first host; restored to its original state after the test."""
    yield pool.hosts["a"]
    pool.hosts["a"].well()


@pytest.fixture
def host_b(pool: Hosts) -> Iterator[Host]:
    yield pool.hosts["b"]
    pool.hosts["b"].well()


@pytest.fixture
def docker(pool: Hosts) -> tuple[str, ...]:
    """The docker command of the first host."""
    return pool.hosts["a"].command


@pytest.fixture
def image(pool: Hosts) -> str:
    """The image with jobscribe's agent, present on both hosts."""
    return pool.image


@pytest.fixture
def docker_sites(pool: Hosts) -> Iterator[Sites]:
    """Factory for several supervisors or unstarted ones: `docker_sites.make(*sets, use=...,
    pool={...})`.
    """
    with sites(pool) as made:
        yield made


@pytest.fixture
def make_docker_site(docker_sites: Sites) -> Callable[..., SupervisorProcess]:
    """Factory for started supervisors with only the docker driver: `make_docker_site(*sets,
    pool={...})`. Everything is removed after the test.
    """

    def make(*sets: str, **options: Any) -> SupervisorProcess:
        return docker_sites.make(*sets, **options).start()

    return make


@pytest.fixture
def docker_site(make_docker_site: Callable[..., SupervisorProcess]) -> SupervisorProcess:
    """Supervisor with both hosts."""
    return make_docker_site()
