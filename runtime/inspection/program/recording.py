"""A CPU profile of the Python processes of an execution, by py-spy.

It is recorded in slices, which are sent one by one: if the execution ends, and a container with it,
only the last slice is lost.

Python 3.8 or later, standard library only.
"""

from __future__ import annotations

import base64
import os
import subprocess
import tempfile
import time
import zlib

from . import processes, tools
from .output import node, send
from .processes import OVER, Process
from .tools import Failure, Guard, Result

#: Length of a slice (seconds), Python processes that are recorded with their children, and bytes of a
#: slice that are sent.
SLICE_SECS, MOST_ROOTS, MOST_BYTES = 5, 16, 32 * 1024 * 1024
#: Time that py-spy has to write a slice (seconds).
_WRITE_SECS = 30.0


def record(token: str, secs: int, rate: int, native: bool) -> int:
    """Send the slices of a recording. Return the exit code."""
    done, first = 0, True
    began = time.monotonic()
    while done < secs:
        found = processes.of_execution(token)
        roots = _roots(found)
        if not roots:
            break
        if len(roots) > MOST_ROOTS:
            send("note", text=f"{len(roots)} groups of processes; {MOST_ROOTS} are recorded")
        program = processes.program("py-spy", found)
        if program is None:
            return _failed(
                Failure(
                    "py-spy",
                    "py-spy is not installed where the job runs",
                    "pip install py-spy in the environment of the job, or jobscribe[profile] beside the agent",
                )
            )
        slice_ = min(SLICE_SECS, secs - done)
        why = _slice(program, roots[:MOST_ROOTS], slice_, rate, native, began)
        if why is not None and first:
            return _failed(why)
        first = False
        done = max(done + slice_ if why is None else done + 1, int(time.monotonic() - began))
    if first:
        return _failed(
            Failure(
                "py-spy",
                "no Python process of the task runs",
                "jobscribe debug stack shows what runs",
            )
        )
    over = done < secs or not processes.of_execution(token)
    send("end", over=over, secs=min(done, secs), node=node())
    return 0


def _failed(why: Failure) -> int:
    send("failed", **why._asdict())
    return 1


def _roots(found: list[Process]) -> list[Process]:
    """Return the Python processes without a Python process above them."""
    known = {p.pid: p for p in found}
    pythons = {p.pid for p in found if p.state not in OVER and processes.is_python(p)}

    def below(process: Process) -> bool:
        at, seen = known.get(process.parent), 0
        while at is not None and seen < len(known):
            if at.pid in pythons:
                return True
            at, seen = known.get(at.parent), seen + 1
        return False

    return [known[pid] for pid in sorted(pythons) if not below(known[pid])]


def _slice(
    program: str, roots: list[Process], secs: int, rate: int, native: bool, began: float
) -> Failure | None:
    """Record and send one slice. Return why nothing was recorded."""
    with tempfile.TemporaryDirectory(prefix="jobscribe-") as folder:
        if not native:
            return _recorded(program, roots, secs, rate, folder, began, None)
        with Guard(roots) as guard:
            return _recorded(program, roots, secs, rate, folder, began, guard)


def _recorded(
    program: str,
    roots: list[Process],
    secs: int,
    rate: int,
    folder: str,
    began: float,
    guard: Guard | None,
) -> Failure | None:
    how = "--nonblocking" if guard is None else "--native"
    running = []
    for root in roots:
        path = os.path.join(folder, str(root.pid))
        words = ["record", "--format", "raw", "--subprocesses", how, "--rate", str(rate)]
        words += ["--duration", str(secs), "--output", path, "--pid", str(root.pid)]
        with open(path + ".log", "wb") as log:
            tool = subprocess.Popen(
                [program, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        if guard is not None:
            guard.started(tool.pid)
        running.append((root, path, tool))
    try:
        return _waited(running, secs, began)
    finally:
        for _, _, tool in running:
            if tool.poll() is None:
                tool.kill()


def _waited(
    running: list[tuple[Process, str, subprocess.Popen[bytes]]], secs: int, began: float
) -> Failure | None:
    """Send what the tools have written when they end. Return why nothing was recorded."""
    until = time.monotonic() + secs + _WRITE_SECS
    shown = time.monotonic()
    while any(tool.poll() is None for _, _, tool in running) and time.monotonic() < until:
        time.sleep(0.05)
        if time.monotonic() - shown >= 1.0:
            shown = time.monotonic()
            send("progress", secs=round(shown - began, 1))
    why, got = None, False
    for root, path, tool in running:
        code = tool.poll()
        data = _content(path)
        if data:
            got = True
            _send(data)
        elif code != 0:
            error = processes.read(path + ".log").decode("utf-8", "replace")
            why = why or tools.failure("py-spy", root, Result(code, "", error))
    return None if got else why


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _send(data: bytes) -> None:
    if len(data) > MOST_BYTES:
        data = data[: data.rfind(b"\n", 0, MOST_BYTES) + 1]
        send("note", text="a slice of the recording is too large and was cut")
    send("samples", data=base64.b64encode(zlib.compress(data)).decode("ascii"))
