"""Files in the folder of one execution: their names, and how to write and read them. No decisions.

Keepers and the container task driver use the same layout. A job may have replaced any file: no link
is followed, and no read waits for a pipe. Uses the standard library and
protocol.jobs.progress_report only.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import stat

from ...protocol.jobs import progress_report
from ..filesystems import write_atomically
from .notices import NOTICES, NOTICES_BYTES, parse_notices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCRIPT, SIGNAL = "script.sh", "signal"
#: A keeper's job holds its output open and locked as this descriptor.
LOCK_FD = 9
STDOUT, STDERR = "stdout.log", "stderr.log"
START, STOP, EXIT, EXIT_CODE = "start.json", "stop.json", "exit.json", "exit-code"
MESSAGE = "termination-message"
#: input of an app's job command, and the job's progress reports, one line of JSON each
INPUT, REPORT = "input.json", "report.jsonl"
#: data about all tasks of a gang for one of them; in its run directory
JOB = "job.json"
DROPPED = ".dropped"

MESSAGE_BYTES = 4096
_LAST_BYTES, _LAST_LINES = 2048, 20
_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
#: Shells report SIGINT and SIGPIPE as 128+n without a message.
_SILENT_SIGNALS = (signal.SIGINT, signal.SIGPIPE)
#: The script's shell writes this line when SIGINT reaches the command's process group. A SIGINT
#: leaves no other trace.
INTERRUPTED = "SIGINT"
#: Shells write locale warnings to the same file; they say nothing about an exit.
_WARNING = re.compile(rb"(?i)\bwarning\b")
#: First word of the command in a script of protocol.launch.job_script; and commands that run
#: programs of a language instead of shell lines.
_COMMAND = re.compile(rb"(?m)^\( exec '([^'\n]+)' ")
#: Limits of one process set by the command's text: CPU seconds, file size, address space. And text
#: that runs timeout(1).
_ULIMIT = re.compile(rb"\bulimit\s+((?:-[HS]+\s+)*-[HS]*)([tfv])\s+(\d{1,15})\b")
_TIMEOUT = re.compile(rb"(?:^|[\s;&|(/'\"])timeout'?\s+'?(?:-|\d)")
_MOST_LIMITS = 5
_NO_SHELLS = re.compile(rb"(?:python|perl|ruby|node|java|julia|Rscript)[0-9.]*\Z")


def lock_paths(folder: str) -> tuple[str, ...]:
    """Return the files that may be the lock: `stdout.log`; with earlier versions the script, or a
    file of its own.
    """
    return f"{folder}/{STDOUT}", f"{folder}/{SCRIPT}", f"{folder}/lock"


def write(path: str, data: bytes, mode: int = 0o600) -> None:
    """Create or overwrite a file. Not atomic: only for files whose partial content is recognised as
    such.
    """
    fd = os.open(
        path,
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
        mode,
    )
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def write_json(path: str, value: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(value).encode())


def read(path: str, limit: int = 1 << 20, *, alone: bool = False) -> bytes | None:
    """Return the first `limit` bytes of a file, or None if it is missing or not a regular file (a
    job may have replaced it by anything).

    alone: return None also for a file with another hard link, which may belong to somebody else.
    Raise OSError only if this process lacks resources: then the file may exist.
    """
    fd = opened(path)
    if fd is None:
        return None
    try:
        status = os.fstat(fd)
        return (
            os.read(fd, min(limit, status.st_size))
            if stat.S_ISREG(status.st_mode) and (status.st_nlink == 1 or not alone)
            else None
        )
    finally:
        os.close(fd)


def opened(path: str) -> int | None:
    """Return a descriptor of a file, or None if there is none. Raise OSError as `read` does."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _SHORTAGE:
            raise
        return None


def read_json(path: str) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if the file is missing or has no object."""
    data = read(path)
    try:
        value = json.loads(data) if data else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def last_lines(path: str) -> str | None:
    """Return the end of a log for people: at most 20 lines and 2 KiB."""
    end = tail(path, _LAST_BYTES)
    if end is None:
        return None
    lines = end[1].decode("utf-8", "replace").splitlines()
    if end[0] and len(lines) > 1:
        lines = lines[1:]
    return "\n".join(lines[-_LAST_LINES:]) or None


def last_report(path: str) -> dict[str, Any] | None:
    """Return the newest report of a report file, or None."""
    end = tail(path, 2 * progress_report.LIMIT)
    return None if end is None else progress_report.parse_last(end[1], from_start=end[0] == 0)


def tail(path: str, limit: int) -> tuple[int, bytes] | None:
    """Return (offset, the last `limit` bytes) of a regular, non-empty file without other hard
    links, or None.
    """
    fd = opened(path)
    if fd is None:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or not status.st_size:
            return None
        begin = max(0, status.st_size - limit)
        return begin, os.pread(fd, limit, begin)
    finally:
        os.close(fd)


# ---- the exit, with the field names of protocol.jobs.exit_info.ExitInfo (camelCase)


def written_code(folder: str) -> int | None:
    """Return the exit code written by the script. Without a final newline it is incomplete."""
    text = read(f"{folder}/{EXIT_CODE}", 16) or b""
    return int(text) & 255 if text.endswith(b"\n") and text.strip().isdigit() else None


def from_code(folder: str, code: int) -> dict[str, Any]:
    """Distinguish a signal from an exit code of 128+n by the messages of the script's shell, which
    are kept apart from the command's output.

    Without a message it is an exit code: a program may exit with any code, and shells print nothing
    for SIGINT and SIGPIPE.
    """
    number = code - 128
    if number <= 0 or number > 64:
        return {"code": code}
    shell_lines = [line.strip() for line in (read(f"{folder}/{SIGNAL}", 4096) or b"").splitlines()]
    messages = [
        line
        for line in shell_lines
        if line and line != INTERRUPTED.encode() and not _WARNING.search(line)
    ]
    if number == signal.SIGINT:
        messages = [line for line in shell_lines if line == INTERRUPTED.encode()]
    if messages and number != signal.SIGPIPE:
        return {"signal": number, "coreDumped": any(b"core dumped" in line for line in messages)}
    return {"code": code}


def via_shell(folder: str, code: int) -> bool | None:
    """Return whether a shell of the job returned this code of 128+n because a signal killed its
    command. None if unknown.

    Shells report this in their stderr, which a job may have redirected. So a missing message proves
    nothing, unless the command is no shell.
    """
    description = (
        signal.strsignal(code - 128)
        if 128 < code <= 192 and code - 128 in signal.valid_signals()
        else None
    )
    if description is None:
        return None
    dumped = re.escape(description.encode()) + rb"(?: \(core dumped\))?"
    output = tail(f"{folder}/{STDERR}", _LAST_BYTES)
    if output is not None and re.search(
        rb"(?m)^(?:" + dumped + rb"|.*: line \d+: +\d+ " + dumped + rb"(?: .*)?)$", output[1]
    ):
        return True
    if code - 128 in _SILENT_SIGNALS:
        # the signal may have killed the command itself: no shell reports these signals
        return None
    command = _COMMAND.search(read(f"{folder}/{SCRIPT}") or b"")
    return False if command is not None and _NO_SHELLS.match(os.path.basename(command[1])) else None


def command_facts(folder: str) -> dict[str, Any]:
    """Return facts from the command's text about limits and timeout(1), with the field names of
    ExitFacts.
    """
    script = read(f"{folder}/{SCRIPT}") or b""
    command = _COMMAND.search(script)
    text = script[command.start() :] if command is not None else b""
    limits = dict.fromkeys(
        f"ulimit {'-S ' if b'S' in m[1] and b'H' not in m[1] else ''}-{m[2].decode()} {int(m[3])}"
        for m in _ULIMIT.finditer(text)
    )
    out: dict[str, Any] = {"ulimits": list(limits)[:_MOST_LIMITS]} if limits else {}
    return out | ({"callsTimeout": True} if _TIMEOUT.search(text) else {})


def notices(folder: str) -> list[dict[str, str]]:
    """Return the notices of an execution (notices.parse_notices)."""
    return parse_notices(read(f"{folder}/{NOTICES}", NOTICES_BYTES, alone=True))


def add_messages(folder: str, out: dict[str, Any]) -> dict[str, Any]:
    """Add the job's own message and report, notices, and the end of its output if it may explain a
    failure.
    """
    if found_notices := notices(folder):
        out["notices"] = found_notices
    message = read(f"{folder}/{MESSAGE}", MESSAGE_BYTES, alone=True)
    if message:
        out["terminationMessage"] = message.decode("utf-8", "replace")
    report = last_report(f"{folder}/{REPORT}")
    if report is not None:
        out["report"] = report
    if out.get("code") != 0:
        out["lastLines"] = last_lines(f"{folder}/{STDERR}") or last_lines(f"{folder}/{STDOUT}")
        known = dict(out.get("facts") or {})
        found = command_facts(folder)
        found["ulimits"] = [
            *dict.fromkeys([*(known.get("ulimits") or ()), *found.get("ulimits", ())])
        ]
        found["viaShell"] = via_shell(folder, out.get("code") or 0)
        if new := {name: value for name, value in found.items() if value not in (None, [])}:
            out["facts"] = known | new
    return out
