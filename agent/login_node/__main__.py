"""Commands that the driver `sbatch` runs on a login node, as the user: `python -P -m
jobscribe.agent.login_node.__main__ VERB`.

Input: one line of JSON on stdin. Output: one line of JSON after MARK: an answer or `{"error":
sentence}`. Secrets are in no argument, environment or file that others can read. Processes started
here lead their own session and inherit no descriptors, so the ssh connection may end.

    probe   {"base"}                                          describe this machine and its Python
    start   {"base", "key", "config", "address", "ca", "secs", "leftSecs", "move", "code"}
                                                           start a detached keeper with its agent, or find the running one
    find    {"folder", "handle", "leftSecs", "move", "address", "ca"}  {"state": "alive" | "gone" | "unknown", "detail"}
    reach   {"folder", "address", "ca"}                    {}: set the address that the agent connects to
    stop    {"folder", "handle", "grace", "leftSecs"}      {} when keeper and agent have ended
    check   {"base", "userRoot", "environment", "setup"}   {"sentences": [...]}: problems that would keep jobs from working
    tail    {"folder", "name", "offset", "limit"}          {"data": base64, "size"}: part of a file in the agent's folder

Standard library only.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import pwd
import stat
import sys
import time

from ...protocol.version import VERSION
from ...runtime import processes
from ...runtime.filesystems import network_file_system
from . import keeper_control
from .checks import check
from .code_unpacker import MARK, ensure_private_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_REQUEST_BYTES = 4 << 20
#: Packages that an agent needs (see setup.py).
_NEEDED = ("tornado", "msgpack", "msgspec")


def main() -> int:
    if sys.argv[1:] in (["--help"], ["-h"]):
        sys.stdout.write((__doc__ or "") + "\n")
        return 0
    os.umask(0o077)
    processes.set_dumpable(False)  # it receives a token
    try:
        answer = _verb(sys.argv[1:])(json.loads(sys.stdin.buffer.readline(_REQUEST_BYTES)))
    except OSError as e:
        answer = {"error": f"{e.filename or 'the agent'}: {e.strerror}"}
    except KeyError as e:
        answer = {"error": f"the request lacks {e}: both ends must run compatible versions"}
    except ValueError as e:
        answer = {"error": str(e)}
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")
    return 0


def _verb(given: list[str]) -> Any:
    verbs = {
        "probe": probe,
        "start": keeper_control.start,
        "find": keeper_control.find,
        "reach": keeper_control.reach,
        "stop": keeper_control.stop,
        "check": check,
        "tail": tail,
    }
    if len(given) != 1 or given[0] not in verbs:
        raise ValueError(f"unknown verb; use one of: {', '.join(verbs)}")
    return verbs[given[0]]


def probe(request: dict[str, Any]) -> dict[str, Any]:
    ensure_private_folder(request["base"])
    return {
        "version": VERSION,
        "host": os.uname().nodename,
        "user": pwd.getpwuid(os.geteuid()).pw_name,
        "bootId": processes.boot_id(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "missing": missing_package(),
        "clock": time.time(),
        "network": network_file_system(request["base"]),
    }


def missing_package() -> str | None:
    """Return a sentence about the first needed package that cannot be imported, or None."""
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as e:
            return f"{name} cannot be imported by {sys.executable}: {e}"
    return None


def tail(request: dict[str, Any]) -> dict[str, Any]:
    """Read part of a file; follows no link and never blocks on a pipe, as a job may replace files."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    opened: list[int] = []
    try:
        opened.append(os.open(request["folder"], flags | os.O_DIRECTORY))
        *folders, name = (
            part for part in str(request["name"]).split("/") if part not in ("", ".", "..")
        )
        for part in folders:
            opened.append(os.open(part, flags | os.O_DIRECTORY, dir_fd=opened[-1]))
        opened.append(os.open(name, flags | os.O_NONBLOCK, dir_fd=opened[-1]))
        status = os.fstat(opened[-1])
        data, size = b"", 0
        if stat.S_ISREG(status.st_mode):
            data, size = (
                os.pread(opened[-1], min(int(request["limit"]), 1 << 20), int(request["offset"])),
                status.st_size,
            )
    except OSError as e:
        if e.errno not in keeper_control.NOT_THERE:
            raise
        data, size = b"", 0
    finally:
        for fd in opened:
            os.close(fd)
    return {"data": base64.b64encode(data).decode(), "size": size}


if __name__ == "__main__":
    sys.exit(main())
