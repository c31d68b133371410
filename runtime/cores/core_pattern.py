"""Where the kernel puts a core file: `kernel.core_pattern` as a place to search. Pure; see core(5).

Standard library only, because a keeper's collector imports it.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

PATTERN, USES_PID = "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/core_uses_pid"
#: Specifiers whose value is a number.
_NUMBERS = "pPiIugstcdCF"
#: The kernel replaces slashes in values by exclamation marks, so a value has none.
_TEXT = "[^/]*"


class Target:
    """What the kernel does with a core.

    kind: "file"; "pipe" (program: its path); "socket" (program: its address); or "none". For a
    file: `folder` matches the folders of a path, component by component; `name` its last part.
    absolute: the path does not begin in the working directory of the process.
    """

    __slots__ = ("absolute", "folder", "has_pid", "kind", "name", "program")

    def __init__(
        self,
        kind: Literal["file", "pipe", "socket", "none"],
        program: str = "",
        folder: tuple[re.Pattern[str], ...] = (),
        name: re.Pattern[str] | None = None,
        absolute: bool = False,
        has_pid: bool = False,
    ) -> None:
        self.kind, self.program, self.folder, self.name = kind, program, folder, name
        self.absolute, self.has_pid = absolute, has_pid

    @property
    def by_systemd(self) -> bool:
        return self.kind == "pipe" and os.path.basename(self.program) == "systemd-coredump"


def parse(pattern: str, uses_pid: bool, host: str = "") -> Target:
    """Return the target of this pattern. uses_pid: `kernel.core_uses_pid`. host: "" for any.

    The pid in a name is the group `pid` of its expression.
    """
    pattern = pattern.strip("\n")
    if pattern.startswith("|"):
        return Target("pipe", (pattern[1:].split() or [""])[0])
    if pattern.startswith("@"):  # Linux 6.16: a unix socket
        return Target("socket", pattern.lstrip("@"))
    has_pid = "p" in _specifiers(pattern)
    if uses_pid and not has_pid:
        pattern, has_pid = pattern + ".%p", True
    if not pattern:
        return Target("none")
    *folders, name = (part for part in pattern.split("/"))
    return Target(
        "file",
        folder=tuple(_expression(part, host) for part in folders if part not in ("", ".")),
        name=_expression(name, host),
        absolute=pattern.startswith("/"),
        has_pid=has_pid,
    )


def pid_in(target: Target, name: str) -> int | None:
    """Return the pid in a file name that the target matches; None without one."""
    found = target.name.fullmatch(name) if target.name is not None else None
    text = found.groupdict().get("pid") if found is not None else None
    return int(text) if text else None


def matches(target: Target, name: str) -> bool:
    return target.name is not None and target.name.fullmatch(name) is not None


def read(read_file: Callable[[str], str | None]) -> tuple[str | None, bool]:
    """Return pattern and `core_uses_pid` of this machine; None if the pattern cannot be read."""
    return read_file(PATTERN), (read_file(USES_PID) or "0").strip() not in ("", "0")


def _specifiers(pattern: str) -> list[str]:
    return re.findall(r"%(.)", pattern)


def _expression(part: str, host: str) -> re.Pattern[str]:
    """Return the expression of one component. The kernel drops unknown specifiers and a final %."""
    out, seen_pid = [], False
    for literal, specifier in re.findall(r"([^%]+)|%(.?)", part):
        if literal:
            out.append(re.escape(literal))
        elif specifier == "%":
            out.append("%")
        elif specifier == "p" and not seen_pid:
            out.append("(?P<pid>[0-9]{1,10})")
            seen_pid = True
        elif specifier and specifier in _NUMBERS:
            out.append("[0-9]{1,20}")
        elif specifier == "h":
            out.append(re.escape(host) if host else _TEXT)
        elif specifier and specifier in "efE":
            out.append(_TEXT)
    return re.compile("".join(out), re.DOTALL)
