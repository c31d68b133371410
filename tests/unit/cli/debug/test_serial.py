"""`debug serial` names what prevents an object from being sent to a job, without a supervisor."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
TEXT = """
import threading
cfg = {"password": "hunter2", "deep": [1, {"lock": threading.Lock()}]}
def train(x): return cfg
def fine(x): return helper(x)
def helper(x): return x
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    import sys

    from cloudpickle import unregister_pickle_by_value

    from jobscribe.cli.debug import serial

    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "job.py").write_text(TEXT)
    yield str(tmp_path / "job.py")
    if (module := sys.modules.pop(serial.MODULE, None)) is not None:
        unregister_pickle_by_value(module)


def test_all_offenders_are_rows_with_place_and_fix(run: Run, file: str) -> None:
    ended = run("debug", "serial", f"{file}:train")
    assert ended.code == 1 and "hunter2" not in ended.out
    assert ended.out.startswith("cfg['deep'][1]['lock'] (item, global of train()): _thread.lock: ")
    ended = run("debug", "serial", f"{file}:cfg", "--json")
    (row,) = ended.json()["offenders"]
    assert (ended.code, row["path"], row["scope"]) == (1, "cfg['deep'][1]['lock']", "item")


def test_an_object_that_can_be_sent_is_said_so(run: Run, file: str) -> None:
    ended = run("debug", "serial", f"{file}:fine")
    assert (ended.code, ended.out) == (0, "fine can be sent to a job\n")


def test_wrong_places_are_one_sentence(run: Run, file: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    for place, said in (
        ("job.py", "write FILE:NAME"),
        (f"{tmp_path}/none.py:x", "there is no file"),
        (f"{file}:nothing", "has no nothing"),
        (f"{tmp_path}/bad.py:x", "failed: ZeroDivisionError"),
    ):
        ended = run("debug", "serial", place)
        assert ended.code in (2, 125) and said in ended.err and "Traceback" not in ended.err
