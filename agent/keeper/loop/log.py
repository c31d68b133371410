"""The keeper's log lines. They go to its log, and to stderr if anybody still reads it; what cannot
be written is no reason to stop.
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
#: what goes with each line of JSON; None: lines are text
_ids: dict[str, str] | None = None


def keep_in(path: str, config: dict[str, Any]) -> None:
    """From here on lines are kept in this file, too; in the form that the keeper's configuration
    wants.
    """
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
    _file = RotatingFile(path, _FILE_BYTES, _FILES, _own)


def say(sentence: str) -> None:
    """One line, in the form all parts share. Never raises."""
    frame = sys._getframe(1)
    code = frame.f_code
    where = f"agent/{code.co_filename.rpartition('/agent/')[2]}"
    line = _line(f"{where}:{frame.f_lineno}:{code.co_name}", ascii(sentence)[1:-1])
    with contextlib.suppress(
        OSError
    ):  # a full disk, or a reader that went away or hangs, must not stop the work
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


def _own(sentence: str) -> str:
    """What the file says on its own account."""
    return sentence + "\n" if _ids is None else _line("agent/keeper/loop/log.py:0:file", sentence)
