"""Core files in the answer of `job why`: the place of the crash, what was collected, or why not. Pure."""

from ...protocol.jobs.core_report import CoreReport
from ...protocol.jobs.exit_info import ExitInfo, signal_number

_NO_FRAMES = {
    "noTool": "no frames: where it ran, there is neither pystack (for Python: jobscribe[core]) nor gdb",
    "timeout": "no frames: they took too long",
    "failed": "no frames: pystack or gdb found none",
}


def place(exit_: ExitInfo) -> str:
    """Return the place of the crash for the sentence, if the core is of the process that decided
    it; or "".
    """
    report = _report(exit_)
    if report is None or not report.files or (crash := report.crash()) is None:
        return ""
    same = report.files[0].signal == signal_number(exit_.code, exit_.signal)
    return f": {crash}" if same else ""


def evidence(exit_: ExitInfo) -> list[str]:
    """Return lines about core files, and the place of a crash that is not in the sentence."""
    report = _report(exit_)
    if report is None:
        return []
    crash = report.crash()
    out = [f"a process {crash}"] if crash is not None and not place(exit_) else []
    out += report.sentences()
    if report.files and report.no_frames is not None:
        out.append(_NO_FRAMES[report.no_frames])
    return out


def commands(jid: str, exit_: ExitInfo | None) -> list[str]:
    """Return the commands that read the core files."""
    report = None if exit_ is None else _report(exit_)
    if report is None or not report.files:
        return []
    return [
        f"jobscribe core stack {jid}   # prints the stack of the crash",
        f"jobscribe core fetch {jid}   # copies the core file, with the memory of the process",
    ]


def _report(exit_: ExitInfo) -> CoreReport | None:
    return exit_.core if isinstance(exit_.core, CoreReport) else None
