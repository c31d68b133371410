"""`jobscribe profile record`: the CPU profile of a running task, in a file here."""

import os
import re
import time
from pathlib import Path
from typing import Any

import click

from ...protocol.jobs.inspection import DEFAULT_RATE, MOST_SECS, Program
from ...protocol.jobs.profiling import plain_stacks
from ..session.inspection import Inspection, decoded, select
from ..session.job_names import resolve_job
from ..session.session import Session, command, session
from ..terminal.quantities import SECS, duration
from . import folded
from .flame_graph import flame_page
from .folded import Recording

#: Formats with the ends of their file names.
_ENDS = {"flamegraph": "html", "speedscope": "speedscope.json", "raw": "folded"}
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


@command()
@click.argument("name", metavar="JOB")
@click.argument("task", required=False, metavar="[ROLE-INDEX]")
@click.option("--seconds", type=SECS, default="30", show_default=True, metavar="TIME")
@click.option(
    "--rate",
    type=click.IntRange(1, 1000),
    default=DEFAULT_RATE,
    show_default=True,
    metavar="N",
    help="Samples per second.",
)
@click.option("--native", is_flag=True, help="Also show frames of C. Stops the job at each sample.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(list(_ENDS)),
    default="flamegraph",
    show_default=True,
)
@click.option("-o", "--output", metavar="FILE", help="Default: JOB-ROLE-INDEX.END here.")
def record(
    name: str,
    task: str | None,
    seconds: float,
    rate: int,
    native: bool,
    format_: str,
    output: str | None,
) -> None:
    """Record a CPU profile of the Python processes of a running task, with py-spy. The file is for
    you only, and no file is overwritten.

    The job goes on, and its exit is its own. If it ends meanwhile, the file has what was recorded.
    """
    if not 1 <= seconds <= MOST_SECS:
        raise click.UsageError(f"--seconds must be from 1 s to {duration(MOST_SECS)}")
    s = session()
    jid = resolve_job(s, name)
    chosen, attempt = select(s, jid, task)
    whole = f"{jid}-{chosen['role']}-{chosen['index']}"
    path = Path(output or f"{_NOT_IN_NAMES.sub('_', whole)}.{_ENDS[format_]}")
    if os.path.lexists(path):
        raise click.UsageError(f"{path} exists; remove it, or choose another file with --output")
    program = Program(name="profile", native=native, secs=seconds, rate=rate)
    inspection = Inspection(s, jid, chosen, attempt, program)
    recording = Recording()
    try:
        end, why = _collected(s, inspection, recording, seconds)
    except BaseException:
        inspection.hang_up()
        raise
    if end is None and not recording.samples:
        raise inspection.lost() if why is None else why
    _write(path, _formatted(recording, format_, whole, rate))
    secs = None if end is None else end.get("secs")
    _report(s, path, recording, secs, bool(end is None or end.get("over")), why)


def _collected(
    s: Session, inspection: Inspection, recording: Recording, seconds: float
) -> tuple[dict[str, Any] | None, Exception | None]:
    """Return the last record, and the error that ended the recording. Raises ClientError."""
    from ...client.api.errors import ClientError

    began, end = time.monotonic(), None
    try:
        for each in inspection.records():
            match each:
                case {"type": "samples"}:
                    recording.add(plain_stacks(decoded(each)).decode("utf-8", "replace"))
                case {"type": "end"}:
                    end = each
                case {"type": "note"}:
                    s.screen.message(str(each.get("text")))
                case {"type": "failed"}:
                    raise _failed(each)
                case _:
                    spent = time.monotonic() - began
                    s.screen.progress(
                        f"recording, {min(spent, seconds):.0f} of {seconds:.0f} s", spent
                    )
    except ClientError as e:
        if not recording.samples:
            raise
        return None, e
    return end, None


def _failed(record_: dict[str, Any]) -> Exception:
    from ...client.api.errors import ClientError

    return ClientError(
        "notReady", f"nothing was recorded: {record_.get('reason')}", str(record_.get("remedy"))
    )


def _formatted(recording: Recording, format_: str, name: str, rate: int) -> str:
    match format_:
        case "raw":
            return folded.raw(recording)
        case "speedscope":
            return folded.speedscope(recording, name, rate)
        case _:
            return flame_page(
                folded.raw(recording).splitlines(), f"{name}: {recording.samples} samples"
            )


def _write(path: Path, text: str) -> None:
    """Write a new file for this user only. Raises click.ClickException."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as e:
        raise click.ClickException(
            f"cannot write {path}: {e.strerror}; choose another --output"
        ) from None


def _report(
    s: Session,
    path: Path,
    recording: Recording,
    secs: float | None,
    over: bool,
    why: Exception | None,
) -> None:
    if s.screen.json:
        s.screen.value(
            "jobscribe.profile.record/1",
            {"file": str(path), "samples": recording.samples, "secs": secs, "jobEnded": over},
        )
        return
    s.screen.line(f"{path}: {recording.samples} samples")
    if not recording.samples:
        s.screen.message(
            "the processes used no CPU time; 'jobscribe debug stack' shows where they wait"
        )
    if over:
        s.screen.message(
            "the task ended, or the recording was lost, before its time was over: the file has what"
            " was recorded until then"
        )
    if why is not None:
        s.screen.message(f"the recording ended early: {why}")
