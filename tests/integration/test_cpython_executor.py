"""CPython's own tests of concurrent.futures against both executors.

They are in the interpreter, or in a Debian package that etc/engines/python_tests.sh unpacks.
"""

import importlib.util
import os
import subprocess
import sys
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
from supervisor_process import SupervisorProcess

import jobscribe
from jobscribe.client import Client

SCRIPT = Path(jobscribe.__file__).parent / "etc/engines/python_tests.sh"
NAME = "test.test_concurrent_futures"
#: The classes with tests for any executor, and their modules since Python 3.12.
CLASSES = {
    "ExecutorTest": "executor",
    "WaitTests": "test_wait",
    "AsCompletedTests": "test_as_completed",
    "ExecutorShutdownTest": "test_shutdown",
}
_INTERPRETER = "starts an interpreter with an executor of the standard library by its name"
_OPTIONS = "wrong options are a ClientError with a sentence"
#: Tests that do not apply, with the reason. The other classes of these modules test threads and
#: processes of the standard library's pools, and `Future` alone.
INAPPLICABLE = {
    "test_interpreter_shutdown": _INTERPRETER,
    "test_submit_after_interpreter_shutdown": _INTERPRETER,
    "test_hang_gh83386": _INTERPRETER,
    "test_hang_gh94440": _INTERPRETER,
    "test_max_workers_negative": _OPTIONS,
    "test_free_reference": "the thread that reads results may hold the last one for a moment; see"
    " test_executor.py::test_an_iterator_keeps_no_result",
    "test_cancel_futures": "a cancel also ends runs; calls of warm workers begin only when they were"
    " sent, so that all may be canceled before one begins",
}
#: Seconds for one test of unittest, as in CPython's `ExecutorMixin`.
MOST_SECS = 300.0

pytestmark = pytest.mark.soak("tests/integration/test_warm_functions.py and test_functions.py")


def cpython_modules() -> list[ModuleType]:
    """Load CPython's tests under their own names. Skip where they are missing."""
    done = subprocess.run(
        [SCRIPT, "where"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode:
        pytest.skip(done.stderr.strip())
    folder = Path(done.stdout.strip())
    file = folder / "test_concurrent_futures.py"
    if file.exists():
        return [_loaded(NAME, file)]
    package = folder / "test_concurrent_futures"
    _loaded(NAME, package / "__init__.py")
    names = ["util", *CLASSES.values()]
    return [_loaded(f"{NAME}.{name}", package / f"{name}.py") for name in names]


def _loaded(name: str, file: Path) -> ModuleType:
    places = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=places)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def suite(modules: list[ModuleType], make: Callable[..., Any]) -> Any:
    """Return CPython's tests for an executor. make: creates one, with `max_workers`."""
    found = {name: getattr(m, name) for name in CLASSES for m in modules if hasattr(m, name)}
    assert set(found) == set(CLASSES)

    class Mixin:
        worker_count = 2

        def setUp(self) -> None:
            self.executor_type = make
            self.began = time.monotonic()
            self.executor = make(max_workers=self.worker_count)
            # the first call starts a worker, which the tests do not expect to take time
            assert self.executor.submit(pow, 2, 3).result(60) == 8

        def tearDown(self) -> None:
            self.executor.shutdown(wait=True)
            assert time.monotonic() - self.began < MOST_SECS

    tests = unittest.TestSuite()
    for name, class_ in found.items():
        case = type(name, (Mixin, class_, unittest.TestCase), {})
        loaded = unittest.defaultTestLoader.getTestCaseNames(case)
        tests.addTests(case(test) for test in loaded if test not in INAPPLICABLE)
    return tests


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["max_workers", "workers"])
def test_executors_pass_the_tests_of_cpython(
    make_site: Callable[..., SupervisorProcess], kind: str
) -> None:
    modules = cpython_modules()
    site = make_site("slots.local_sequential=4").start()
    for module in modules:  # jobs cannot import them
        cloudpickle.register_pickle_by_value(module)
    try:
        with Client.from_root(site.root, budget_secs=30.0) as client:
            tests = suite(modules, lambda max_workers: client.executor(**{kind: max_workers}))
            result = unittest.TestResult()
            tests.run(result)
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
    assert [text for _, text in [*result.failures, *result.errors]] == []
    assert result.testsRun >= 20
