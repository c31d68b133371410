"""Lets the tests of this folder import what they share, and gives them sites: a root with a
supervisor of its own on it.
"""

from collections.abc import Callable, Generator, Iterator

import pytest
from consistency_check import check_books
from loop_lag import check_lag
from supervisor_process import SupervisorProcess, add_logs, ended


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    add_logs(report)
    return report


@pytest.fixture
def make_site() -> Iterator[Callable[..., SupervisorProcess]]:
    """`make_site(*settings, **options)`: a fresh root that no supervisor has yet. At the end
    nothing that ran on it is left.
    """
    with ended(check_lag) as sites:

        def make(*sets: str, **options: object) -> SupervisorProcess:
            sites.append(SupervisorProcess(sets, **options))  # type: ignore[arg-type]
            return sites[-1]

        yield make


@pytest.fixture
def site(make_site: Callable[..., SupervisorProcess]) -> Iterator[SupervisorProcess]:
    """A fresh root with a supervisor. Afterwards the books are checked: log, records and what is
    answered are one.
    """
    site = make_site()
    site.start()
    yield site
    check_books(site)


@pytest.fixture(scope="module")
def module_site() -> Iterator[SupervisorProcess]:
    site = SupervisorProcess(
        ("slots.local_sequential=4", "output.head_bytes=1048576", "output.tail_bytes=1048576"),
        env={"SYSTEM_CANARY": "sings"},
    )
    try:
        site.start()
        yield site
        late = check_lag(site)
    finally:
        left = site.end()
    assert left == {}, f"processes outlived their keeper: {left}"
    assert late == [], "a loop was held: " + "\n".join(late)


@pytest.fixture
def shared(module_site: SupervisorProcess) -> Iterator[SupervisorProcess]:
    """One supervisor for all tests of a module; the books are checked after each."""
    yield module_site
    check_books(module_site)
