"""Programs that run in an execution for its user, beside a shell. The set is closed, and no option is
a command. Pure.
"""

from typing import Annotated, Literal

import msgspec

#: Samples per second of a recording by default, and its longest duration (seconds).
DEFAULT_RATE, MOST_SECS = 100, 3600.0


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program and its options. `stacks`: print the stacks of all processes. `profile`: record the
    CPU profile of the Python processes. `ssh`: an sshd of the task's image, for one connection over
    its input and output; the first line of its input is the public key that it accepts.

    node: where it runs, of a task on several nodes; UNSET for the first one. native: also frames of
    C. secs, rate: duration and samples per second of a recording.
    """

    name: Literal["stacks", "profile", "ssh"]
    node: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,255}\Z")] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    native: bool = False
    secs: Annotated[float, msgspec.Meta(ge=1, le=MOST_SECS)] = 30.0
    rate: Annotated[int, msgspec.Meta(ge=1, le=1000)] = DEFAULT_RATE


def is_typed(program: Program | None) -> bool:
    """Return whether a program, or the shell (None), gets the input of its user."""
    return program is None or program.name == "ssh"


class Frame(msgspec.Struct, frozen=True):
    """A frame of a stack. line: 0 if it is unknown."""

    function: str
    file: str
    line: int = 0


class Thread(msgspec.Struct, frozen=True):
    """A thread, innermost frame first. id: of the kernel. gil: it holds the interpreter's lock."""

    id: int
    name: str
    active: bool
    gil: bool
    frames: tuple[Frame, ...]


class Failure(msgspec.Struct, frozen=True):
    """Why a method gave no stacks, and what helps."""

    method: str
    reason: str
    remedy: str = ""


class ProcessStacks(msgspec.Struct, frozen=True, rename="camel"):
    """One process with its stacks. state: the letter of proc(5). waits_in: a function of the kernel.
    method: which gave `threads` or `text`; None without one.
    """

    pid: int
    parent: int
    name: str
    command: tuple[str, ...]
    python: bool
    state: str
    state_text: str
    frozen: bool
    cpu_secs: float
    waits_in: str
    method: str | None
    threads: tuple[Thread, ...]
    text: str
    failed: tuple[Failure, ...]
