"""Runs of py-spy and gdb with a time limit, and the reasons why they fail.

Python 3.8 or later, standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from typing import NamedTuple

from . import processes
from .processes import OVER, STOPPED, STOPPED_BY_SIGNAL, Process

#: Seconds after which the guard has found what a killed tool left behind.
_REPAIR_SECS = 0.5
#: Seconds that a killed tool may take to end.
_KILLED_SECS = 1.0
_ERROR_CHARS = 300
_REFUSED = re.compile(
    r"permission denied|operation not permitted|EPERM|EACCES|os error (1|13)\b", re.I
)


class Failure(NamedTuple):
    """Why a method gave no stacks, and what helps."""

    method: str
    reason: str
    remedy: str


class Result(NamedTuple):
    """The end of a tool. code: None if the time limit ended it."""

    code: int | None
    output: str
    error: str


class Guard:
    """Leaves no process of the job stopped. Tools that attach by ptrace stop their process for a
    moment, and a tool that is killed within it may leave the process stopped. A child of this process
    continues it, also if this process is killed.
    """

    def __init__(self, targets: list[Process]) -> None:
        self._targets = [p for p in targets if p.state not in STOPPED | OVER]
        self._write = self._child = -1

    def __enter__(self) -> Guard:
        reading, self._write = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                os.close(self._write)
                self._watch(reading)
            finally:
                os._exit(0)
        os.close(reading)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)
        os.waitpid(self._child, 0)

    def started(self, pid: int) -> None:
        os.write(self._write, b"%d\n" % pid)

    def _watch(self, reading: int) -> None:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        me, said = os.getpid(), b""
        while True:
            data = os.read(reading, 4096)
            if not data:
                break
            said += data
        for pid in map(int, said.split()):
            tool = processes.find(pid)
            if tool is not None and tool.session == os.getsid(me):
                _kill(pid, signal.SIGKILL)
        until = time.monotonic() + _REPAIR_SECS
        while time.monotonic() < until:
            for target in self._targets:
                now = processes.find(target.pid)
                if now is not None and now.start == target.start and now.state == STOPPED_BY_SIGNAL:
                    _kill(target.pid, signal.SIGCONT)
            time.sleep(0.05)


def run(argv: list[str], secs: float, guard: Guard | None = None) -> Result:
    """Run a tool. It is killed at its time limit, and not waited for if the kernel holds it."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "DEBUGINFOD_URLS": ""}
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
        )
    except OSError as failure:
        return Result(-1, "", failure.strerror or str(failure))
    if guard is not None:
        guard.started(process.pid)
    try:
        output, error = process.communicate(timeout=secs)
    except subprocess.TimeoutExpired:
        process.kill()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_SECS)
        return Result(None, "", f"no answer within {secs:g} s")
    return Result(process.returncode, _text(output), _text(error))


def failure(method: str, process: Process, result: Result) -> Failure:
    """Return why a tool failed for a process."""
    if not processes.is_same(process):
        return Failure(method, "the process has ended", "")
    if result.code is None:
        remedy = "try again; a machine under load, or a process in a wait of the kernel, is slow"
        return Failure(method, result.error, remedy)
    if _REFUSED.search(result.error):
        return Failure(method, *_refusal(process))
    lines = [line for line in result.error.splitlines() if line.strip()]
    said = " ".join(lines[-3:])[:_ERROR_CHARS] or f"exit code {result.code}"
    remedy = ""
    if "python version" in said.lower():
        remedy = "a newer py-spy may know this interpreter: pip install --upgrade py-spy"
    return Failure(method, said, remedy)


def _refusal(process: Process) -> tuple[str, str]:
    """Return why the kernel refuses to read a process, and the remedy."""
    scope = processes.read("/proc/sys/kernel/yama/ptrace_scope").strip()
    if scope in (b"1", b"2", b"3"):
        return (
            f"ptrace is forbidden on this machine (kernel.yama.ptrace_scope = {scope.decode()})",
            "an administrator allows it: sysctl kernel.yama.ptrace_scope=0"
            if scope != b"3"
            else "an administrator sets kernel.yama.ptrace_scope=0 at the next boot",
        )
    fields, own = processes.status(process.pid), processes.status(os.getpid())
    if fields.get("Uid", "").split() != own.get("Uid", "").split():
        return "the process runs as another user", "read it as its user"
    try:
        owner = os.stat(f"/proc/{process.pid}/environ").st_uid
    except OSError:
        owner = -1
    if owner != os.geteuid():
        return (
            "the process has made itself unreadable (prctl PR_SET_DUMPABLE, or a program with more"
            " rights), which only the capability CAP_SYS_PTRACE overrides",
            "start it without that, or with --debug=on-error, whose faulthandler needs no ptrace",
        )
    if own.get("Seccomp") == "2":
        return (
            "the container's seccomp profile forbids ptrace",
            "an administrator allows ptrace and process_vm_readv in the seccomp profile",
        )
    return (
        "ptrace is forbidden here: it needs the capability CAP_SYS_PTRACE",
        "submit with --debug=on-error, whose faulthandler needs no ptrace",
    )


def _kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
