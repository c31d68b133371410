"""The keeper's log lines. They go to stderr, if anybody still reads it; a line that cannot be written is no reason to stop."""

from __future__ import annotations

import contextlib
import os
import sys
import time


def say(sentence: str) -> None:
    """One line, in the form all parts share. Never raises."""
    frame = sys._getframe(1)
    code = frame.f_code
    stamp = time.strftime("%b %d %H:%M:%S", time.gmtime())
    where = f"agent/keeping/{os.path.basename(code.co_filename)}:{frame.f_lineno}:{code.co_name}"
    line = f"{stamp} {os.getpid():5d}     0 {where} {ascii(sentence)[1:-1]}\n"
    with contextlib.suppress(OSError):  # a full disk or a reader that went away must not stop the work
        os.write(2, line.encode())
