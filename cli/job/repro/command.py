"""The command `job repro`: a folder that runs one task of a job again."""

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from ...session.job_names import resolve_job
from ...session.session import Session, command, session
from ...terminal.quantities import BYTES

if TYPE_CHECKING:
    from .record import Record

_MAX_SIZE = 64 * 2**20


@command()
@click.argument("name", metavar="JOB")
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    help="The folder, new or empty (default: jobscribe-repro-JOB here).",
)
@click.option("--role", metavar="ROLE", help="Task of this role (default: the task that failed).")
@click.option("--index", type=click.IntRange(0), metavar="I", help="Index of the task.")
@click.option(
    "--max-size",
    type=BYTES,
    default=_MAX_SIZE,
    metavar="SIZE",
    help="Maximum size of all copied input files (default: 64M; 0: none).",
)
def repro(
    name: str, folder: str | None, role: str | None, index: int | None, max_size: int
) -> None:
    """Write a folder that runs one task of JOB again on this machine: its script, input files,
    variables and image, its recorded outcome, and the commands to type.

    The folder has no secrets: run.sh asks for values that look like one. It works from any machine,
    and only you can read it.
    """
    from .record import read_record

    s = session()
    jid = resolve_job(s, name)
    client = s.client_for(jid)
    record = read_record(client, jid, role, index)
    path = os.path.abspath(folder or f"jobscribe-repro-{jid}")
    from . import folder as files

    new = files.create(path)
    try:
        answer = _write(s, record, path, max_size)
    except BaseException:
        files.discard(path, new)
        raise
    if s.screen.json:
        s.screen.value("jobscribe.job.repro/1", answer)
        return
    s.screen.line(path)
    s.screen.message(f"task {record.task} of {jid}: {record.said}")
    for each in record.withheld:
        s.screen.message(f"not copied, set it before run.sh: {each.name} ({each.where})")
    for file in answer["missing"]:
        s.screen.message(f"not copied: {file['name']}: {file['why']}")
    s.screen.message(f"type: {path}/run.sh; README.md has more")


def _write(s: Session, record: "Record", path: str, max_size: int) -> dict[str, Any]:
    from ....client.functions.calls import payload_of
    from ....protocol.version import VERSION
    from ...submission.job_text import job_text
    from . import folder as files
    from .readme import commands, readme
    from .record import input_files
    from .scripts import make_task, script_files

    client = s.client_for(record.jid)
    found, unknown = input_files(client, record)
    inputs = files.copy_inputs(s, client, record.jid, found, path, max_size)
    if unknown:
        inputs.missing.append({"name": "*", "why": unknown})
    task = make_task(record)
    function, data = payload_of(task.spec.command, task.spec.env)
    texts: dict[str, str | bytes] = dict(script_files(record, task, sys.executable))
    if not record.definition.app:
        texts["job.yaml"] = job_text(record.definition.data)
    if data:
        texts["call.bin"] = data
    texts["README.md"] = readme(record, task, inputs, function, s.supervisor_options(), VERSION)
    files.write(path, texts)
    return {
        "computeJid": record.jid,
        "computeJobSerial": record.serial,
        "attempt": record.attempt,
        "role": None if record.role is None else record.role.name,
        "index": record.index,
        "arrayIndex": record.array_index,
        "image": task.image,
        "folder": path,
        "files": files.listing(path),
        "inputs": inputs.copied,
        "missing": inputs.missing,
        "withheld": [{"name": w.name, "place": w.where} for w in record.withheld],
        "outcome": list(record.outcome),
        "commands": commands(record, task, function),
    }
