"""The report of an agent that cannot start, sent to its keeper before the agent ends.

The traceback goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import os

from ...protocol.launch.keeper_messages import MAX_SENTENCE, StartupFailure
from ...protocol.launch.message_fields import encode


def report_startup_failure(keeper_fd: int, error: BaseException) -> None:
    """Write the error as one line to the keeper's socket. Never raises: the socket may be closed."""
    sentence = f"{type(error).__name__}: {error}"[:MAX_SENTENCE]
    message = encode(StartupFailure(sentence=sentence))
    with contextlib.suppress(OSError):
        os.write(keeper_fd, json.dumps(message).encode() + b"\n")
