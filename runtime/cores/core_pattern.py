"""The place of a core file, from `kernel.core_pattern`. Pure; see core(5).

Standard library only, because a keeper's collector imports it.
"""

from __future__ import annotations

import enum
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

PATTERN, USES_PID = "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/core_uses_pid"
#: Specifiers whose value is a number.
_NUMBERS = "pPiIugstcdCF"
#: Most characters of a pattern, which a job may have written; the kernel's limit is 127.
_LONGEST = 512
#: Digits of a number.
_DIGITS = 20


class Value(enum.Enum):
    """The value of a specifier."""

    NUMBER = enum.auto()
    TEXT = enum.auto()


class Component:
    """One component of a path: literal texts, and places of numbers and of any text.

    Matching takes linear time in pattern and name. A regular expression would backtrack, and the
    pattern may be hostile.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: tuple[str | Value, ...]) -> None:
        self._parts = parts

    def matches(self, name: str) -> bool:
        # the kernel replaces slashes in values by exclamation marks, so a value has none
        ends = {0} if "/" not in name else set()
        for part in self._parts:
            if not ends:
                return False
            if part is Value.TEXT:
                ends = set(range(min(ends), len(name) + 1))
            elif part is Value.NUMBER:
                ends = {at + n + 1 for at in ends for n in range(_digits(name, at))}
            else:
                ends = {at + len(part) for at in ends if name.startswith(part, at)}
        return len(name) in ends


class Target:
    """The destination of a core file.

    kind: "file"; "pipe" (program: its path); "socket" (program: its address); or "none". For a
    file: `folder` matches the folders of a path, component by component; `name` its last part.
    absolute: the path does not begin in the working directory of the process.
    """

    __slots__ = ("absolute", "folder", "has_pid", "kind", "name", "program")

    def __init__(
        self,
        kind: Literal["file", "pipe", "socket", "none"],
        program: str = "",
        folder: tuple[Component, ...] = (),
        name: Component | None = None,
        absolute: bool = False,
        has_pid: bool = False,
    ) -> None:
        self.kind, self.program, self.folder, self.name = kind, program, folder, name
        self.absolute, self.has_pid = absolute, has_pid

    @property
    def by_systemd(self) -> bool:
        return self.kind == "pipe" and os.path.basename(self.program) == "systemd-coredump"


def parse(pattern: str, uses_pid: bool, host: str = "") -> Target:
    """Return the target of this pattern. uses_pid: `kernel.core_uses_pid`. host: "" for any."""
    pattern = pattern.strip("\n")[:_LONGEST]
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
        folder=tuple(_component(part, host) for part in folders if part not in ("", ".")),
        name=_component(name, host),
        absolute=pattern.startswith("/"),
        has_pid=has_pid,
    )


def matches(target: Target, name: str) -> bool:
    return target.name is not None and target.name.matches(name)


def read(read_file: Callable[[str], str | None]) -> tuple[str | None, bool]:
    """Return pattern and `core_uses_pid` of this machine; None if the pattern cannot be read."""
    return read_file(PATTERN), (read_file(USES_PID) or "0").strip() not in ("", "0")


def _specifiers(pattern: str) -> list[str]:
    return re.findall(r"%(.)", pattern)


def _component(part: str, host: str) -> Component:
    """Return one component. The kernel drops unknown specifiers and a final %."""
    out: list[str | Value] = []
    for literal, specifier in re.findall(r"([^%]+)|%(.?)", part, re.DOTALL):
        if literal or specifier == "%":
            out.append(literal or "%")
        elif specifier and specifier in _NUMBERS:
            out.append(Value.NUMBER)
        elif specifier == "h" and host:
            out.append(host)
        elif specifier and specifier in "efEh":
            out.append(Value.TEXT)
    return Component(tuple(out))


def _digits(name: str, at: int) -> int:
    """Return the number of digits there, as many as a number may have."""
    end = at
    while end < len(name) and end - at < _DIGITS and "0" <= name[end] <= "9":
        end += 1
    return end - at
