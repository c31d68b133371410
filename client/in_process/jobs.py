"""Runs the command of a job in this process and thread, so that `breakpoint()`, debuggers of IDEs and
coverage work in it.

Python scripts, modules and functions run in this interpreter. Other programs are child processes with
the terminal of this one. Time limits, memory limits and captured output have no counterpart.
"""

import contextlib
import os
import re
import runpy
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from types import TracebackType

from ...protocol.ids import Token
from ...protocol.jobs.exit_info import ExitInfo
from ...protocol.launch.job_script import identity_variables
from ...protocol.wire.messages import TaskSpec
from ...schema.jobs.withheld import is_function_call
from ..functions import runner

_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_UNBUFFERED = "-u"
#: Exit code of a Python that cannot open its script.
_NO_SCRIPT = 2


def run_job(spec: TaskSpec, token: Token) -> ExitInfo:
    """Run a task, and return its exit. KeyboardInterrupt ends the task, and is raised again."""
    os.makedirs(spec.run_dir, 0o700, exist_ok=True)
    words = (*spec.wrap, *spec.command)
    env = {**spec.env, **identity_variables(token, spec.run_dir, spec.run_dir)}
    with _surroundings(spec.run_dir, env):
        if is_function_call(words):
            return ExitInfo(code=runner.main(list(words[6:])), source="keeper")
        if (python := _python_words(words)) is not None:
            return ExitInfo(code=_run_python(python), source="keeper")
        return _run_program(words)


@contextlib.contextmanager
def _surroundings(folder: str, env: dict[str, str]) -> Iterator[None]:
    """Give the process the directory and the variables of a task for a while."""
    directory, before = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), dict(os.environ)
    # a job may replace these lists and streams, also by None
    argv, path, streams = sys.argv, sys.path, (sys.stdin, sys.stdout, sys.stderr)
    arguments, places = argv[:], path[:]
    mask = os.umask(0o077)
    os.umask(mask)
    os.chdir(folder)
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        sys.argv, sys.path = argv, path
        sys.argv[:], sys.path[:] = arguments, places
        sys.stdin, sys.stdout, sys.stderr = streams
        os.umask(mask)
        os.fchdir(directory)
        os.close(directory)


def _python_words(words: Sequence[str]) -> list[str] | None:
    """Return the words after a Python and its harmless options; None for other commands."""
    is_python = words[0] == sys.executable or _PYTHON.fullmatch(os.path.basename(words[0]))
    if not is_python:
        return None
    rest = [*words[1:]]
    while rest[:1] == [_UNBUFFERED]:
        del rest[0]
    takes = 2 if rest[:1] in (["-m"], ["-c"]) else 1
    if len(rest) < takes or (takes == 1 and rest[0].startswith("-")):
        return None  # an interactive Python, or one with other options
    return rest


def _run_python(words: list[str]) -> int:
    """Run a script, a module or a text as the main program. Return the exit code. A child that it
    forked ends here, as it would end with its program.
    """
    process, code = os.getpid(), 1
    try:
        code = _main_program(words)
    finally:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # the program replaced it
            sys.stdout.flush()
        if os.getpid() != process:
            os._exit(code)
    return code


def _main_program(words: list[str]) -> int:
    try:
        match words[0]:
            case "-m":
                sys.argv[:], sys.path[:0] = words[1:], [os.getcwd()]
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            case "-c":
                sys.argv[:], sys.path[:0] = ["-c", *words[2:]], [os.getcwd()]
                exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
            case script:
                if not os.path.exists(script):
                    sys.stderr.write(f"python: there is no file {script} in {os.getcwd()}\n")
                    return _NO_SCRIPT
                sys.argv[:] = words
                sys.path[:0] = [os.path.dirname(os.path.abspath(script))]
                runpy.run_path(script, run_name="__main__")
    except SystemExit as e:
        return _exit_code(e.code)
    except Exception as e:
        lines = traceback.format_exception(e.with_traceback(_own_frames(e.__traceback__)))
        runner.say("".join(lines).rstrip("\n"))
        return 1
    return 0


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the frames of the job, without those that started it."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


def _exit_code(code: object) -> int:
    """Return the exit code as the interpreter would."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    runner.say(f"{code}")
    return 1


def _run_program(words: Sequence[str]) -> ExitInfo:
    sys.stdout.flush()
    try:
        code = subprocess.run(words, check=False).returncode
    except OSError as e:
        sys.stderr.write(f"{words[0]}: {e.strerror}\n")
        return ExitInfo(code=127 if isinstance(e, FileNotFoundError) else 126, source="start")
    if code < 0:
        return ExitInfo(signal=-code, source="keeper")
    return ExitInfo(code=code, source="keeper")
