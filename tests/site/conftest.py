"""Fixtures: sites started with `jobscribe up`, and browsers that sign in there."""

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import supervisor_process
from consistency_check import check_books
from http_browser import Browser, close_all
from supervisor_process import SupervisorProcess, add_logs

#: The apps and hooks of support/site_hooks.py, as settings of a site.
OURS = (
    "apps.also=slow=site_hooks:slow,failing=site_hooks:failing,telling=site_hooks:telling",
    "server.may_hook=site_hooks:may",
    "server.admin_hook=site_hooks:admin",
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    add_logs(report)
    return report


class Sites:
    """The sites of a test or a test module. At the end their records are checked, and no process
    may be left.
    """

    def __init__(self) -> None:
        self._sites: list[SupervisorProcess] = []
        self._before = supervisor_process.PYTHON_PATH
        supervisor_process.PYTHON_PATH = os.pathsep.join(
            p for p in (self._before, str(Path(__file__).parent / "support")) if p
        )

    def make(self, *sets: str) -> SupervisorProcess:
        """Start a site with these settings."""
        site = SupervisorProcess((*OURS, *sets), web=True)
        site._env["HOUSE"] = str(site.place)
        self._sites.append(site)
        return site.start()

    def end(self) -> None:
        close_all()
        supervisor_process.PYTHON_PATH = self._before
        left = {}
        try:
            for site in self._sites:
                if site.process is not None:
                    check_books(site)
                    assert "internal" not in site.ready()["counters"], (
                        "the supervisor met what it had not expected"
                    )
        finally:
            for site in self._sites:
                left.update(site.end())
        assert left == {}, "processes outlived their keeper"


@pytest.fixture
def make_site() -> Iterator[Callable[..., SupervisorProcess]]:
    """`make_site(*settings)`: start a site for one test."""
    sites = Sites()
    yield sites.make
    sites.end()


@pytest.fixture(scope="module")
def sites() -> Iterator[Sites]:
    """Return the sites of a test module."""
    sites = Sites()
    yield sites
    sites.end()


@pytest.fixture(scope="module")
def site(sites: Sites) -> SupervisorProcess:
    """Share one site in a test module. Each test has its own users."""
    return sites.make("slots.local_sequential=4", "slots.local_parallel=4")


@pytest.fixture
def browser(site: SupervisorProcess, request: pytest.FixtureRequest) -> Iterator[Browser]:
    """Sign in as a user of this test only."""
    browser = Browser(site).sign_in(f"user of {request.node.name}"[-64:])
    yield browser
    browser.close()
