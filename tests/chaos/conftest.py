"""Fixtures for the users and sites of the tests in this folder."""

import os
from collections.abc import Callable, Generator, Iterator

import pytest
from site_locations import ORDINARY, SOAK, everybodys_python, new_site
from supervisor_process import SupervisorProcess, add_logs, ended


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    add_logs(report)
    return report


@pytest.fixture(scope="module", params=["same user", "ordinary user"])
def who(request: pytest.FixtureRequest) -> int | None:
    """Return the user of a site: None for the user who runs the tests, or an ordinary user. With
    SOAK=1 a file has both; otherwise it has the one that its USER names, if the tests run as root.
    """
    chosen = getattr(request.module, "USER", "same user")
    if not SOAK and request.param != chosen and os.geteuid() == 0 and everybodys_python():
        pytest.skip(f"only with SOAK=1; see the same test with the {chosen}")
    if request.param == "same user":
        return None
    if os.geteuid() != 0:
        pytest.skip(
            "the tests do not run as root, so the share that runs as another user is left out; this share ran as 'same user'"
        )
    if everybodys_python() is None:
        pytest.skip(
            "no Python of this version can be read by an ordinary user: put the checkout and its .venv where everybody can read "
            "them, or install this version's python3 package"
        )
    return ORDINARY


@pytest.fixture
def make_site() -> Iterator[Callable[..., SupervisorProcess]]:
    """Return `make_site(who, *settings, **options)`: a new root. At the end, stop everything that
    ran on it.
    """
    with ended() as sites:

        def make(who: int | None, *sets: str, **options: object) -> SupervisorProcess:
            sites.append(new_site(who, *sets, **options))  # type: ignore[arg-type]
            return sites[-1]

        yield make
