"""Collection of core files after the end of an execution that asked for them: by a process of its
own (`runtime.cores`), while the main process stays a zombie. A keeper that takes over collects
again, which repeats nothing.

A failed collection is only logged: no end waits longer than its time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

from ....runtime.cores.report_file import CORES, TOTAL_SECS, read_report
from ....runtime.execution.folder import write
from ..loop.log import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .state import Execution

#: Time (seconds) after which a collector is killed.
_LONGEST_SECS = TOTAL_SECS + 15
_REQUEST = "request.json"
_TIMEOUT = {"state": "timeout"}


class CoreCollection:
    """Starts collectors and waits for them. pids: collectors that have not been reaped; they belong
    to no execution.
    """

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self._killed: set[int] = set()
        #: by name of the execution: pid, and time (monotonic) at which it is killed
        self._running: dict[str, tuple[int, float]] = {}
        self._reports: dict[str, dict[str, Any] | None] = {}

    def is_pending(self, e: Execution, exit_: dict[str, Any] | None) -> bool:
        """Return whether the end of an execution must wait for its core files. exit_: of its main
        process. Starts the collection with the first call.
        """
        if not e.core_limit or e.name in self._reports or e.life.stop_reason is not None:
            return False
        if e.name not in self._running:
            return self._start(e, exit_ or {})
        pid, until = self._running[e.name]
        if time.monotonic() > until:
            log(f"the collection of core files of {e.token} took too long: killed")
            self._kill(pid)
            self._ended(e, _TIMEOUT)
            return False
        done, status = _reaped(pid)
        if not done:
            return True
        if status:
            log(f"the collection of core files of {e.token} failed with wait status {status}")
        self.pids.discard(pid)
        self._ended(e, read_report(e.folder))
        return False

    def reap(self) -> None:
        """Reap killed collectors. Nothing waits for one that the kernel holds (a hung file server)."""
        for pid in list(self._killed):
            if _reaped(pid)[0]:
                self._killed.discard(pid)
                self.pids.discard(pid)

    def fields(self, e: Execution) -> dict[str, Any]:
        """Return the field of the exit info about core files, and forget the execution."""
        report = self._reports.pop(e.name, None)
        if (running := self._running.pop(e.name, None)) is not None:  # stopped meanwhile
            self._kill(running[0])
            _tidy(e)
        return {} if report is None else {"core": report}

    def _start(self, e: Execution, exit_: dict[str, Any]) -> bool:
        request = {
            "folder": e.folder,
            "runDir": e.run_dir,
            "since": e.life.started_at or 0.0,
            "limit": e.core_limit,
            "signal": _signal(exit_),
            "dumped": exit_.get("coreDumped") is True,
            "main": e.pid,
            "pids": list(e.samples.ids),
        }
        path = f"{e.folder}/{CORES}/{_REQUEST}"
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(path), 0o700)
            write(path, json.dumps(request).encode())
            pid = _spawn(path)
        except OSError as error:
            log(f"core files of {e.token} cannot be collected: {error.strerror}")
            self._reports[e.name] = None
            return False
        self.pids.add(pid)
        self._running[e.name] = pid, time.monotonic() + _LONGEST_SECS
        return True

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        self._killed.add(pid)

    def _ended(self, e: Execution, report: dict[str, Any] | None) -> None:
        del self._running[e.name]
        self._reports[e.name] = report
        _tidy(e)


def _tidy(e: Execution) -> None:
    """Remove the request and interrupted copies; and the folder, if it has no report."""
    folder = f"{e.folder}/{CORES}"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name == _REQUEST or name.endswith(".part"):
                os.unlink(f"{folder}/{name}")
        os.rmdir(folder)


def _signal(exit_: dict[str, Any]) -> int | None:
    """Return the signal that ended the main process, or a child of its shell."""
    code = exit_.get("code") or 0
    return exit_.get("signal") or (code - 128 if 128 < code <= 192 else None)


def _spawn(path: str) -> int:
    """Start a collector as leader of its own session. Raises OSError."""
    package = __name__.partition(".agent.")[0]
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", "-m", f"{package}.runtime.cores", path],
        os.environ,
        file_actions=null,
        setsid=True,
        setsigmask=(),
        setsigdef=[signal.SIGPIPE, signal.SIGHUP, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT],
    )


def _reaped(pid: int) -> tuple[bool, int]:
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True, 0
    return found == pid, status
