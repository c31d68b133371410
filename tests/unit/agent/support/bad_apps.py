"""Faulty apps, and a few apps that inspect their inputs. Each is one `App`; the tests use them by
name.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobscribe.apps.app import App, AppError, Data, Frame, Model, Prepared, Report, Run


def _prepare(run: Run) -> Prepared:
    """Return the command that the test passes: Python code, shell code, or an argument vector."""
    if "argv" in run.data:
        return Prepared(command=tuple(run.data["argv"]))
    if "sh" in run.data:
        return Prepared(command=("/bin/sh", "-c", run.data["sh"]), env=run.data.get("env", {}))
    return Prepared(command=(sys.executable, "-c", run.data.get("python", "pass")))


def _app(name: str, kind: Any = "sequential", **more: Any) -> App:
    parts: dict[str, Any] = {
        "parameters": lambda data, model: data,
        "prepare": _prepare,
        "result": lambda run: {"ok": True},
        "frame": lambda run, frame: {},
    }
    model = Model(
        name="testReport",
        title="Test",
        kind=kind,
        reports=(Report(name="testReport", title="Test", picture="curves"),),
    )
    return App(name=name, title=name, version="1", models=(model,), **{**parts, **more})


def _raise(error: BaseException) -> Callable[..., Any]:
    def raises(*_: Any) -> Any:
        raise error

    return raises


def _kill(number: int) -> Callable[..., Any]:
    def dies(*_: Any) -> Any:
        os.kill(os.getpid(), number)
        time.sleep(60)

    return dies


def _exit_silently(*_: Any) -> Any:
    os._exit(0)


def _close_everything(*_: Any) -> Any:
    os.closerange(3, 256)
    time.sleep(60)


def _shout(run: Run) -> Prepared:
    for fd in (1, 2):
        os.write(fd, b'{"value": {"command": ["/bin/false"]}}\n\xff\xfe\0' * 1000)
    return _prepare(run)


def _hang(*_: Any) -> Any:
    time.sleep(float(os.environ.get("NAP", "86400")))


def _leave_a_child(*_: Any) -> Any:
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGSEGV)


def _count(run: Run) -> dict[str, Any]:
    """Return the number of files named `part-*` as the frame count."""
    return {"frameCount": len(list(run.run_dir.glob("part-*")))}


good = _app("good")
counting = _app("counting", "parallel", progress=_count)
prepare_raises = _app("prepare_raises", prepare=_raise(ValueError("no\nsuch   thing")))
prepare_says_no = _app(
    "prepare_says_no", prepare=_raise(AppError("The plate is too small for 3 hot spots."))
)
prepare_says_nothing = _app("prepare_says_nothing", prepare=_raise(AppError("")))
prepare_exits = _app("prepare_exits", prepare=_raise(SystemExit(0)))
prepare_exits_silently = _app("prepare_exits_silently", prepare=_exit_silently)
prepare_dies = _app("prepare_dies", prepare=_kill(signal.SIGSEGV))
prepare_dies_leaving_a_child = _app("prepare_dies_leaving_a_child", prepare=_leave_a_child)
prepare_closes_everything = _app("prepare_closes_everything", prepare=_close_everything)
prepare_hangs = _app("prepare_hangs", prepare=_hang)
prepare_returns_text = _app("prepare_returns_text", prepare=lambda run: "ls -l")
prepare_returns_nothing = _app("prepare_returns_nothing", prepare=lambda run: Prepared(command=()))
prepare_shouts = _app("prepare_shouts", prepare=_shout)
progress_raises = _app("progress_raises", "parallel", progress=_raise(KeyError("step")))
progress_dies = _app("progress_dies", "parallel", progress=_kill(signal.SIGKILL))
progress_hangs = _app("progress_hangs", "parallel", progress=_hang)
progress_is_long = _app("progress_is_long", "parallel", progress=lambda run: {"text": "x" * 20_000})
progress_has_many_keys = _app(
    "progress_has_many_keys", "parallel", progress=lambda run: {f"k{i}": i for i in range(100)}
)
progress_is_a_list = _app("progress_is_a_list", "parallel", progress=lambda run: [1])
result_raises = _app("result_raises", result=_raise(ZeroDivisionError("division by zero")))
result_says_no = _app(
    "result_says_no", result=_raise(AppError("There is no curve in what came out."))
)
result_dies = _app("result_dies", result=_kill(signal.SIGSEGV))
result_hangs = _app("result_hangs", result=_hang)
result_is_nan = _app(
    "result_is_nan", result=lambda run: {"plots": [{"points": [1.0, 2, float("nan")]}]}
)
result_has_a_set = _app("result_has_a_set", result=lambda run: {"x": {"y": {1, 2}}})
result_is_a_list = _app("result_is_a_list", result=lambda run: [1, 2])
outcome_explains = _app(
    "outcome_explains", outcome=lambda run, code: f"It ended with {code}, as expected."
)
outcome_raises = _app("outcome_raises", outcome=_raise(RuntimeError("at the end")))
no_app = {"name": "no_app"}
misnamed = _app("somebody_else")


def _library(run: Run) -> Any:
    return {
        "lib": str(run.lib),
        "file": (run.lib / "mine.txt").read_text(),
        "model": run.model,
        "data": run.data,
    }


library = _app("library", result=_library)


def _frame(run: Run, frame: Frame) -> Any:
    return {"index": frame.index, "args": frame.args}


def _notes(lib: Path, args: Data) -> Any:
    return json.loads((lib / "notes.json").read_text())


framed = _app("framed", "parallel", frame=_frame, stateful={"notes": _notes})
