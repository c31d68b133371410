"""What an agent that cannot begin says to its keeper before it ends. Its trace goes to stderr, as
always.
"""

from __future__ import annotations

import contextlib
import json
import os


def last_words(keeper_fd: int, error: BaseException) -> None:
    """One line on the link to the keeper. Never raises: the link may be closed by now, and so may
    the keeper's end be.
    """
    said = {"do": "failed", "why": f"{type(error).__name__}: {error}"[:2000]}
    with contextlib.suppress(OSError):
        os.write(keeper_fd, json.dumps(said).encode() + b"\n")
