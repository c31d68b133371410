"""Repeat tests that fail while the machine stands still, once the machine runs again.

Such a failure proves nothing about the product. The evidence is the scheduling delay of an idle
process in the same time (see `scheduling_noise`); without this evidence a failure counts at once.
No failure is hidden: a test that fails in all its repeats has failed. The end of the run lists each
repeated test with its failure and the evidence. `PYTEST_ARGS='-p no:rerunfailures'` disables
repeats.
"""

import functools
import time
from collections.abc import Generator
from typing import Any

import pytest
import scheduling_noise
from pytest_rerunfailures import StatusDB

#: Repeats per test and per process, so that a machine that never recovers cannot block the run for
#: hours.
REPEATS, AT_MOST = 2, 20
CALM_SECS, WAIT_SECS = 3.0, 60.0
_began, _failed, _timeout = (
    pytest.StashKey[scheduling_noise.Moment](),
    pytest.StashKey[str](),
    pytest.StashKey[Any](),
)
#: Report section with the evidence, and number of failure lines shown.
STOOD, SHOWN_LINES = "the machine stood still", 6
#: Why tests of this process are repeated, by test id.
_why: dict[str, str] = {}
_repeated: list[str] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep workers from reporting repeats over a socket. Reports take two round trips per test,
    each with a delayed acknowledgement (19 s in 1,900 tests).
    """
    if hasattr(session.config, "workerinput") and session.config.pluginmanager.hasplugin(
        "rerunfailures"
    ):
        session.config.failures_db.sock.close()  # type: ignore[attr-defined]
        session.config.failures_db = StatusDB()  # type: ignore[attr-defined]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            item.add_marker(
                pytest.mark.flaky(reruns=REPEATS, condition=functools.partial(_says_nothing, item))
            )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    scheduling_noise.floor()
    item.stash[_began], item.stash[_failed] = scheduling_noise.now(), ""
    _file(item).stash.setdefault(_began, item.stash[_began])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_failed] = item.stash[_failed] or report.when
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    item.stash[_timeout] = settings


def _says_nothing(item: pytest.Item) -> bool:
    """Return whether to repeat the test that has just failed because the machine stood still. Wait
    until the machine runs again.
    """
    if not (when := item.stash[_failed]) or len(_repeated) >= AT_MOST:
        return False
    floor = scheduling_noise.floor()
    time.sleep(3 * scheduling_noise.PAUSE_SECS)  # the idle process may report its delay late
    # a module fixture torn down here has existed since the first test of the file
    why = floor.stood_still((item if when != "teardown" else _file(item)).stash[_began])
    if not why:
        return False
    _why[item.nodeid] = why
    _repeated.append(item.nodeid)
    hook = item.config.hook
    if _timeout in item.stash:
        hook.pytest_timeout_cancel_timer(item=item)
    floor.wait_until_it_runs(CALM_SECS, WAIT_SECS)
    if _timeout in item.stash:
        hook.pytest_timeout_set_timer(item=item, settings=item.stash[_timeout])
    return True


def _file(item: pytest.Item) -> pytest.File:
    file = item.getparent(pytest.File)
    assert file is not None, item
    return file


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome == "rerun" and (why := _why.pop(report.nodeid, "")):
        report.sections.append((STOOD, why))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    repeated = [
        r
        for r in terminalreporter.stats.get("rerun", [])
        if any(name == STOOD for name, _ in r.sections)
    ]
    if repeated:
        terminalreporter.write_sep(
            "=", "repeated, because the machine stood still while they failed"
        )
    for report in repeated:
        terminalreporter.write_line(
            f"{report.nodeid} ({report.when}): {dict(report.sections)[STOOD]}"
        )
        terminalreporter.write_line(
            "    " + "\n    ".join(report.longreprtext.splitlines()[-SHOWN_LINES:])
        )
