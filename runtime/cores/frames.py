"""Frames of a core file: by pystack for Python processes, by gdb for others. Functions, files and
lines only; no values of arguments or variables.

Standard library only; the programs run in a process of their own, with a time limit.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import time

from ...protocol.redaction import REDACTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: Python's and native frames in a report.
MOST_PYTHON, MOST_NATIVE = 3, 2
_PYSTACK = re.compile(r'^\s+\((Python|C)\) File "(.*)", line (\d+), in (.*)$')
_THREAD = re.compile(r"^Traceback for thread (\d+)")
_GDB = re.compile(
    r"^#\d+\s+(?:0x[0-9a-f]+ in )?(\S+) \(.*?\)(?: at (.+):(\d+)| from (.+))?$",
)
#: Native frames that say nothing about the program: the C library, and frames without a name.
_LIBRARY = re.compile(r"(?:^|/)(?:sysdeps|csu|nptl|signal|ld-linux|libc\.so|libc-start)|\?\?\?")
_NAMELESS = re.compile(r"\?+$")
_OUTPUT_BYTES = 4 << 20
_TEXT_CHARS = 200
_SECRET = re.compile(r"(?i)(?:passw|secret|token|api[_-]?key)[^/\s]*=[^/\s]*")
GDB = (
    *("gdb", "-nx", "-batch", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off"),
    *("-ex", "set print frame-arguments none", "-ex", "set print entry-values no", "-ex", "bt 40"),
)


def frame(kind: str, function: str, file: str, line: int) -> dict[str, Any]:
    return {
        "kind": kind,
        "function": _SECRET.sub(REDACTED, function)[:_TEXT_CHARS],
        "file": _SECRET.sub(REDACTED, file)[-_TEXT_CHARS:],
        "line": line,
    }


def parse_pystack(text: str, pid: int | None = None) -> list[dict[str, Any]]:
    """Return the frames of the thread that crashed, the innermost first. Pure.

    pid: of the thread; without it or if it is missing, the first thread counts.
    """
    threads: dict[int, list[dict[str, Any]]] = {}
    frames: list[dict[str, Any]] = []
    for line in text.splitlines():
        head, found = _THREAD.match(line), _PYSTACK.match(line)
        if head is not None:
            frames = threads.setdefault(int(head[1]), [])
        elif found is not None:
            function, kind = found[4], "python" if found[1] == "Python" else "native"
            if kind == "native":  # the library follows in brackets
                function = re.sub(r"(?: \(inlined\))? \([^()]*\)$", "", function)
            frames.append(frame(kind, function, found[2], int(found[3])))
    chosen = threads.get(pid or 0) or next((f for f in threads.values() if f), [])
    return chosen[::-1]


def parse_gdb(text: str) -> list[dict[str, Any]]:
    """Return gdb's frames, the innermost first. Pure. gdb prints the first one also by itself."""
    out: list[dict[str, Any]] = []
    for line in text.splitlines():
        if (found := _GDB.match(line)) is not None:
            out = [] if line.startswith("#0 ") else out
            out.append(frame("native", found[1], found[2] or found[4] or "", int(found[3] or 0)))
    return out


def top(frames: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the innermost frames that tell most: Python's first, then native ones. Pure."""
    python = [f for f in frames if f["kind"] == "python"]
    # native frames outside of the last call of Python belong to the interpreter
    first = next((n for n, f in enumerate(frames) if f["kind"] == "python"), len(frames))
    inner = [f for f in frames[:first] if f["kind"] == "native"]
    telling = [
        f for f in inner if not _LIBRARY.search(f["file"]) and not _NAMELESS.match(f["function"])
    ]
    return python[:MOST_PYTHON] + (telling or inner)[: MOST_NATIVE if python else 5]


def is_python(program: str | None) -> bool:
    return re.match(r"python\d*(?:\.\d+)*t?$", os.path.basename(program or "")) is not None


def pystack_commands(core: str, program: str | None) -> list[list[str]]:
    """Return the commands that may print the stack of a Python process: with the Python of this
    process, and with that of the job.
    """
    pythons = [sys.executable]
    if program is not None and is_python(program) and os.path.isabs(program):
        pythons.append(program)
    return [
        [python, "-m", "pystack", "--no-color", "core", "--native", core]
        for python in dict.fromkeys(pythons)
    ]


def is_safe(program: str) -> bool:
    """Return whether this user or root put a program and all folders around it there. A report may
    name any path, and its reader may be another user than that of the job.
    """
    owners = (0, os.geteuid())
    for path in {os.path.abspath(program), os.path.realpath(program)}:
        at = path
        while True:
            try:
                found = os.lstat(at)
            except OSError:
                return False
            shared = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
            if found.st_uid not in owners or (shared and not stat.S_ISLNK(found.st_mode)):
                return False
            if at == "/":
                break
            at = os.path.dirname(at)
    return True


def of_core(
    core: str, program: str | None, pid: int | None, secs: float, *, native_only: bool = False
) -> tuple[list[dict[str, Any]], str | None]:
    """Return the frames, the innermost first, and the tool that printed them. Without frames the
    second value is why: "noTool", "timeout" or "failed".
    """
    until, why = time.monotonic() + secs, "noTool"
    if is_python(program) and not native_only:
        safe = program if program is not None and is_safe(program) else None
        for command in pystack_commands(core, safe):
            text, state = _output(command, until - time.monotonic())
            if found := parse_pystack(text, pid):
                return found, "pystack"
            why = state if why == "noTool" or state != "noTool" else why
    if shutil.which("gdb") is not None:
        names = [program] if program is not None and os.path.isabs(program) else []
        text, state = _output(
            [*GDB, *names, core] if names else [*GDB, "-c", core], until - time.monotonic()
        )
        if found := parse_gdb(text):
            return found, "gdb"
        why = state
    return [], why


def _output(command: Sequence[str], secs: float) -> tuple[str, str]:
    """Return what a tool prints, and why there may be nothing."""
    if secs <= 0:
        return "", "timeout"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=secs,
            check=False,
            env={**os.environ, "DEBUGINFOD_URLS": "", "NO_COLOR": "1"},
        )
    except subprocess.TimeoutExpired:
        return "", "timeout"
    except OSError:
        return "", "noTool"
    missing = done.returncode == 1 and b"No module named pystack" in done.stderr
    return done.stdout[:_OUTPUT_BYTES].decode("utf-8", "replace"), "noTool" if missing else "failed"
