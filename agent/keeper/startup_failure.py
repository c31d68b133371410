"""The report of an agent that cannot start, sent to its keeper before the agent ends.

The traceback goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import os


def report_startup_failure(keeper_fd: int, error: BaseException) -> None:
    """Write the error as one line to the keeper's socket. Never raises: the socket may be closed."""
    message = {"do": "failed", "why": f"{type(error).__name__}: {error}"[:2000]}
    with contextlib.suppress(OSError):
        os.write(keeper_fd, json.dumps(message).encode() + b"\n")
