"""`jobscribe core list`: the core files of a job's tasks, or why there are none."""

import os
from typing import Any, NamedTuple

import click
import msgspec

from ...protocol.errors import Refusal
from ...protocol.jobs.core_report import SENTENCES, CoreFile, CoreReport
from ...protocol.jobs.exit_info import signal_name
from ..session.job_names import resolve_job
from ..session.session import Session, command, session
from ..terminal.quantities import amount

ATTEMPT = click.option(
    "--attempt",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Attempt (default: the latest).",
)


class Core(NamedTuple):
    """A core file of a task. number: its place in the list, from 1 on. report: of the task."""

    number: int
    role: str
    task_index: int
    host: str
    report: CoreReport
    file: CoreFile


class Cores(NamedTuple):
    """The core files of one attempt, and sentences about those that are not there."""

    serial: int
    attempt: int
    items: list[Core]
    notes: list[str]


@command(name="list")
@click.argument("name", metavar="JOB")
@ATTEMPT
def list_cores(name: str, attempt: int) -> None:
    """List the core files of JOB: number, task, process, signal, size, and the place of the crash.

    A job writes core files only if it was submitted with --core. Without a core, this prints why.
    """
    s = session()
    jid = resolve_job(s, name)
    found = cores_of(s, jid, attempt)
    if s.screen.json:
        s.screen.value("jobscribe.core.list/1", _value(jid, found))
        return
    if found.items:
        s.screen.table(
            ("N", "TASK", "HOST", "PID", "PROGRAM", "SIGNAL", "SIZE", "CRASHED"),
            [_row(core) for core in found.items],
        )
    for note in found.notes:
        s.screen.message(note)


def cores_of(s: Session, jid: str, attempt: int = 0) -> Cores:
    """Return the core files of an attempt (0: the latest). Raises ClientError."""
    answer = s.client_for(jid).tasks(jid, attempt=attempt)
    items: list[Core] = []
    notes: list[str] = []
    reports = 0
    for task in answer["tasks"]:
        said = (task.get("exit") or {}).get("core")
        if said is None:
            continue
        reports += 1
        report = msgspec.convert(said, CoreReport)
        where = f"{task['role']}/{task['index']}"
        host = str(task.get("host") or "")
        for file in report.files:
            items.append(Core(len(items) + 1, task["role"], task["index"], host, report, file))
            if file.cut:
                notes.append(
                    f"{where}: {file.name} is cut: it has {file.size} of {file.complete_bytes} bytes"
                )
        if report.state in SENTENCES or report.left:
            notes.append(f"{where}: {report.sentences()[len(report.files)]}")
        notes += [f"{where}: {sentence}" for sentence in report.node_sentences()]
    if not reports:
        notes.append(
            f"{jid} has no core files: none of its processes crashed, or it was submitted without --core"
        )
    return Cores(answer["computeJobSerial"], answer["attempt"], items, notes)


def chosen(s: Session, jid: str, number: int | None, attempt: int) -> tuple[Cores, Core]:
    """Return the core with this number; without one, the first. Raises Refusal("notFound")."""
    found = cores_of(s, jid, attempt)
    for core in found.items:
        if number in (None, core.number):
            return found, core
    what = "no core files" if not found.items else f"no core {number}"
    note = f": {found.notes[0]}" if found.notes and not found.items else ""
    raise Refusal(
        "notFound",
        f"{jid} has {what}{note}",
        {"advice": f"jobscribe core list {jid}{s.supervisor_options()}"},
    )


def _row(core: Core) -> list[str]:
    file = core.file
    crash = core.report.crash() if file is core.report.files[0] else None
    return [
        str(core.number),
        f"{core.role}/{core.task_index}",
        core.host or "-",
        "-" if file.pid is None else str(file.pid),
        os.path.basename(file.program or "-"),
        "-" if file.signal is None else signal_name(file.signal),
        amount(file.size),
        "-" if crash is None else crash.removeprefix("crashed in "),
    ]


def _value(jid: str, found: Cores) -> dict[str, Any]:
    return {
        "computeJid": jid,
        "computeJobSerial": found.serial,
        "attempt": found.attempt,
        "items": [
            {
                "number": core.number,
                "role": core.role,
                "index": core.task_index,
                "host": core.host or None,
                **msgspec.to_builtins(core.file),
                "frames": msgspec.to_builtins(core.report.frames)
                if core.file is core.report.files[0]
                else [],
            }
            for core in found.items
        ],
        "notes": found.notes,
    }
