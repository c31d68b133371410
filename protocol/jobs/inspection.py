"""Programs that run in an execution for its user, beside a shell: they read its processes and change
nothing. The set is closed, and no option is a command. Pure.
"""

from typing import Annotated, Literal

import msgspec

#: Samples per second of a recording by default, and its longest duration (seconds).
DEFAULT_RATE, MOST_SECS = 100, 3600.0


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program and its options. `stacks`: print the stacks of all processes. `profile`: record the
    CPU profile of the Python processes.

    native: also frames of C. secs, rate: duration and samples per second of a recording.
    """

    name: Literal["stacks", "profile"]
    native: bool = False
    secs: Annotated[float, msgspec.Meta(ge=1, le=MOST_SECS)] = 30.0
    rate: Annotated[int, msgspec.Meta(ge=1, le=1000)] = DEFAULT_RATE
