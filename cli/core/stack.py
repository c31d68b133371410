"""`jobscribe core stack`: the stack of a crashed process, from its core file, with local tools."""

import os
import platform
import tempfile
from typing import Any

import click

from ...protocol.errors import Refusal
from ...runtime.cores import frames
from ..session.job_names import resolve_job
from ..session.session import command, session
from .fetch import copy
from .listing import ATTEMPT, chosen

#: Time limit of the tools (seconds).
_SECS = 120.0
_WHY = {
    "noTool": "neither pystack nor gdb could be used here: install 'jobscribe[core]' for Python, and gdb for other programs",
    "timeout": f"the stack took longer than {_SECS:.0f} s",
    "failed": "the tools found no frames in it: they need the same program and libraries as where it ran",
}


@command()
@click.argument("name", metavar="JOB")
@click.argument("number", required=False, type=click.IntRange(1), metavar="[N]")
@click.option("--native", is_flag=True, help="Also the frames of native code in Python processes.")
@ATTEMPT
def stack(name: str, number: int | None, native: bool, attempt: int) -> None:
    """Print the stack of core file N of JOB, the innermost frame first: functions, files and lines.

    The core is copied to a temporary file and read with pystack (Python) or gdb here. They need the
    interpreter and the libraries of the job; if the program is not here, this says so.
    """
    s = session()
    jid = resolve_job(s, name)
    cores, core = chosen(s, jid, number, attempt)
    program = core.file.program
    note = _difference(program, core.host)
    with tempfile.TemporaryDirectory(prefix="jobscribe-core-") as folder:
        path = os.path.join(folder, core.file.name)
        copy(s, jid, cores, core, path, replace=False)
        found, tool = frames.of_core(path, program, core.file.pid, _SECS)
    if not found:
        raise Refusal("notFound", f"no stack of {core.file.name}: {_WHY[tool or 'failed']}{note}")
    shown = [f for f in found if native or f["kind"] == "python"] or found
    if s.screen.json:
        value = {"computeJid": jid, "name": core.file.name, "tool": tool, "frames": shown}
        s.screen.value("jobscribe.core.stack/1", value)
        return
    if note:
        s.screen.message(note.removeprefix("; "))
    for frame in shown:
        s.screen.line(_line(frame))


def _line(frame: dict[str, Any]) -> str:
    where = f"{frame['file']}:{frame['line']}" if frame["line"] else frame["file"] or "?"
    return f"{'Python' if frame['kind'] == 'python' else 'native'}  {where}  {frame['function']}"


def _difference(program: str | None, host: str) -> str:
    """Return why the result may be wrong or empty, or ""."""
    if program is not None and os.path.isabs(program) and not os.path.exists(program):
        return f"; its program {program} is not on this machine: run this command on {host or 'the host of the job'}"
    if host and host not in ("localhost", platform.node()):
        return f"; it ran on {host}: if its libraries differ from those here, frames may be wrong or missing"
    return ""
