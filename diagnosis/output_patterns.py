"""Recognizes well-known texts in the newest lines of output: Python's last exception, faulthandler
frames, error lines. Pure. A job can print any text. So a match is at most "likely" and never
decides the type of an exit.
"""

import re
from typing import Any, NamedTuple

#: Newest lines that are searched. Error lines count only among the last few of them, because
#: programs recover from many errors.
_SEEN, _LAST = 200, 15
#: An error line is near the end if at most this many lines follow. It still counts if an unrelated
#: error follows within the second number of lines.
_NEAR, _BEFORE_ERROR = 8, 3
#: Patterns of lines: the program continues; an error of the program itself; a report of another
#: program's exit code.
_SURVIVED = re.compile(
    r"(?i)\bwarn(?:ing)?\b|\b(?:going|carrying|goes) on\b|\bcontinuing\b|\bignor(?:ed|ing)\b|\bretry(?:ing)?\b|\btrying again\b",
)
_ERROR = re.compile(
    r"(?i)^(?:[\w./\[\]-]{1,60}: ?)?(?:fatal |internal )?(?:error|fatal|exception)\b[:! ]"
)
_REPORTS_CODE = re.compile(r"(?i)\b(?:error|status|code|exited with)[ :]+\d{1,3}\b")
#: After an uncaught exception its process writes hardly anything; other processes around it may.
_AFTER_EXCEPTION = 5
_FRAMES = 12
_LINE_CHARS = 400

_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ {1,8}File "([^"]{1,300})", line (\d{1,9})(?:, in (.{1,200}))?$')
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]{0,120}(?:: .*)?$")
_FAULT = re.compile(r"^Fatal Python error: (.{1,200})$")
_FAULT_HEADER = re.compile(
    r"^(?:Current thread|Thread) 0x[0-9a-f]{1,16}.{0,80}\(most recent call first\):$"
)
_FAULT_FRAME = re.compile(r'^ {1,8}File "([^"]{1,300})", line (\d{1,9}) in (.{1,200})$')

#: (cause, pattern of the line, lower-case hints). The line contains at least one of the hints. For
#: one line the first row counts. The hints are a cheap filter, because status requests come often.
_COMPLAINTS = tuple(
    (word, re.compile(rule), hints)
    for word, rule, hints in (
        # printed by the job's own batch script on its node
        ("setupFailed", r"^jobscribe: this module cannot be loaded: ", ("jobscribe: this module",)),
        (
            "setupFailed",
            r"^jobscribe: the set-up on the node ended with \d",
            ("jobscribe: the set-up",),
        ),
        ("quota", r"(?i)\bdisk quota exceeded\b|\bEDQUOT\b", ("quota exceeded", "edquot")),
        ("diskFull", r"(?i)\bno space left on device\b|\bENOSPC\b", ("no space left", "enospc")),
        (
            "fileSizeLimit",
            r"(?i)\bfile too large\b|\bfile size limit exceeded\b",
            ("file too large", "file size limit"),
        ),
        ("cpuLimit", r"(?i)\bcpu time limit exceeded\b", ("cpu time limit",)),
        (
            "wrongArchitecture",
            r"(?i)\bexec format error\b|\bcannot execute binary file\b",
            ("exec format error", "cannot execute binary"),
        ),
        ("libraryMissing", r"error while loading shared libraries", ("loading shared libraries",)),
        (
            "notFound",
            r"(?i)\bcommand not found$|: not found$|^env: .{1,100}: No such file or directory$",
            ("not found", "no such file"),
        ),
        ("brokenPipe", r"(?i)\bbroken pipe\b", ("broken pipe",)),
        (
            "memoryRefused",
            r"(?i)\bcannot allocate memory\b|\bstd::bad_alloc\b|^(?:numpy\S{0,60})?MemoryError\b|\bmemory exhausted\b",
            ("allocate memory", "bad_alloc", "memoryerror", "memory exhausted"),
        ),
        (
            "usage",
            r"(?i)^usage: |\bunrecognized (?:option|argument)|\binvalid option\b|\bthe following arguments are required\b",
            ("usage: ", "unrecognized ", "invalid option", "arguments are required"),
        ),
        (
            "launcher",
            r"^(?:ssh|srun|mpirun|mpiexec|prterun|orted|hydra)\b.{0,200}: |^Host key verification|^Connection (?:closed|to) ",
            ("ssh", "srun", "mpi", "prterun", "orted", "hydra", "host key", "connection "),
        ),
    )
)


def newest(*texts: str | None) -> list[str]:
    """Return the newest lines of these texts, oldest first, each shortened."""
    lines = [line[:_LINE_CHARS].rstrip() for text in texts if text for line in text.splitlines()]
    return lines[-_SEEN:]


class ErrorLine(NamedTuple):
    """A cause and its line. near: near the end of the output, and no other error follows."""

    word: str
    line: str
    near: bool


def known_error_line(lines: list[str], words: frozenset[str] | None = None) -> ErrorLine | None:
    """Return the newest known error line that may have ended the program. words: the causes to look
    for; default all.
    """
    last = [line.strip() for line in lines[-2 * _LAST :] if line.strip()][-_LAST:]
    text = "\n".join(last).lower()
    rules = [
        (word, rule)
        for word, rule, hints in _COMPLAINTS
        if (words is None or word in words) and any(hint in text for hint in hints)
    ]
    if not rules:
        return None
    for at in range(len(last) - 1, -1, -1):
        word = next((word for word, rule in rules if rule.search(last[at])), None)
        if word is not None and is_final_error(last, at):
            return ErrorLine(
                word,
                last[at],
                near=len(last) - at <= _NEAR and not any(map(_is_error, last[at + 1 :])),
            )
    return None


def is_final_error(lines: list[str], at: int) -> bool:
    """Return whether this line may be why the program ended: it does not say that the program
    continues, and no other kind of error ends the output.
    """
    behind = [line.strip() for line in lines[at + 1 :] if line.strip()]
    if behind and _SURVIVED.search(lines[at]):
        return False
    return not any(_is_error(line) for line in behind[_BEFORE_ERROR:])


def _is_error(line: str) -> bool:
    return _ERROR.match(line) is not None and _REPORTS_CODE.search(line) is None


def interrupted(lines: list[str]) -> bool:
    """Return whether KeyboardInterrupt is the exception that ended a Python program."""
    found = traceback_of(lines)
    return found is not None and str(found["last"]).startswith("KeyboardInterrupt")


def traceback_of(lines: list[str]) -> dict[str, Any] | None:
    """Return {"last": exception, "frames": frames, innermost last} of the newest Python traceback,
    if hardly anything follows it.
    """
    first = next(
        (n for n, line in enumerate(lines) if 'File "' in line or line.endswith(_HEADER)), None
    )
    if first is None:
        return None
    found: dict[str, Any] | None = None
    frames: list[str] = []
    inside, behind = False, 0
    for line in lines[first:]:
        frame = _FRAME.match(line) if 'File "' in line else None
        if line.endswith(_HEADER):
            frames, inside = [], True
        elif frame is not None:
            frames, inside = [*frames, _place(*frame.groups())], True
        elif inside and line[:1] not in ("", " ", "\t"):
            if _EXCEPTION.match(line):
                found, behind = {"last": line, "frames": frames[-_FRAMES:]}, -1
            frames, inside = [], False
        behind += bool(line.strip())
    return found if found is not None and behind <= _AFTER_EXCEPTION else None


def faulthandler_of(lines: list[str]) -> list[str] | None:
    """Return the newest output of Python's faulthandler: its error, then the frames of the faulting
    thread, innermost first.
    """
    start = next(
        (
            n
            for n in range(len(lines) - 1, -1, -1)
            if lines[n].startswith("Fatal ") and _FAULT.match(lines[n])
        ),
        None,
    )
    if start is None:
        return None
    frames: list[str] = []
    current = next(
        (n for n in range(start, len(lines)) if lines[n].startswith("Current thread 0x")), start
    )
    for line in lines[current + 1 :]:
        frame = _FAULT_FRAME.match(line)
        if frame is not None:
            frames.append(_place(*frame.groups()))
        elif frames or (line.strip() and not _FAULT_HEADER.match(line)):
            break
    return [lines[start], *frames[:_FRAMES]]


def _place(path: str, line: str, where: str | None) -> str:
    return f"{path}:{line}" + (f" in {where}" if where else "")
