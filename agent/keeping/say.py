"""The keeper's log lines. They go to its log, and to stderr if anybody still reads it; what cannot be written is no reason to stop."""

from __future__ import annotations

import contextlib
import os
import sys
import time

from ...runtime.outputs import RotatingFile, takes

_FILE_BYTES, _FILES = 1024 * 1024, 2
_file: RotatingFile | None = None


def keep_in(path: str) -> None:
    """From here on lines are kept in this file, too."""
    global _file  # one keeper is one process
    _file = RotatingFile(path, _FILE_BYTES, _FILES)


def say(sentence: str) -> None:
    """One line, in the form all parts share. Never raises."""
    frame = sys._getframe(1)
    code = frame.f_code
    stamp = time.strftime("%b %d %H:%M:%S", time.gmtime())
    where = f"agent/keeping/{os.path.basename(code.co_filename)}:{frame.f_lineno}:{code.co_name}"
    line = f"{stamp} {os.getpid():5d}     0 {where} {ascii(sentence)[1:-1]}\n"
    with contextlib.suppress(OSError):  # a full disk, or a reader that went away or hangs, must not stop the work
        if takes(2):
            os.write(2, line.encode())
    if _file is not None:
        _file.put(line)
