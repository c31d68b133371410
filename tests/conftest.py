"""Mark tests that use real processes, and repeat those that fail while the machine stands still.

The marker `process` separates tests that start child processes or take TCP ports. Tests without it
are in `make check`, are never repeated, and fail if they do either (see `process_guard`).

The marker `soak` is for tests that run only with SOAK=1 (`make soak`): other runs skip them and
list what covers them.

A failure while the machine stood still proves nothing about the product. The evidence is the
scheduling delay of an idle process in the same time (see `scheduling_noise`); without this evidence
a failure counts at once. No failure is hidden: a test that fails in all its repeats has failed. The
end of the run lists each repeated test with its failure and the evidence, and more than a few
repeats fail the whole run (see `rerun_count`). `PYTEST_ARGS='-p no:rerunfailures'` disables repeats.
"""

import functools
import gc
import os
import pickle
import signal
import sys
import time
from collections.abc import Generator
from typing import Any

import process_guard
import pytest
import rerun_count
import scheduling_noise
import socket_origins
from pytest_rerunfailures import StatusDB

#: Folders whose tests all use real processes or engines. Elsewhere, tests and files say it
#: themselves.
PROCESS_FOLDERS = frozenset(
    {"chaos", "docker", "examples", "integration", "packaging", "site", "slurm", "systemd", "web"}
)
#: The session's fixture with the engine of a folder.
ENGINES = {"docker": "pool", "slurm": "_cluster"}
SOAK = os.environ.get("SOAK") == "1"
#: Repeats per test and per process. One more than a whole run allows: the run has failed then.
REPEATS, AT_MOST = 2, rerun_count.AT_MOST + 1
CALM_SECS, WAIT_SECS = 3.0, 60.0
#: Whether this process has run a test that uses processes.
_mixed = pytest.StashKey[bool]()
#: Whether the last test of this process was repeated.
_was_repeated = pytest.StashKey[bool]()
_began, _failed, _timeout = (
    pytest.StashKey[scheduling_noise.Moment](),
    pytest.StashKey[str](),
    pytest.StashKey[Any](),
)
#: Key of a worker's input: path of the records and pid of the idle process.
IDLE = "idle process"
#: Key of a report in a message of a worker.
_PACKED = "packed"
#: Report section with the evidence, and number of failure lines shown.
STOOD, SHOWN_LINES = "the machine stood still", 6
_guard = process_guard.ProcessGuard()
#: Why tests of this process are repeated, by test id.
_why: dict[str, str] = {}
_repeated: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Use the idle process of the whole run. Name the origin of sockets that nobody closes. Let
    tests send SIGINT and SIGHUP to their children: a shell's background jobs ignore the first,
    `nohup` ignores the second, and children inherit that.
    """
    socket_origins.install()
    if IDLE in (given := getattr(config, "workerinput", {})):
        scheduling_noise.share(*given[IDLE])
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Start one idle process for all workers: each takes as much processor time as the next one."""
    if node.config.option.markexpr != "not process":
        idle = scheduling_noise.floor()
        node.workerinput[IDLE] = (idle.path, idle.pid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute the tests of `--dist loadgroup` (see `worker_groups`)."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from worker_groups import WorkerGroups

    config.option.loadscopereorder = False  # in the order of the command line
    return WorkerGroups(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep workers from reporting repeats over a socket. Reports take two round trips per test,
    each with a delayed acknowledgement (19 s in 1,900 tests).
    """
    if hasattr(session.config, "workerinput") and session.config.pluginmanager.hasplugin(
        "rerunfailures"
    ):
        session.config.failures_db.sock.close()  # type: ignore[attr-defined]
        session.config.failures_db = StatusDB()  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_report_to_serializable(report: object) -> dict[str, bytes] | None:
    """Send a report in one piece, without the names of its test, which nobody reads:
    pytest-xdist converts each value of a report on its own, in Python.
    """
    if not isinstance(report, pytest.TestReport):
        return None
    return {_PACKED: pickle.dumps({**report._to_json(), "keywords": {}})}


@pytest.hookimpl(tryfirst=True)
def pytest_report_from_serializable(data: dict[str, Any]) -> pytest.TestReport | None:
    return pytest.TestReport._from_json(pickle.loads(data[_PACKED])) if _PACKED in data else None


def pytest_collection() -> None:
    """Collect no garbage while modules are imported: a tenth of the time of each worker."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage again, but not among the tests and modules, and more rarely than by default:
    saves a twentieth of the time of the tests without processes.
    """
    gc.freeze()
    gc.set_threshold(10_000, 50, 10)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Set the marker `process` for whole folders, before `-m` selects; make these tests repeatable.
    Skip tests with the marker `soak` outside soaks.
    """
    repeats = config.pluginmanager.hasplugin("rerunfailures")
    for item in items:
        if _folder(item) in PROCESS_FOLDERS:
            item.add_marker("process")
        if not SOAK and (soak := item.get_closest_marker("soak")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"only with SOAK=1; see {soak.args[0]}"))
        if repeats and _uses_processes(item):
            item.add_marker(
                pytest.mark.flaky(reruns=REPEATS, condition=functools.partial(_says_nothing, item))
            )


def _collect_leftovers() -> None:
    """Collect what a test has left open that failed before it was repeated: the warnings about it
    would fail another test.
    """
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        gc.collect()
    finally:
        sys.unraisablehook = hook


def _uses_processes(item: pytest.Item) -> bool:
    return item.get_closest_marker("process") is not None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.session.stash.get(_was_repeated, False):
        item.session.stash[_was_repeated] = False
        _collect_leftovers()
    if not _uses_processes(item):
        _guard.watch(item.nodeid)
        return
    item.session.stash[_mixed] = True
    _guard.watch("")
    scheduling_noise.floor()
    item.stash[_began], item.stash[_failed] = scheduling_noise.now(), ""
    _file(item).stash.setdefault(_began, item.stash[_began])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """The last test of a process also ends what earlier ones have shared. Hosts and clusters end
    with the last test of their folder: the other workers go on meanwhile.
    """
    if nextitem is None and item.session.stash.get(_mixed, False):
        _guard.watch("")
    yield
    folder = _folder(item)
    if folder in ENGINES and nextitem is not None and _folder(nextitem) != folder:
        engines = item.session._fixturemanager.getfixturedefs(ENGINES[folder], item)
        assert engines, f"tests/{folder} has no fixture {ENGINES[folder]}"
        for fixture in engines:
            fixture.finish(item._request)  # type: ignore[attr-defined]


def _folder(item: pytest.Item) -> str:
    return item.nodeid.split("/")[1]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if calls := _guard.calls():
        report.outcome = "failed"
        report.longrepr = f"without the marker `process`, this test calls {', '.join(calls)}"
    if call.when == "teardown":
        _guard.watch("")
    item.session.stash[_was_repeated] = item.nodeid in _repeated
    if report.failed:
        item.stash[_failed] = item.stash.get(_failed, "") or report.when
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
        why = f"{report.nodeid} ({report.when}): {dict(report.sections)[STOOD]}"
        terminalreporter.write_line(why)
        if not hasattr(terminalreporter.config, "workerinput"):  # a worker has a summary as well
            rerun_count.add(why)
        terminalreporter.write_line(
            "    " + "\n    ".join(report.longreprtext.splitlines()[-SHOWN_LINES:])
        )
