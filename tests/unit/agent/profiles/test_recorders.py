"""Recorders in this process: CPU time goes to the stack that used it, and files are bounded."""

import ast
import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobscribe.agent.breakpoints import environment as breakpoints
from jobscribe.agent.profiles.environment import STAGED
from jobscribe.protocol.jobs import profiling


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    monkeypatch.syspath_prepend(str(STAGED))
    names = ("jobscribe_profiler", "jobscribe_recorders")
    yield SimpleNamespace(**{name[10:]: importlib.import_module(name) for name in names})
    for name in names:
        del sys.modules[name]


def burn(secs: float) -> None:
    end = time.thread_time() + secs
    while time.thread_time() < end:
        sum(range(100))


def stacks(folder: Path) -> dict[str, int]:
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    lines = [line.rpartition(" ") for line in file.read_text().splitlines()]
    return {stack: int(number) for stack, _, number in lines}


def test_cpu_time_is_counted_in_place_and_a_file_is_bounded(
    staged: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = staged.recorders.Stacks(str(tmp_path / "p" / "task"))

    def code(name: str) -> list[object]:
        return [compile("", f"/x/{name}.py", "exec")]

    recorder._add(0, code("a;b"), 5_000_000)
    recorder._write()
    recorder._add(0, code("a;b"), 2_000_000)
    recorder._add(0, code("c"), 1_000_000)
    recorder._write()
    folder = tmp_path / "p" / "task"
    first, second = stacks(folder).items()
    assert first == ("<module> (a_b.py:1)", 7000) and second == ("<module> (c.py:1)", 1000)
    monkeypatch.setattr(staged.profiler, "FILE_BYTES", 10)
    recorder._add(0, code("d"), 1_000_000)
    recorder._write()
    for name in ("e", "f"):
        recorder._add(0, code(name), 1_000_000)
    recorder._write()
    found = stacks(folder)
    assert found.pop("(stacks over the size limit)") == 2000 and len(found) == 3


def test_the_limits_of_a_task_leave_a_sentence(
    staged: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged.profiler, "MOST_FILES", 2)
    folder = tmp_path / "p" / "task"
    made = []
    for _ in range(4):
        made.append(staged.profiler.new_file(str(folder), "cpu-sampler", "collapsed"))
        time.sleep(0.002)  # the name has the time in milliseconds
    assert [path is not None for path in made] == [True, True, False, False]
    assert "the limit of 2 profiles" in (folder / "limit.txt").read_text()
    assert len(list(folder.iterdir())) == 3


def test_a_pause_keeps_the_cost_below_its_share(staged: SimpleNamespace) -> None:
    assert staged.profiler.pause_after(0.0001, 0.01) == 0.01
    assert staged.profiler.pause_after(0.02, 0.01) == pytest.approx(0.98)


def test_staged_modules_that_can_import_nothing_agree_with_the_rest(
    staged: SimpleNamespace,
) -> None:
    assert staged.profiler.FILE_BYTES == profiling.FILE_BYTES
    files = (STAGED / "sitecustomize.py", breakpoints.STAGED / "on_error" / "sitecustomize.py")
    hidden = [
        ast.dump(node)
        for file in files
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "_run_hidden"
    ]
    assert len(hidden) == 2 and hidden[0] == hidden[1]
