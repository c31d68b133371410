"""The job command of an app's execution: prepares the run directory, runs the code there, reports
progress, stores the result.

    python -m jobscribe.agent.jobs.job_command INPUT        INPUT: the file described in `job_input`

The app's functions run in a separate process (`app_process`), so this process can report their
crash. The code's output is the job's output. The termination message says why a run failed;
tracebacks go to stderr.log. The job command ends like the code: with its exit code, or by its
signal. Modules that few runs need are imported in functions, because each run of an app starts this
program.
"""

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ...runtime import failpoints
from ...runtime.execution.folder import MESSAGE_BYTES, last_report
from . import job_input
from .app_process import AppSide, Failed, drain
from .job_input import RunInput

#: Shortest interval (seconds) of progress questions, asked only after changes in the run directory.
PROGRESS_SECS = 0.5
#: An app that needs longer to report progress is not asked again (seconds).
PROGRESS_PATIENCE_SECS = 10.0
#: Entries of the run directory that are checked; a larger directory always counts as changed.
LOOK_AT = 2000
#: Name of the links to the evidence in a run directory.
OWN = ".jobscribe"
#: Exit code of a run that failed before or after its code ran.
FAILED = 1


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m jobscribe.agent.jobs.job_command INPUT\n")
        return 2
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # a batch scheduler's warning before its time limit is for the code; exec resets a handler, but
    # would pass on "ignore"
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    # find the user's modules, but never instead of our own
    sys.path += [p for p in os.environ.get("PYTHONPATH", "").split(":") if os.path.isabs(p)]
    woken = _wakeup_descriptor()
    run_input = job_input.read(Path(arguments[0]))
    app = AppSide(run_input, woken)
    try:
        _empty_run_dir(run_input.run_dir)
        code = _Computation(run_input, app, woken).run()
    except Failed as failed:
        _write_message(failed.sentence)
        code = FAILED if failed.signal is None else -failed.signal
    finally:
        app.close()
    if code < 0:
        _end_by_signal(-code)
    return code


class _Computation:
    def __init__(self, run_input: RunInput, app: AppSide, woken: int) -> None:
        self._input, self._app, self._woken = run_input, app, woken
        self._reported: Any = {}
        self._asking = True
        self._stopped = False
        #: an error of the app that does not end the computation
        self._app_error: str | None = None

    def run(self) -> int:
        """Return the exit code, negative for a signal. Raises Failed if the app failed."""
        prepared = self._app.ask("prepare")
        failpoints.reached("job.prepared")
        code = self._run_code(prepared["command"], prepared["env"])
        failpoints.reached("job.computed")
        if self._stopped:
            return code or -signal.SIGTERM
        self._progress()
        sentence = self._outcome(code)
        if code == 0:
            if prepared["sequential"]:
                self._app.ask("result")
            self._alert(sentence or self._app_error)
        elif sentence:
            _write_message(sentence)
        elif code < 0:
            from ...protocol.jobs.exit_info import signal_name

            _write_message(
                f"the program of {self._input.simulation_type} was killed by signal {-code} ({signal_name(-code)})",
                over=False,
            )
        return code

    # ---- the code

    def _run_code(self, command: list[str], env: dict[str, str]) -> int:
        """Run the program; return its exit code. A stop sends SIGTERM to every process of the job,
        so this process does not forward it.
        """
        signal.signal(signal.SIGTERM, self._stop)
        started_with = _initial_environment()
        ours = {k: v for k, v in started_with.items() if k.startswith("JOBSCRIBE_")}
        try:
            # every process of the execution must inherit its lock, so descriptors are not closed;
            # all others are close-on-exec
            code = subprocess.Popen(
                command,
                cwd=self._input.run_dir,
                env={**started_with, **env, **ours},
                stdin=subprocess.DEVNULL,
                close_fds=False,
            )
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise Failed(
                f"the program of {self._input.simulation_type}, {command[0]}, cannot be run: {why}"
            ) from None
        with code:
            self._watch(code)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return code.returncode

    def _watch(self, code: "subprocess.Popen[bytes]") -> None:
        """Wait for the code; ask for progress whenever the run directory changed."""
        seen: object = None
        while code.poll() is None:
            now = _directory_state(self._input.run_dir)
            if now is None or now != seen:
                seen = now
                self._progress()
            if code.poll() is None:
                select.select([self._woken], [], [], PROGRESS_SECS)
                drain(self._woken)

    def _stop(self, number: int, frame: object) -> None:
        self._stopped = True

    # ---- reports of the app

    def _progress(self) -> None:
        if not self._asking or self._stopped:
            return
        try:
            report = self._app.ask("progress", timeout_secs=PROGRESS_PATIENCE_SECS)
        except Failed as failed:
            self._app_error = self._app_error or failed.sentence
            self._asking = not failed.late
            return
        if report and report != self._reported:
            self._reported = report
            _append_report(report)

    def _outcome(self, code: int) -> str | None:
        try:
            sentence: str | None = self._app.ask("outcome", code=code)
        except Failed as failed:  # the exit of the code is valid in spite of the app's error
            self._app_error = self._app_error or failed.sentence
            return None
        return sentence

    def _alert(self, sentence: str | None) -> None:
        """Report a sentence to the user of a completed run."""
        if sentence:
            _append_report(
                {
                    **(last_report(os.environ.get("JOBSCRIBE_REPORT", os.devnull)) or {}),
                    "alert": sentence,
                }
            )
        if self._app_error:
            _write_message(self._app_error, over=False)


def _wakeup_descriptor() -> int:
    """Return a descriptor that becomes readable with every handled signal, to end waits at once."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return reading


def _initial_environment() -> dict[str, str]:
    """Return the environment of this process as started; the interpreter adds variables (LC_CTYPE
    without a locale).
    """
    with open("/proc/self/environ", "rb") as f:
        entries = f.read().split(b"\0")
    return {
        os.fsdecode(name): os.fsdecode(value)
        for name, equals, value in (e.partition(b"=") for e in entries)
        if equals
    }


# ---- files


def _empty_run_dir(run_dir: Path) -> None:
    """Delete the files of an earlier run without following links. Raises Failed."""
    try:
        with os.scandir(run_dir) as entries:
            for entry in entries:
                if entry.name == OWN:
                    continue
                import shutil

                from ...protocol.jobs import profiling

                if entry.name == profiling.FOLDER:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
    except OSError as error:
        raise Failed(
            f"the run directory cannot be emptied: {error.strerror}: {error.filename}"
        ) from None


def _directory_state(run_dir: Path) -> object:
    """Return a value that changes with the directory; None if it has too many entries."""
    seen: list[tuple[str, int, int]] = []
    with contextlib.suppress(OSError), os.scandir(run_dir) as entries:
        for entry in entries:
            if len(seen) >= LOOK_AT:
                return None
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                seen.append((entry.name, status.st_size, status.st_mtime_ns))
    return seen


def _append_report(report: dict[str, Any]) -> None:
    """Append one line to the report file, if there is one. A write error ends no computation."""
    path = os.environ.get("JOBSCRIBE_REPORT")
    if path is None:
        return
    try:
        fd = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            os.write(fd, msgspec.json.encode(report) + b"\n")
        finally:
            os.close(fd)
    except OSError as error:
        sys.stderr.write(f"cannot write a report: {error.strerror}\n")


def _write_message(sentence: str, *, over: bool = True) -> None:
    """Write the termination message, one line. over: replace a message that the code wrote."""
    sys.stderr.write(sentence + "\n")
    path = os.environ.get("JOBSCRIBE_TERMINATION_MESSAGE")
    if path is None or (not over and os.path.lexists(path)):
        return
    text = " ".join(sentence.split()).encode("utf-8", "replace")[:MESSAGE_BYTES]
    try:
        fd = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            os.write(fd, text)
        finally:
            os.close(fd)
    except OSError as error:
        sys.stderr.write(f"cannot write the termination message: {error.strerror}\n")


def _end_by_signal(number: int) -> NoReturn:
    """End by the code's signal, without a core file: the code has written its own."""
    from ...runtime import processes

    sys.stdout.flush()
    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    processes.set_dumpable(False)
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
