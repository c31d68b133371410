"""Shared fixtures: `site` and its variants, each a root with a separate supervisor. Test modules
can import `support/`.
"""

from collections.abc import Callable, Generator, Iterator

import pytest
from consistency_check import check_books, wait_idle
from loop_lag import check_lag
from supervisor_process import SupervisorProcess, add_logs, ended


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    add_logs(report)
    return report


@pytest.fixture
def make_site() -> Iterator[Callable[..., SupervisorProcess]]:
    """`make_site(*settings, **options)`: return a new root without a running supervisor. At the end
    no process of it may be left.
    """
    with ended(check_lag) as sites:

        def make(*sets: str, **options: object) -> SupervisorProcess:
            sites.append(SupervisorProcess(sets, **options))  # type: ignore[arg-type]
            return sites[-1]

        yield make


@pytest.fixture
def site(make_site: Callable[..., SupervisorProcess]) -> Iterator[SupervisorProcess]:
    """Start a supervisor on a new root. Afterwards check that log, records and answers agree."""
    site = make_site()
    site.start()
    yield site
    check_books(site)


@pytest.fixture(scope="module")
def module_site() -> Iterator[SupervisorProcess]:
    """Start a supervisor for a module. At the end check its records and its event loop lag."""
    site = SupervisorProcess(
        ("slots.local_sequential=4", "output.head_bytes=1048576", "output.tail_bytes=1048576"),
        env={"SYSTEM_CANARY": "sings"},
    )
    try:
        site.start()
        yield site
        check_books(site)
        late = check_lag(site)
    finally:
        left = site.end()
    assert left == {}, f"processes outlived their keeper: {left}"
    assert late == [], "a loop was held: " + "\n".join(late)


@pytest.fixture
def shared(module_site: SupervisorProcess) -> Iterator[SupervisorProcess]:
    """Share one supervisor among all tests of a module. No test leaves a run to the next one."""
    yield module_site
    wait_idle(module_site)
