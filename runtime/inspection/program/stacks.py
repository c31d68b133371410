"""Stacks of the processes of an execution, by the first method that works.

Reading must not change the job. py-spy reads memory without stopping the process (`--nonblocking`);
a handler of the job's own faulthandler is asked by SIGURG, which processes without a handler ignore.
Only frames of C need ptrace, and `Guard` continues what a killed tool left stopped.

Python 3.8 or later, standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from typing import Any

from . import processes, tools
from .output import node, send
from .processes import OVER, STOPPED, UNINTERRUPTIBLE, Process
from .tools import Failure, Guard

#: Processes that are inspected; time limit of a tool for one process, and of a faulthandler.
MOST_PROCESSES, TOOL_SECS, HANDLER_SECS = 512, 15.0, 3.0
#: A process that runs while it is read may give a torn stack.
_TRIES = 5
_TEXT_BYTES = 256 * 1024
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in an uninterruptible wait (disk, network file system or driver)",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "ended; its parent has not read its exit",
    "X": "ended",
    "I": "idle",
}
_NO_PYSPY = Failure(
    "py-spy",
    "not installed here",
    "pip install py-spy in the environment of the job, or jobscribe[profile] beside the agent",
)
_NO_HANDLER = Failure(
    "faulthandler", "the job has not registered it", "submit with --debug=on-error"
)
_STOPPED = Failure("faulthandler", "a stopped process takes no signal", "")
_NO_ANSWER = Failure(
    "faulthandler", f"no answer within {HANDLER_SECS:g} s", "the process may be within the kernel"
)
_NO_GDB = Failure("gdb", "not installed here", "install gdb on the machine or in the image")
_IN_KERNEL = Failure("gdb", "it would wait as long as the process waits in the kernel", "")
_NOT_ASKED = Failure("gdb", "not asked for", "--native also prints frames of C")


def show(token: str, native: bool) -> int:
    """Send a record of each process. Return the exit code."""
    found = processes.of_execution(token)
    shown = found[:MOST_PROCESSES]
    if native:
        with Guard(shown) as guard:
            for process in shown:
                _show(process, found, guard)
    else:
        for process in shown:
            _show(process, found, None)
    send("end", processes=len(found), shown=len(shown), node=node())
    return 0


def _show(process: Process, all_: list[Process], guard: Guard | None) -> None:
    python = processes.is_python(process)
    record = {
        "pid": process.pid,
        "parent": process.parent,
        "name": process.name,
        "command": processes.command(process.pid),
        "python": python,
        "state": process.state,
        "stateText": _STATES.get(process.state, process.state),
        "frozen": processes.is_frozen(process.pid),
        "cpuSecs": process.cpu_secs,
        "waitsIn": processes.waits_in(process.pid),
        "method": None,
        "threads": [],
        "text": "",
    }
    failed: list[Failure] = []
    if process.state not in OVER:
        for method in (_pyspy, _faulthandler, _gdb) if python else (_gdb,):
            got = method(process, all_, guard)
            if isinstance(got, dict):
                record.update(got)
                break
            failed.append(got)
    if not python and guard is None:
        failed = []
    send("process", **record, failed=[f._asdict() for f in failed])


def _pyspy(process: Process, all_: list[Process], guard: Guard | None) -> dict[str, Any] | Failure:
    program = processes.program("py-spy", [process, *all_])
    if program is None:
        return _NO_PYSPY
    native = guard is not None and process.state not in STOPPED | {UNINTERRUPTIBLE}
    how = ["--native"] if native else ["--nonblocking"]
    for _ in range(_TRIES):
        argv = [program, "dump", "--json", *how, "--pid", str(process.pid)]
        result = tools.run(argv, TOOL_SECS, guard)
        threads = _threads(result.output) if result.code == 0 else None
        if threads is not None:
            return {"method": f"py-spy {how[0]}" if native else "py-spy", "threads": threads}
        why = tools.failure("py-spy", process, result)
        if result.code is None or why.remedy or not processes.is_same(process):
            break
    return why


def _threads(text: str) -> list[dict[str, Any]] | None:
    """Return the threads of `py-spy dump --json`; None for anything else."""
    try:
        found = json.loads(text)
        return [
            {
                "id": t.get("os_thread_id") or t["thread_id"],
                "name": t.get("thread_name") or "",
                "active": bool(t.get("active")),
                "gil": bool(t.get("owns_gil")),
                "frames": [
                    {"function": f["name"], "file": f["filename"], "line": f["line"]}
                    for f in t["frames"]
                ],
            }
            for t in found
        ] or None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _faulthandler(
    process: Process, all_: list[Process], guard: Guard | None
) -> dict[str, Any] | Failure:
    path = handler_file(process)
    if path is None:
        return _NO_HANDLER
    if process.state in STOPPED or processes.is_frozen(process.pid):
        return _STOPPED
    try:
        os.truncate(path, 0)
        os.kill(process.pid, signal.SIGURG)
    except OSError as failure:
        return Failure("faulthandler", failure.strerror or str(failure), "")
    until, before = time.monotonic() + HANDLER_SECS, ""
    while time.monotonic() < until:
        time.sleep(0.1)
        # the process removes the file at its end
        text = processes.read(path)[:_TEXT_BYTES].decode("utf-8", "replace")
        if text and text == before:
            return {"method": "faulthandler", "text": text}
        before = text
    return _NO_ANSWER


def handler_file(process: Process) -> str | None:
    """Return the file to which the process writes its stacks at SIGURG; None without a handler.
    `agent/breakpoints/staged` registers it. SIGURG without a handler has no effect, so a process
    that becomes another program meanwhile is unharmed.
    """
    folder = processes.variable(process.pid, "JOBSCRIBE_DEBUG_DIR")
    fields = processes.status(process.pid)
    caught = int(fields.get("SigCgt", "0"), 16) >> (signal.SIGURG - 1) & 1
    path = os.path.join(folder, f"stacks-{process.pid}-{process.start}.txt")
    try:
        found = os.lstat(path)
    except OSError:
        return None
    ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    return path if folder and caught and ours else None


def _gdb(process: Process, all_: list[Process], guard: Guard | None) -> dict[str, Any] | Failure:
    if guard is None:
        return _NOT_ASKED
    program = processes.program("gdb", [])
    if program is None:
        return _NO_GDB
    if process.state == UNINTERRUPTIBLE or processes.is_frozen(process.pid):
        return _IN_KERNEL
    # before it reads the process, whose files must not bring scripts
    words = ["-iex", "set auto-load off", "-ex", "set pagination off"]
    words += ["-ex", "thread apply all bt 100"]
    argv = [program, "-nx", "-batch", *words, "-p", str(process.pid)]
    result = tools.run(argv, TOOL_SECS, guard)
    if result.code == 0 and "\n#0" in result.output:
        at = result.output.find("\nThread ")
        return {"method": "gdb", "text": result.output[max(at, 0) :].strip()[:_TEXT_BYTES]}
    return tools.failure("gdb", process, result)
