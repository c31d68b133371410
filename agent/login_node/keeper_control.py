"""Control of a keeper on this machine: start detached, find, stop. A lease allows one keeper per
agent key across machines.

    <base>/job_agent.log                  log of keepers and agents, appended
    <base>/agent/<key>/agents.json        the supervisor's address; ca.pem beside it, if there is a certificate to verify against
    <base>/agent/<key>/started.json       the last start: holds no secret

Standard library only.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
import time

from ...runtime import processes
from ...runtime.execution.folder import tail as last_bytes
from ...runtime.execution.folder import write_json
from ...runtime.filesystems import write_atomically
from ..keeper import lease as leases
from .code_unpacker import ensure_private_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Request = dict[str, Any]

LOG = "job_agent.log"
#: Start of an agent's process title. It tells agents from jobs, which are children of keepers too.
_AGENT_TITLE = b"jobscribe agent "
#: Limit of returned log bytes.
_LOG_BYTES = 1 << 20
NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PASSED_ON = (
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "SLURM_CONF",
)
#: Time (seconds) within which a killed process is gone.
_KILLED_SECS = 5.0


def start(request: Request) -> dict[str, Any]:
    """Start a keeper or find the running one. Blocks until its agent has started.

    Returns the keeper's handle or an error sentence, with the new log output in both cases.
    """
    base, folder = request["base"], f"{request['base']}/agent/{request['key']}"
    ensure_private_folder(base)
    ensure_private_folder(folder)
    left_secs = float(request.get("leftSecs", leases.LEFT_SECS))
    seen, lives = leases.check_owner(f"{folder}/lease", left_secs)
    if seen is not None and lives and request.get("move") and seen.is_owner_alive() is None:
        lives = not leases.ask_to_end(f"{folder}/lease", seen, left_secs)
    if seen is not None and lives:
        _write_address(folder, request)
        return {**_handle(folder, seen), "started": False}
    log = f"{base}/{LOG}"
    before = last_bytes(log, _LOG_BYTES)
    began = _size(log)
    _write_address(folder, request)
    error = _start_detached(request, folder, log, 0 if seen is None else seen.number)
    out: dict[str, Any] = {
        "before": _text(None if before is None else before[1]),
        "output": _text(_appended_since(log, began)),
    }
    if error is not None:
        current, lives = leases.check_owner(
            f"{folder}/lease", left_secs
        )  # another start may have won
        if current is not None and lives:
            return {**out, **_handle(folder, current), "started": False}
        return {**out, "error": error}
    current = leases.newest(f"{folder}/lease")
    if current is None:
        return {**out, "error": "the keeper ended right after its start"}
    handle = _handle(folder, current)
    write_json(f"{folder}/started.json", {**handle, "code": request.get("code")})
    return {**out, **handle, "started": True}


def _handle(folder: str, seen: leases.SeenLease) -> dict[str, Any]:
    return {
        "folder": folder,
        **{
            name: seen.fields.get(name)
            for name in ("number", "pid", "startTicks", "bootId", "host")
        },
    }


def _write_address(folder: str, request: Request) -> None:
    """Write the supervisor's address; the agent reads it before each attempt."""
    address = dict(request["address"])
    if request.get("ca") is not None:
        write_atomically(f"{folder}/ca.pem", request["ca"].encode())
        address["agentsCa"] = f"{folder}/ca.pem"
    write_json(f"{folder}/agents.json", address)


def _start_detached(request: Request, folder: str, log: str, over: int) -> str | None:
    """Start a detached keeper. Returns None when its agent has started, or why not."""
    python = request.get("python") or sys.executable
    read_end, write_end = os.pipe()
    config = {
        **request["config"],
        "python": python,
        "tellFd": write_end,
        "lifeSecs": 2 * float(request["secs"]),
        "lease": {**request["config"].get("lease", {}), "over": over},
    }
    package = __package__.partition(".")[0]
    try:
        # a job may have replaced the log: do not block on a pipe, and follow no link
        with open(os.open(log, _APPEND, 0o600), "ab") as out:
            os.fchmod(out.fileno(), 0o600)
            keeper = subprocess.Popen(
                [
                    python,
                    "-P",
                    "-m",
                    f"{package}.agent.keeper",
                    "--root",
                    request["base"],
                    "--folder",
                    folder,
                ],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                cwd="/",
                start_new_session=True,
                pass_fds=(write_end,),
                env={k: os.environ[k] for k in _PASSED_ON if k in os.environ},
            )
    except OSError as e:
        os.close(read_end)
        return f"the keeper cannot be started: {e.strerror}: {e.filename}"
    finally:
        os.close(write_end)
    assert keeper.stdin is not None
    with contextlib.suppress(BrokenPipeError), keeper.stdin as line:
        line.write(json.dumps(config).encode() + b"\n")
    secs = float(request["secs"])
    report = _read_report(read_end, secs)
    if report is None:
        _kill(keeper.pid)
        return f"the keeper did not start an agent within {secs:g} s and was killed"
    if report:
        failure = json.loads(report)
        if failure is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            keeper.wait(_KILLED_SECS)  # so that its lease is not taken for another keeper's
        return str(failure)
    code = keeper.wait()
    return f"the keeper ended {f'by signal {-code}' if code < 0 else f'with exit code {code}'}; see {LOG}"


def _kill(reaper: int) -> None:
    """Kill a keeper that did not start. Its reaper ends with it."""
    for pid in processes.children(reaper):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _read_report(fd: int, secs: float) -> bytes | None:
    """Return the keeper's line; empty if the keeper ended without one, None after the time limit."""
    until, out = time.monotonic() + secs, b""
    try:
        while not out.endswith(b"\n"):
            if not select.select([fd], [], [], max(0.0, until - time.monotonic()))[0]:
                return None
            data = os.read(fd, 65536)
            if not data:
                return b""
            out += data
        return out
    finally:
        os.close(fd)


def find(request: Request) -> dict[str, Any]:
    """Return whether the keeper named by the handle lives. May block to watch its lease."""
    folder, handle = request["folder"], request["handle"]
    if handle.get("pid") is None or handle.get("startTicks") is None:
        return {"state": "unknown", "detail": "the handle has no pid"}
    if handle.get("bootId") == processes.boot_id() and processes.alive(
        handle["pid"], handle["startTicks"]
    ):
        _update_address(folder, request)
        woken = processes.wake(handle["pid"], handle["startTicks"], _AGENT_TITLE)
        return {
            "state": "alive",
            "detail": f"keeper pid {handle['pid']} on {os.uname().nodename}{woken}",
        }
    seen = leases.newest(f"{folder}/lease")
    if seen is None or not seen.belongs_to(handle):
        return {"state": "gone", "detail": "the keeper has ended; another one may have started"}
    if request.get("move") and seen.is_owner_alive() is None:
        # its connection through that machine is lost; a start first ends the keeper on that machine
        return {
            "state": "gone",
            "detail": f"the keeper runs on {seen.host}, which has no connection to the supervisor any more",
        }
    seen, lives = leases.check_owner(
        f"{folder}/lease", float(request.get("leftSecs", leases.LEFT_SECS))
    )
    if seen is None or not seen.belongs_to(handle) or not lives:
        return {"state": "gone", "detail": "the keeper has ended"}
    _update_address(folder, request)
    return {"state": "alive", "detail": f"keeper pid {handle['pid']} on {seen.host}"}


def reach(request: Request) -> dict[str, Any]:
    """Set the supervisor's address for an agent that waits to connect."""
    ensure_private_folder(request["folder"])
    _write_address(request["folder"], request)
    return {}


def _update_address(folder: str, request: Request) -> None:
    """Write the current address: the supervisor may have moved since the agent's start."""
    if request.get("address") is not None:
        with contextlib.suppress(OSError):
            _write_address(folder, request)


def stop(request: Request) -> dict[str, Any]:
    folder, handle, grace = request["folder"], request["handle"], float(request["grace"])
    pid, ticks = handle.get("pid"), handle.get("startTicks")
    if pid is None or ticks is None:
        return {}
    if handle.get("bootId") == processes.boot_id() and processes.alive(pid, ticks):
        processes.send_signal(pid, ticks, signal.SIGTERM)
        processes.send_signal(pid, ticks, signal.SIGCONT)  # a stopped keeper would not react
        if not _gone(pid, ticks, grace + 5):
            processes.send_signal(pid, ticks, signal.SIGKILL)
            _gone(pid, ticks, _KILLED_SECS)
        return {}
    seen = leases.newest(f"{folder}/lease")
    if seen is None or not seen.belongs_to(handle) or seen.is_owner_alive() is not None:
        return {}
    if not leases.ask_to_end(
        f"{folder}/lease", seen, float(request.get("leftSecs", leases.LEFT_SECS)), grace + 30
    ):
        return {
            "error": f"the keeper runs on {seen.host} and has not ended; end it there: kill {pid}"
        }
    return {}


def _gone(pid: int, ticks: int, secs: float) -> bool:
    until = time.monotonic() + secs
    while processes.alive(pid, ticks):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _size(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def _appended_since(path: str, begin: int) -> bytes | None:
    """Return the bytes from offset `begin` on, at most the last `_LOG_BYTES`."""
    end = last_bytes(path, _LOG_BYTES)
    return None if end is None else end[1][max(0, begin - end[0]) :]


def _text(data: bytes | None) -> str:
    return base64.b64encode(data or b"").decode()
