"""Fixtures of the front end tests: a stub supervisor, a real supervisor, and the blueprint in front
of either.
"""

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import supervisor_process
from consistency_check import check_books, wait_idle
from front_end_fixture import ALSO, FrontEnd
from stub_supervisor import StubSupervisor
from supervisor_process import SupervisorProcess

#: Files that share one browser for each process of pytest.
PAGES = "test_page_"
SETS = ("apps.also=" + ",".join(ALSO), "slots.local_sequential=2", "slots.local_parallel=2")


@pytest.fixture(scope="module", autouse=True)
def _agents_find_the_test_apps() -> Iterator[None]:
    before = supervisor_process.PYTHON_PATH
    supervisor_process.PYTHON_PATH = before + os.pathsep + str(Path(__file__).parent / "apps")
    yield
    supervisor_process.PYTHON_PATH = before


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return the browser that the files of pages share. Each user has a context of their own."""
    chromium_user = pytest.importorskip("chromium_user", reason="playwright is not installed")
    browser = chromium_user.shared_browser()
    yield browser
    if browser.is_connected():
        for context in browser.contexts:
            context.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """End the shared browser after the last test of pages and its repeats: no event loop could run beside
    it.
    """
    result = yield
    if item.path.name.startswith(PAGES) and not (nextitem and nextitem.path.name.startswith(PAGES)):
        import chromium_user

        chromium_user.close_shared()
    return result


@pytest.fixture
def stub() -> Iterator[StubSupervisor]:
    supervisor = StubSupervisor()
    yield supervisor
    supervisor.close()


@pytest.fixture
def make_web() -> Iterator[Callable[..., FrontEnd]]:
    """`make_web(supervisor, ...)`: return the blueprint in front of this supervisor."""
    made: list[FrontEnd] = []

    def make(*args: object, **options: object) -> FrontEnd:
        made.append(FrontEnd(*args, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for web in made:
        web.close()


@pytest.fixture
def web(stub: StubSupervisor, make_web: Callable[..., FrontEnd]) -> FrontEnd:
    """Return the blueprint in front of the stub."""
    return make_web(stub.address)


@pytest.fixture
def make_site() -> Iterator[Callable[..., SupervisorProcess]]:
    """`make_site(*settings, **options)`: return a new root without a running supervisor. At the end
    no process of it may be left.
    """
    sites: list[SupervisorProcess] = []

    def make(*sets: str, **options: object) -> SupervisorProcess:
        sites.append(SupervisorProcess((*SETS, *sets), **options))  # type: ignore[arg-type]
        return sites[-1]

    yield make
    left = {}
    for site in sites:
        left.update(site.end())
    assert left == {}, "processes outlived their keeper"


@pytest.fixture(scope="module")
def module_site() -> Iterator[SupervisorProcess]:
    site = SupervisorProcess(SETS)
    try:
        site.start()
        yield site
    finally:
        left = site.end()
    assert left == {}, "processes outlived their keeper"


@pytest.fixture(scope="module")
def checked_site(module_site: SupervisorProcess) -> Iterator[SupervisorProcess]:
    """Check the records of the module's supervisor at the end."""
    yield module_site
    check_books(module_site)


@pytest.fixture
def real(checked_site: SupervisorProcess, make_web: Callable[..., FrontEnd]) -> Iterator[FrontEnd]:
    """Put the blueprint in front of a real supervisor that all tests of a module share. No test
    leaves a run to the next one.
    """
    yield make_web(str(checked_site.root))
    wait_idle(checked_site)
