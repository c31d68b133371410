"""Gives the tests of this folder sites with a front door, as `jobscribe up` opens it, and browsers
that sign in there.
"""

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import supervisor_process
from consistency_check import check_books
from http_browser import Browser, close_all
from supervisor_process import SupervisorProcess, add_logs

#: The apps and hooks of tests/site/support/site_hooks.py, as a site's own configuration names them.
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
    """Those that a test, or a file of tests, has made. At the end the books are checked, and
    nothing that ran there is left.
    """

    def __init__(self) -> None:
        self._sites: list[SupervisorProcess] = []
        self._before = supervisor_process.PYTHON_PATH
        supervisor_process.PYTHON_PATH = os.pathsep.join(
            p for p in (self._before, str(Path(__file__).parent / "support")) if p
        )

    def make(self, *sets: str) -> SupervisorProcess:
        """Started."""
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
    """`make_site(*settings)`: a site of the test's own, started."""
    sites = Sites()
    yield sites.make
    sites.end()


@pytest.fixture(scope="module")
def sites() -> Iterator[Sites]:
    """Those of a file of tests."""
    sites = Sites()
    yield sites
    sites.end()


@pytest.fixture(scope="module")
def site(sites: Sites) -> SupervisorProcess:
    """One for a file of tests, each with users of its own."""
    return sites.make("slots.local_sequential=4", "slots.local_parallel=4")


@pytest.fixture
def browser(site: SupervisorProcess, request: pytest.FixtureRequest) -> Iterator[Browser]:
    """Of a user who is signed in, and whom nobody else is."""
    browser = Browser(site).sign_in(f"user of {request.node.name}"[-64:])
    yield browser
    browser.close()
