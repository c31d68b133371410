"""The keeper's log lines: written to its log file, and to stderr if it is still read.

A line that cannot be written never stops the keeper.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

from ....runtime.log.destinations import RotatingFile, is_writable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FILE_BYTES, _FILES = 1024 * 1024, 2
_file: RotatingFile | None = None
#: fields added to each line of JSON; None: lines are text
_ids: dict[str, str] | None = None


def open_log_file(path: str, config: dict[str, Any]) -> None:
    """Also write log lines to this file, in the format that the configuration sets."""
    global _file, _ids  # one keeper is one process
    if (config.get("log") or {}).get("format") == "json":
        agent = config.get("agent") or {}
        place, _, host = str(agent.get("agentKey", "")).partition("@")
        parts = place.split(".")
        _ids = {
            "driver": parts[0],
            "uid": parts[-1],
            "host": host,
            "agent": str(agent.get("agentId", ""))[:4],
        }
    _file = RotatingFile(path, _FILE_BYTES, _FILES, _own_line)


def log(sentence: str) -> None:
    """Log one line in the common format. Never raises."""
    frame = sys._getframe(1)
    code = frame.f_code
    where = f"agent/{code.co_filename.rpartition('/agent/')[2]}"
    line = _line(f"{where}:{frame.f_lineno}:{code.co_name}", ascii(sentence)[1:-1])
    with contextlib.suppress(OSError):  # a full disk or a closed stderr must not stop the keeper
        if is_writable(2):
            os.write(2, line.encode())
    if _file is not None:
        _file.put(line)


def _line(where: str, text: str) -> str:
    if _ids is None:
        return f"{time.strftime('%b %d %H:%M:%S', time.gmtime())} {os.getpid():5d}     0 {where} {text}\n"
    seconds, nanos = divmod(time.time_ns(), 10**9)
    return (
        json.dumps(
            {
                "ts": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanos:09d}Z",
                "level": "warning",
                "component": "keeper",
                "pid": os.getpid(),
                "thread": 0,
                "where": where,
                "msg": text,
                **_ids,
            }
        )
        + "\n"
    )


def _own_line(sentence: str) -> str:
    """Format a line that the log file writes about itself."""
    return sentence + "\n" if _ids is None else _line("agent/keeper/loop/log.py:0:file", sentence)
