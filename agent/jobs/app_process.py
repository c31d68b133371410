"""The app's functions in a forked process, so that a crash there does not end the job command.

Questions and answers are JSON lines over a private socket. The first question starts the process; a
question after its death starts it again. What the app prints goes to the job's output; tracebacks
go to the job's stderr. A module that only failures need is imported when one happens, because each
run of an app loads this module.
"""

import contextlib
import faulthandler
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any, Literal, NoReturn, assert_never

from ...apps.app import App, AppError, Prepared, Run
from ...apps.json_values import NotPlain, encode
from ...apps.registry import load
from ...protocol.errors import Refusal
from ...protocol.jobs import progress_report
from ...protocol.version import APP_VERSION
from ...runtime.filesystems import write_atomically
from ..workers.app_text import RESULT, one_line
from .job_input import RunInput

Question = Literal["prepare", "progress", "outcome", "result"]
_PIECE = 65536
_POINTS = ("result.written", "result.renamed")
#: Time (seconds) for a process to end after its socket closed; then it is killed.
_DEATH_SECS = 1.0


class Failed(Exception):
    """The app failed. `sentence` is for the user; signal: the signal that killed its process; late:
    it exceeded its time limit.
    """

    def __init__(self, sentence: str, *, signal: int | None = None, late: bool = False) -> None:
        super().__init__(sentence)
        self.sentence, self.signal, self.late = sentence, signal, late


class _InvalidValue(Exception):
    """The app returned a value that violates its contract."""


class AppSide:
    """Calls the app's functions in the forked process. woken: a descriptor that is readable when a
    child has ended.
    """

    def __init__(self, run_input: RunInput, woken: int) -> None:
        self._input, self._woken = run_input, woken
        self._pid = 0
        self._socket: socket.socket | None = None

    def ask(self, question: Question, *, code: int = 0, timeout_secs: float | None = None) -> Any:
        """Call a function of the app and return its value. Raises Failed."""
        where = f"{self._input.simulation_type} failed in {question}"
        if self._socket is None:
            self._start()
        assert self._socket is not None
        try:
            self._socket.sendall(json.dumps({"ask": question, "code": code}).encode() + b"\n")
            line = self._read_answer(
                None if timeout_secs is None else time.monotonic() + timeout_secs
            )
        except TimeoutError:
            self.close()
            raise Failed(f"{where}: no answer within {timeout_secs:g} s", late=True) from None
        except (BrokenPipeError, ConnectionResetError):
            line = b""
        if not line:
            raise self._death(where)
        answer = json.loads(line)
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer["value"]

    def close(self) -> None:
        """Kill the forked process."""
        if self._socket is not None:
            self._kill()

    # ---- inside

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            _serve(theirs, self._input)
        theirs.close()
        self._pid, self._socket = pid, ours

    def _read_answer(self, until: float | None) -> bytes:
        """Return the process's answer, or b"" if it ended without an answer. Raises TimeoutError."""
        assert self._socket is not None
        got = bytearray()
        while not got.endswith(b"\n"):
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            ready, _, _ = select.select([self._socket.fileno(), self._woken], [], [], left)
            if self._socket.fileno() in ready:
                piece = self._socket.recv(_PIECE)
                if not piece:
                    return b""
                got += piece
            elif ready and self._has_ended():  # only its own children could still write
                return b""
        return bytes(got)

    def _has_ended(self) -> bool:
        drain(self._woken)
        found = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return found is not None

    def _death(self, where: str) -> Failed:
        until = time.monotonic() + _DEATH_SECS
        # its socket closes a little before it ends
        while not self._has_ended() and time.monotonic() < until:
            select.select([self._woken], [], [], 0.05)
        code = self._kill()
        if code >= 0:
            return Failed(f"{where}: its process ended with exit code {code}")
        from ...protocol.jobs.exit_info import signal_name

        return Failed(
            f"{where}: its process was killed by signal {-code} ({signal_name(-code)})",
            signal=-code,
        )

    def _kill(self) -> int:
        """Kill and reap the process; return its exit code, negative for a signal."""
        assert self._socket is not None
        self._socket.close()
        self._socket = None
        os.kill(self._pid, signal.SIGKILL)  # no effect if it has ended
        _, status = os.waitpid(self._pid, 0)
        return os.waitstatus_to_exitcode(status)


def drain(woken: int) -> None:
    """Empty the wakeup descriptor."""
    with contextlib.suppress(BlockingIOError):
        while os.read(woken, _PIECE):
            pass


# ---- in the forked process


def _serve(asked: socket.socket, run_input: RunInput) -> NoReturn:
    """Answer until the socket closes. Never returns to the caller's code."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        faulthandler.enable()
        with asked.makefile("rb") as questions:
            for line in questions:
                question = json.loads(line)
                answer = _answer(question["ask"], question["code"], run_input)
                sys.stdout.flush()
                asked.sendall(json.dumps(answer).encode() + b"\n")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(70)


def _answer(question: Question, code: int, run_input: RunInput) -> dict[str, Any]:
    where = f"{run_input.simulation_type} failed in {question}"
    try:
        return {"value": _call_app(question, code, run_input)}
    except AppError as error:
        return {"failed": one_line(str(error)) or f"{where} without a message"}
    except Refusal as error:  # the app cannot be loaded
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        return {"failed": error.sentence}
    except NotPlain as error:
        return {"failed": f"{where}: the returned value cannot be sent: {error}"}
    except _InvalidValue as error:
        return {"failed": f"{where}: the returned value is invalid: {error}"}
    except SystemExit as error:
        return {"failed": f"{where}: it called exit({one_line(repr(error.code))})"}
    except BaseException as error:
        traceback.print_exc()
        return {"failed": f"{where}: {type(error).__name__}: {one_line(str(error))}"}


def _call_app(question: Question, code: int, run_input: RunInput) -> Any:
    app = load(run_input.simulation_type, run_input.also)
    model = app.model(run_input.compute_model)
    if model is None:
        raise AppError(
            f"{app.name} has no compute model {run_input.compute_model!a}; it has: {', '.join(m.name for m in app.models)}"
        )
    run = Run(run_dir=run_input.run_dir, lib=run_input.lib, model=model.name, data=run_input.data)
    match question:
        case "prepare":
            _check_version(app)
            return _check_prepared(app.prepare(run), sequential=model.kind == "sequential")
        case "progress":
            return _check_report(app.progress(run))
        case "outcome":
            return _check_sentence(app.outcome(run, code))
        case "result":
            return _store_result(app, run)
        case _:
            assert_never(question)


def _check_version(app: App) -> None:
    """Raise AppError if the front end computed this run's hash with another version of the app. The
    result would be stored under that hash.
    """
    wanted = os.environ.get(APP_VERSION, app.version)
    if wanted != app.version:
        raise AppError(
            f"the front end has {app.name} {wanted}, but {os.uname().nodename} has {app.name} {app.version}, so nothing was run: "
            "install the same version everywhere, restart the front end ('jobscribe server', or 'jobscribe up'), and submit the run again"
        )


def _check_prepared(prepared: Any, *, sequential: bool) -> dict[str, Any]:
    if not isinstance(prepared, Prepared):
        raise _InvalidValue(f"it is of type {type(prepared).__name__}, not Prepared")
    command, env = prepared.command, prepared.env
    if (
        not isinstance(command, tuple | list)
        or not command
        or not all(isinstance(a, str) and "\0" not in a for a in command)
    ):
        raise _InvalidValue("command is not a tuple of strings that starts with the program")
    if not isinstance(env, dict) or not all(
        isinstance(t, str) and "\0" not in t for pair in env.items() for t in pair
    ):
        raise _InvalidValue("env does not map strings to strings")
    return {"command": command, "env": env, "sequential": sequential}


def _check_report(value: Any) -> Any:
    text = encode(value)
    wrong = progress_report.find_error(json.loads(text))
    if wrong is not None:
        raise _InvalidValue(wrong)
    if len(text) > progress_report.LIMIT:
        raise _InvalidValue(f"a report has at most {progress_report.LIMIT} bytes, not {len(text)}")
    return json.loads(text)


def _check_sentence(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise _InvalidValue(f"it is of type {type(value).__name__}, not str")
    return value


def _store_result(app: App, run: Run) -> None:
    assert app.result is not None
    value = app.result(run)
    if not isinstance(value, dict):
        raise _InvalidValue(f"a result must be a dict, not of type {type(value).__name__}")
    write_atomically(str(run.run_dir / RESULT), encode(value), points=_POINTS)
