"""Lines of JSON for the user, through a terminal.

Python 3.8 or later, standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import termios
import tty
from typing import Any


def raw() -> None:
    """Stop the terminal from changing what passes it."""
    with contextlib.suppress(OSError, termios.error):
        tty.setraw(1)


def node() -> str:
    """Return the name of this node, as Slurm knows it, or else this machine's."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def send(type_: str, **fields: Any) -> None:
    """Write a line, in ASCII. Blocks while the user does not read."""
    line = (json.dumps({"type": type_, **fields}) + "\n").encode("ascii")
    view = memoryview(line)
    while view:
        view = view[os.write(1, view) :]
