"""Collection of the core files of one execution into `cores/` of its evidence, and a report about
them (`cores.json`, with the field names of `protocol.jobs.core_report.CoreReport`).

Executors run it as a process of its own (`python -m jobscribe.runtime.cores`), because it copies,
hashes and reads gigabytes. It may be killed and repeated: what was moved before counts again.
Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import time

from . import core_pattern, frames, search
from .core_folder import CoreFolder, order
from .report_file import TOTAL_SECS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .core_pattern import Target

#: Signals whose default action dumps core: QUIT, ILL, TRAP, ABRT, BUS, FPE, SEGV, XCPU, XFSZ, SYS.
DUMPING = frozenset((3, 4, 5, 6, 7, 8, 11, 24, 25, 31))
#: Time limits (seconds) for systemd-coredump to store a core, and for frames.
_SYSTEMD_SECS, _FRAMES_SECS = 10.0, 20.0
#: Time limit of the search for cores (seconds).
_SEARCH_SECS = 15.0
_BLOCK = 1 << 20
#: Different patterns of the nodes of one execution that are searched for.
_MOST_PATTERNS = 8


class Request:
    """A request to collect core files. dumped: the kernel says that the main process wrote a core.
    since: unix time of the start. limit: bytes. pids: processes of the execution. frames: whether to
    print frames: not for processes of somebody else. base: see `search.find`; the files may then
    belong to the user of the run directory.

    Unless it ran here: pattern, uses_pid, hard_limit: those of its machine. systemd_error: of
    coredumpctl there. nodes: pattern and limit of each node of several.
    """

    def __init__(self, fields: dict[str, Any]) -> None:
        self.folder, self.run_dir = str(fields["folder"]), str(fields["runDir"])
        self.since, self.limit = float(fields["since"]), int(fields["limit"])
        self.signal, self.dumped = fields.get("signal"), bool(fields.get("dumped"))
        self.pids = {int(pid) for pid in fields.get("pids") or ()}
        self.main = fields.get("main")
        self.frames = bool(fields.get("frames", True))
        self.pattern, self.uses_pid = fields.get("pattern"), bool(fields.get("usesPid"))
        self.hard_limit, self.base = fields.get("hardLimit"), fields.get("base")
        self.systemd_error = str(fields.get("systemdError") or "")
        self.nodes: list[dict[str, Any]] = fields.get("nodes") or []

    @property
    def here(self) -> bool:
        """Return whether it ran on this machine, in this root directory."""
        return self.pattern is None

    @property
    def expects(self) -> bool:
        """Return whether its end may have left a core."""
        return self.dumped or self.signal in DUMPING


def collect(request: Request) -> dict[str, Any] | None:
    """Collect, write the report and return it; None if the execution left no core and none is
    missing. Raises OSError if nothing can be written.
    """
    until = time.monotonic() + TOTAL_SECS
    if request.pattern is None:
        pattern, uses_pid = core_pattern.read(_text)
    else:
        pattern, uses_pid = request.pattern, request.uses_pid
    target = core_pattern.parse(
        pattern or "core", uses_pid, socket.gethostname() if request.here else ""
    )
    others = _other_targets(pattern or "", uses_pid, request.nodes)
    if not request.expects and not any(_may_have_children(t) for t in (target, *others)):
        return None
    store = CoreFolder(request.folder, request.limit, until)
    try:
        for each in (target, *others):
            _take(each, request, store)
        report = store.report(request.main, until)
        if not report["files"] and not request.expects:
            return None
        report |= {"state": _state(target, request, store), "limit": request.limit}
        report["detail"] = store.detail or target.program or (pattern or "").strip()
        report["nodes"] = nodes_without_cores(request.nodes, (report["state"], report["detail"]))
        if report["files"] and request.frames:
            report |= _frames(
                store, report["files"][0], min(_FRAMES_SECS, until - time.monotonic())
            )
        store.write_report(json.dumps(report).encode())
        return report
    finally:
        store.close()


def state_without_core(
    target: Target, *, dumped: bool, hard_limit: int | None, writable: bool, free: int | None
) -> str:
    """Return why there is no core file. Pure; the words are those of `CoreReport.state`.

    hard_limit: bytes; None: unlimited. free: bytes on the disk of the working directory.
    """
    if hard_limit == 0:
        return "hardLimit"
    match target.kind:
        case "none":
            return "noPattern"
        case "pipe" | "socket" if not target.by_systemd:
            return "piped"
        case "pipe":
            return "notStored"
    if not target.absolute and not writable:
        return "notWritable"
    if free is not None and free < _BLOCK:
        return "diskFull"
    return "notFound" if dumped else "notWritten"


def _take(target: Target, request: Request, store: CoreFolder) -> None:
    if target.kind == "file":
        pids = request.pids | ({request.main} if request.main is not None else set())
        until = time.monotonic() + _SEARCH_SECS
        found = search.find(target, request.run_dir, request.since, pids, request.base, until)
        try:
            for core in order(found, request.main):
                store.add(core)
        finally:
            for core in found:
                core.close()
    elif target.by_systemd and request.here and request.dumped and request.main is not None:
        _from_systemd(request, store)


def _from_systemd(request: Request, store: CoreFolder) -> None:
    """Ask systemd-coredump for the core of the main process; it needs a moment to store one."""
    if shutil.which("coredumpctl") is None:
        store.detail = "coredumpctl is not installed"
        return
    name = f"core.{request.main}"
    part = f"{store.path}/.{name}.part"
    command = systemd_command(request.main or 0, request.since, part)
    until = time.monotonic() + _SYSTEMD_SECS
    while time.monotonic() < until:
        problem = _dump(command, request.limit)
        if problem is None and os.path.exists(part):
            os.chmod(part, 0o600)
            os.rename(part, f"{store.path}/{name}")
            return
        store.detail = problem or "it wrote nothing"
        with contextlib.suppress(OSError):
            os.unlink(part)
        time.sleep(0.5)


def _dump(command: list[str], limit: int) -> str | None:
    """Run coredumpctl, which may write so many bytes. Return its complaint, or None."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SYSTEMD_SECS,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )
    except subprocess.TimeoutExpired:
        return "it did not answer in time"
    if done.returncode == -signal.SIGXFSZ:
        return "the core is larger than the limit"
    said = done.stderr.decode("utf-8", "replace").strip()[-150:]
    return None if done.returncode == 0 else said or f"exit code {done.returncode}"


def systemd_command(pid: int, since: float, output: str) -> list[str]:
    """Return the command that writes the core of this process. Pure."""
    return [
        *("coredumpctl", "--quiet", f"--since=@{int(since)}", f"--output={output}"),
        *("dump", f"COREDUMP_PID={pid}"),
    ]


def _frames(store: CoreFolder, file: dict[str, Any], secs: float) -> dict[str, Any]:
    found, tool = frames.of_core(
        f"{store.path}/{file['name']}", file["program"], file["pid"], max(1.0, secs)
    )
    return {"frames": frames.top(found), "tool": tool} if found else {"noFrames": tool}


def _state(target: Target, request: Request, store: CoreFolder) -> str:
    if store.problem:
        return store.problem
    if store.names():
        return "kept"
    if store.left:
        return "tooLarge"
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1] if request.here else request.hard_limit
    if target.by_systemd and not request.here:
        store.detail = request.systemd_error
        return "notStored" if request.systemd_error else "piped"
    free = None
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(request.run_dir).free
    return state_without_core(
        target,
        dumped=request.dumped,
        hard_limit=None if hard == resource.RLIM_INFINITY else hard,
        writable=os.access(request.run_dir, os.W_OK | os.X_OK),
        free=free,
    )


def nodes_without_cores(nodes: list[dict[str, Any]], told: tuple[str, str]) -> list[dict[str, str]]:
    """Return why nodes give no core files, with the names of the nodes, one item for each reason.
    Pure.

    nodes: facts of each node (`marker`). told: state and detail that the report has already.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        pattern = str(node["pattern"]).strip()
        target = core_pattern.parse(pattern, bool(node["usesPid"]))
        if node["hardLimit"] == 0:
            why = "hardLimit", ""
        elif target.kind == "none":
            why = "noPattern", ""
        elif target.by_systemd:
            why = "systemd", ""
        elif target.kind != "file":
            why = "piped", target.program
        elif target.absolute:
            why = "elsewhere", pattern
        else:
            continue
        if why[0] != told[0] or why[1] not in ("", told[1]):
            found.setdefault(why, []).append(str(node["node"]))
    return [
        {"state": state, "detail": detail, "names": ", ".join(names)}
        for (state, detail), names in found.items()
    ]


def _other_targets(pattern: str, uses_pid: bool, nodes: list[dict[str, Any]]) -> list[Target]:
    """Return the targets of nodes with another pattern than this one, each once."""
    known = {(pattern.strip("\n"), uses_pid)}
    out = []
    for node in nodes:
        each = str(node["pattern"]).strip("\n"), bool(node["usesPid"])
        if each not in known and len(known) <= _MOST_PATTERNS:
            known.add(each)
            out.append(core_pattern.parse(*each))
    return out


def _may_have_children(target: Target) -> bool:
    """Return whether child processes may have left cores: without a pid in its name, a core may be
    of anybody.
    """
    return target.kind == "file" and (not target.absolute or target.has_pid)


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return None


def main(path: str) -> None:
    """Collect by the request in this file. Ends by SIGALRM if it takes too long."""
    signal.alarm(int(2 * TOTAL_SECS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with open(path, encoding="utf-8") as file:
        request = Request(json.load(file))
    collect(request)
