"""Make the n-th system call of a process fail from outside: strace answers in place of the kernel."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from strace_calls import tracer_of
from supervisor_process import until

MARKS = ("(INJECTED)", "(DELAYED)")


def options(
    calls: str, error: str, when: str, paths: Sequence[Path], seen: Path, *, also: str = ""
) -> list[str]:
    """Return strace options. when: `3` for the third call, `2+` for all from the second on; each
    thread counts separately.

    also: calls to record in addition.
    """
    named = [word for path in paths for word in ("-P", str(path))]
    traced = f"{calls},{also}" if also else calls
    return [
        "-y",
        "-s",
        "0",
        "-o",
        str(seen),
        "-e",
        f"trace={traced}",
        "-e",
        f"inject={calls}:{error}:when={when}",
        *named,
    ]


class Fault:
    """A fault that affects a running process until `end`. error: in strace syntax, `error=ENOSPC`
    or `delay_enter=20000` (microseconds).
    """

    def __init__(
        self,
        pid: int,
        calls: str,
        error: str,
        when: str,
        paths: Sequence[Path],
        seen: Path,
        *,
        also: str = "",
    ) -> None:
        self._seen, self._pid = seen, pid
        seen.unlink(missing_ok=True)
        words = [
            "strace",
            "-f",
            "-qq",
            "-e",
            "signal=none",
            *options(calls, error, when, paths, seen, also=also),
            "-p",
            str(pid),
        ]
        self._strace = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        until(self._attached, "strace holds all threads of the process")

    def _attached(self) -> bool:
        assert self._strace.poll() is None, "strace gave up"
        try:
            return all(
                tracer_of(int(t)) == self._strace.pid for t in os.listdir(f"/proc/{self._pid}/task")
            )
        except FileNotFoundError:
            return False

    def struck(self) -> list[str]:
        """Return the affected calls, one per line."""
        return struck(self._seen)

    def end(self) -> list[str]:
        """Stop the fault, if the process still exists. Return `struck()`."""
        self._strace.send_signal(signal.SIGTERM)
        self._strace.wait(20)
        return self.struck()


def struck(seen: Path) -> list[str]:
    return [line for line in seen.read_text().splitlines() if line.endswith(MARKS)]


def after_the_first(seen: Path) -> list[str]:
    """Return the calls that followed the first affected call."""
    lines = seen.read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if line.endswith(MARKS))
    return lines[first + 1 :]
