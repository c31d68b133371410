"""The job command of one execution of an app: prepares the run directory, runs the code in it,
reports, leaves the result.

    python -m jobscribe.agent.jobs.job_command INPUT        INPUT: the file that `job_input` describes

The app's own functions run in a process of their own (`app_side`): whatever becomes of that one,
this one lives to say it. The code's output is the job's. Why a run failed stands in the termination
message; a trace, if there is one, in stderr.log. Ends as the code ended: with its exit code, or by
its signal.
"""

import contextlib
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ...protocol.jobs.exit_info import signal_name
from ...runtime import failpoints, processes
from ...runtime.execution.folder import MESSAGE_BYTES, last_report
from . import job_input
from .app_process import AppSide, Failed, drain
from .job_input import RunInput

#: The app is asked for its progress this often at most (seconds), and only when something has
#: changed in the run directory.
PROGRESS_SECS = 0.5
#: An app that needs longer than this to say how far it has come is not asked again (seconds).
PROGRESS_PATIENCE_SECS = 10.0
#: Entries of the run directory that are looked at for changes; where there are more, something
#: always has changed.
LOOK_AT = 2000
#: Where a run directory leads to the evidence.
OWN = ".jobscribe"
#: Exit code of a run that failed before or after its code ran.
FAILED = 1


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m jobscribe.agent.jobs.job_command INPUT\n")
        return 2
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # the warning of a batch scheduler before its time limit is for the code; a handler, unlike
    # "ignore", is not handed on to it
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    # the user's own modules are found, but none of them instead of one of ours
    sys.path += [p for p in os.environ.get("PYTHONPATH", "").split(":") if os.path.isabs(p)]
    woken = _wake_by_signals()
    given = job_input.read(Path(arguments[0]))
    app = AppSide(given, woken)
    try:
        _empty(given.run_dir)
        code = _Computation(given, app, woken).run()
    except Failed as failed:
        _leave_message(failed.sentence)
        code = FAILED if failed.signal is None else -failed.signal
    finally:
        app.close()
    if code < 0:
        _end_by(-code)
    return code


class _Computation:
    def __init__(self, given: RunInput, app: AppSide, woken: int) -> None:
        self._given, self._app, self._woken = given, app, woken
        self._reported: Any = {}
        self._asking = True
        self._stopped = False
        #: what the app did wrong that is no reason to end a computation
        self._trouble: str | None = None

    def run(self) -> int:
        """The exit code; a signal is negative. Raises Failed where the app did not do its part."""
        prepared = self._app.ask("prepare")
        failpoints.reached("job.prepared")
        code = self._run_code(prepared["command"], prepared["env"])
        failpoints.reached("job.computed")
        if self._stopped:
            return code or -signal.SIGTERM
        self._progress()
        said = self._outcome(code)
        if code == 0:
            if prepared["sequential"]:
                self._app.ask("result")
            self._alert(said or self._trouble)
        elif said:
            _leave_message(said)
        elif code < 0:
            _leave_message(
                f"the program of {self._given.simulation_type} ended by signal {-code} ({signal_name(-code)})",
                over=False,
            )
        return code

    # ---- the code

    def _run_code(self, command: list[str], env: dict[str, str]) -> int:
        """Execute it; its code. SIGTERM is the code's to obey: who stops a job sends it to every
        process of it.
        """
        signal.signal(signal.SIGTERM, self._stop)
        started_with = _started_with()
        ours = {k: v for k, v in started_with.items() if k.startswith("JOBSCRIBE_")}
        try:
            # the lock of this execution is for every process of it, so descriptors are not closed;
            # all others close themselves
            code = subprocess.Popen(
                command,
                cwd=self._given.run_dir,
                env={**started_with, **env, **ours},
                stdin=subprocess.DEVNULL,
                close_fds=False,
            )
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise Failed(
                f"the program of {self._given.simulation_type}, {command[0]}, cannot be started: {why}"
            ) from None
        with code:
            self._watch(code)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return code.returncode

    def _watch(self, code: "subprocess.Popen[bytes]") -> None:
        """Until it ends: ask for progress whenever something has changed."""
        seen: object = None
        while code.poll() is None:
            now = _look(self._given.run_dir)
            if now is None or now != seen:
                seen = now
                self._progress()
            if code.poll() is None:
                select.select([self._woken], [], [], PROGRESS_SECS)
                drain(self._woken)

    def _stop(self, number: int, frame: object) -> None:
        self._stopped = True

    # ---- what the app says of it

    def _progress(self) -> None:
        if not self._asking or self._stopped:
            return
        try:
            report = self._app.ask("progress", timeout_secs=PROGRESS_PATIENCE_SECS)
        except Failed as failed:
            self._trouble = self._trouble or failed.sentence
            self._asking = not failed.late
            return
        if report and report != self._reported:
            self._reported = report
            _append_report(report)

    def _outcome(self, code: int) -> str | None:
        try:
            said: str | None = self._app.ask("outcome", code=code)
        except Failed as failed:  # the end of the code stands, whatever the app makes of it
            self._trouble = self._trouble or failed.sentence
            return None
        return said

    def _alert(self, sentence: str | None) -> None:
        """What its user should know about a run that completed."""
        if sentence:
            _append_report(
                {
                    **(last_report(os.environ.get("JOBSCRIBE_REPORT", os.devnull)) or {}),
                    "alert": sentence,
                }
            )
        if self._trouble:
            _leave_message(self._trouble, over=False)


def _wake_by_signals() -> int:
    """A descriptor that gets readable with every signal that has a handler, so that nobody waits
    longer than he has to.
    """
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return reading


def _started_with() -> dict[str, str]:
    """The environment that this process was given; an interpreter adds to its own (LC_CTYPE, where
    there is no locale).
    """
    with open("/proc/self/environ", "rb") as f:
        entries = f.read().split(b"\0")
    return {
        os.fsdecode(name): os.fsdecode(value)
        for name, equals, value in (e.partition(b"=") for e in entries)
        if equals
    }


# ---- files


def _empty(run_dir: Path) -> None:
    """Nothing of an earlier run is left, and no link is followed to find it. Raises Failed."""
    try:
        with os.scandir(run_dir) as entries:
            for entry in entries:
                if entry.name == OWN:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
    except OSError as error:
        raise Failed(
            f"the run directory cannot be emptied: {error.strerror}: {error.filename}"
        ) from None


def _look(run_dir: Path) -> object:
    """Something that differs when the run directory does; None where there is too much to look at."""
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
    """One line; by hand, outside a job, nobody wants it. A full disk is no reason to end a
    computation.
    """
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
        sys.stderr.write(f"a report could not be written: {error.strerror}\n")


def _leave_message(sentence: str, *, over: bool = True) -> None:
    """The last word of this run, in one line. over: also over one that the code has left."""
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
        sys.stderr.write(f"the termination message could not be written: {error.strerror}\n")


def _end_by(number: int) -> NoReturn:
    """End as the code did; the core, if one was wanted, is the code's."""
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
