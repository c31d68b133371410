"""The answer to a call: load the app, call the requested function, encode its value as JSON.

Runs only in a fork of the worker process, so that effects of the app end with that process.
Deadlines and queues are in `call_queue`, processes in `worker_process`.
"""

import os
import signal
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, assert_never

import msgspec

from ...apps import registry
from ...apps.app import App, AppError, Frame, Run
from ...apps.json_values import NotPlain, encode
from ...protocol.errors import Refusal
from ...protocol.ids import short_op
from ...protocol.jobs.exit_info import signal_name
from ...protocol.wire.messages import Call, CallReply, OpError, op_name
from ..files import run_directory
from .app_text import RESULT, one_line, whole

_SENTENCE_CHARS, _TRACE_CHARS = 2000, 20_000


class Outcome(msgspec.Struct, array_like=True):
    """The result of a fork. code: None if `reply` is valid, otherwise the error code for `sentence`.

    trace: for the log. imported, loaded: modules that this call imported, and whether it loaded its
    app; the worker process then imports them for later calls. outdated: the call was not made,
    because the app's files have changed since the worker process imported them.
    """

    code: str | None = None
    sentence: str = ""
    reply: bytes = b""
    trace: str = ""
    imported: tuple[str, ...] = ()
    loaded: bool = False
    outdated: bool = False


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


class Calls:
    """Answers calls. also: apps besides the installed ones, see apps.registry. Apps loaded before
    the fork need not be loaded again.
    """

    def __init__(self, also: Iterable[str]) -> None:
        self._also = tuple(also)
        self._apps: dict[str, App] = {}
        #: by app: its files with their stamps at the time of the import
        self._files: dict[str, dict[str, object]] = {}

    def load(self, name: str) -> App:
        """Return the app. Raises Refusal, and any exception of the app's module."""
        app = self._apps.get(name)
        if app is None:
            app = self._apps[name] = registry.load(name, self._also)
            self._files[name] = {file: _stamp(file) for file in registry.sources(name, self._also)}
        return app

    def outcome(self, call: Call) -> Outcome:
        """Answer a call. Never raises, whatever the app does."""
        was_there = call.simulation_type in self._apps
        if was_there and any(
            _stamp(file) != before for file, before in self._files[call.simulation_type].items()
        ):
            return Outcome(
                "agentUnavailable",
                f"{call.simulation_type} is being changed on this host; try again",
                outdated=True,
            )
        outcome = self._outcome(call)
        outcome.loaded = not was_there and call.simulation_type in self._apps
        return outcome

    def _outcome(self, call: Call) -> Outcome:
        try:
            return _within(self._reply(call), call)
        except Refusal as e:
            return Outcome(
                e.code,
                _short(e.sentence),
                trace=_trace(e.__cause__) if e.__cause__ is not None else "",
            )
        except AppError as e:
            return Outcome(
                "appRefused", _short(_text(e)) or f"{describe(call)} was refused without a message"
            )
        except NotPlain as e:
            return Outcome(
                "appFailed",
                f"the value returned by {describe(call)} cannot be sent: {_short(str(e))}",
            )
        except SystemExit as e:
            return Outcome(
                "appFailed",
                f"{describe(call)} called exit({one_line(repr(e.code))})",
                trace=_trace(e),
            )
        except BaseException as e:
            return Outcome(
                "appFailed",
                f"{describe(call)} failed: {type(e).__name__}: {one_line(_text(e))}",
                trace=_trace(e),
            )

    def _reply(self, call: Call) -> bytes:
        return encode(_value(self.load(call.simulation_type), call))


def log_line(call: Call, outcome: Outcome, secs: float) -> tuple[Any, ...]:
    """Return format and arguments of the log line for an answered call."""
    if outcome.sentence or outcome.code is not None:
        said = f"{outcome.code}: {outcome.sentence}" if outcome.code else outcome.sentence
    else:
        said = f"ok bytes={len(outcome.reply)}"
    form = "opName={} o={} jobCmd={} app={} method={} runDir={} seconds={:.4f} outcome={}"
    return (
        form,
        op_name(call),
        short_op(call.op_id),
        call.job_cmd,
        call.simulation_type,
        call.method or None,
        call.run_dir,
        secs,
        said,
    )


def message(call: Call, outcome: Outcome) -> CallReply | OpError:
    """Return the answer as sent to the supervisor."""
    if outcome.code is not None:
        return OpError(op_id=call.op_id, code=outcome.code, error=outcome.sentence)
    return CallReply(op_id=call.op_id, reply=outcome.reply)


def describe(call: Call) -> str:
    """Return the function of a call in words, such as `the frame of heat`."""
    app = call.simulation_type
    match call.job_cmd:
        case "sequential_result":
            return f"the result of {app}"
        case "get_simulation_frame":
            return f"the frame of {app}"
        case "list_run_files":
            return f"the list of downloads of {app}"
        case "download_run_file":
            return f"the download of {app}"
        case "analysis_job" | "stateful_compute" | "stateless_compute":
            return f"the method {one_line(call.method) or '(none)'} of {app}"
        case _:
            assert_never(call.job_cmd)


def _short(text: str) -> str:
    return whole(text if len(text) <= _SENTENCE_CHARS else text[:_SENTENCE_CHARS] + "...")


# ---- outcomes of a fork that did not answer


def invalid_answer(call: Call) -> Outcome:
    """Return the outcome for a call whose app wrote to the answer's socket."""
    return Outcome(
        "appFailed",
        f"{describe(call)} wrote to the socket of its own answer, so the answer is unreadable",
    )


def unanswered(call: Call, status: int) -> Outcome:
    """Return the outcome for a process that ended without an answer. status: from waitpid."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return Outcome(
            "appFailed",
            f"{describe(call)} ended its process with exit code {code} instead of returning",
        )
    memory = "; the machine may have run out of memory" if -code == signal.SIGKILL else ""
    return Outcome("appFailed", f"{describe(call)} was killed by {signal_name(-code)}{memory}")


# ---- the seven kinds


def _value(app: App, call: Call) -> Any:
    match call.job_cmd:
        case "get_simulation_frame":
            return _frame(app, call)
        case "list_run_files":
            return {"files": app.downloads(_run(call))}
        case "download_run_file":
            return {"name": _download(app, call)}
        case "analysis_job":
            return _method(app.analysis, "analysis", call)(_run(call), call.args)
        case "stateful_compute":
            return _method(app.stateful, "stateful", call)(Path(call.lib_dir), call.args)
        case "stateless_compute":
            return _method(app.stateless, "stateless", call)(call.args)
        case "sequential_result":
            raise AssertionError("stored_result reads results")
        case _:
            assert_never(call.job_cmd)


def _method(methods: Mapping[str, Callable[..., Any]], kind: str, call: Call) -> Callable[..., Any]:
    try:
        return methods[call.method]
    except KeyError:
        there = f"it has {', '.join(sorted(methods))}" if methods else "it has none"
        raise Refusal(
            "notFound",
            f"{call.simulation_type} has no {kind} method {one_line(call.method)!a}; {there}",
        ) from None


def _frame(app: App, call: Call) -> Any:
    args = dict(call.args)
    report, index = args.pop("frameReport", None), args.pop("frameIndex", None)
    if not isinstance(report, str) or type(index) is not int or index < 0:
        raise Refusal(
            "badRequest",
            "a frame needs a report name (frameReport) and a number from 0 on (frameIndex)",
        )
    model = app.model(call.compute_model)
    names = [r.name for r in model.reports] if model else []
    if app.frame is None or (names and report not in names):
        there = f"it has {', '.join(names)}" if app.frame and names else "it has no frames"
        raise Refusal(
            "notFound", f"{call.simulation_type} has no frames called {one_line(report)!a}; {there}"
        )
    return app.frame(_run(call), Frame(report=report, index=index, args=args))


def _download(app: App, call: Call) -> str:
    suffix = call.args.get("suffix", "")
    if not isinstance(suffix, str):
        raise Refusal("badRequest", "suffix must be text: the end of the requested file's name")
    run = _run(call)
    if app.download is not None:
        name = app.download(run, suffix)
    else:
        names = app.downloads(run)
        found = next((n for n in names if n.endswith(suffix)), None)
        if found is None:
            raise Refusal(
                "notFound",
                f"the run has no file *{one_line(suffix)} to download; it has {', '.join(names) or 'none'}",
            )
        name = found
    if not isinstance(name, str):
        raise NotPlain(f"it is of type {type(name).__name__}, not a file name")
    if not name:
        raise NotPlain("it is an empty name")
    try:
        run_directory.read(str(run.run_dir), name, 0, 0)
    except Refusal as e:
        raise NotPlain(f"it is not a file of the run directory: {e.sentence}") from None
    return name


def stored_result(call: Call) -> Outcome:
    """Return the result file unchanged: the job command wrote JSON, so the app is not needed. Blocks
    on the disk.
    """
    try:
        return Outcome(reply=_stored(call))
    except Refusal as e:
        return Outcome(e.code, _short(e.sentence))


def _stored(call: Call) -> bytes:
    run_dir = str(_run_dir(call))
    run_directory.read(run_dir, "", 0, 0)
    with run_directory.open_file(run_dir, RESULT) as fd:
        size = os.fstat(fd).st_size
        if size > call.reply_limit:
            raise _too_large(size, call)
        return run_directory.read_all(fd, 0, size)


def _run(call: Call) -> Run:
    run_dir = _run_dir(call)
    run_directory.read(str(run_dir), "", 0, 0)
    return Run(run_dir=run_dir, lib=Path(call.lib_dir), model=call.compute_model, data=call.data)


def _run_dir(call: Call) -> Path:
    if call.run_dir is None:
        raise Refusal("badRequest", f"{call.job_cmd} needs a run, but the call names none")
    return Path(call.run_dir)


def _within(reply: bytes, call: Call) -> Outcome:
    if len(reply) > call.reply_limit:
        raise _too_large(len(reply), call)
    return Outcome(reply=reply)


def _too_large(size: int, call: Call) -> Refusal:
    return Refusal(
        "replyTooLarge", f"{describe(call)} has {size:,} bytes; the limit is {call.reply_limit:,}"
    )


# ---- failures


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as e:  # str() of the app's exception fails
        return f"(its text cannot be shown: {type(e).__name__})"


def _trace(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception as e:
        return f"the traceback cannot be shown: {type(e).__name__}"
    return whole(text[-_TRACE_CHARS:])
