"""The README of a repro folder. Pure."""

import shlex
from collections.abc import Iterator
from typing import Any

import msgspec

from ....protocol.clusters.batch import BatchRequest
from ...submission.simulation import Task
from ...terminal.screen import clean
from .folder import Inputs
from .record import Record

_CHECK = (
    "Values that look like a secret are not in this folder. A secret without such a name cannot be"
    " recognised: check the files before you share them."
)


def readme(
    record: Record, task: Task, inputs: Inputs, function: str, options: str, version: str
) -> str:
    """Return the text. function: `inline` or `file` for a call of a Python function, else empty.
    options: of the command line, that select the supervisor.
    """
    parts = [
        f"# Task {record.task} of {record.jid}\n\nRun {record.serial}, attempt {record.attempt}."
        f" Written by jobscribe {version} with `jobscribe job repro`.",
        "## Recorded outcome\n\n```text\n" + "\n".join(record.outcome) + "\n```",
        "## Commands\n\n```sh\n" + "\n".join(commands(record, task, function)) + "\n```\n\n"
        "`run.sh` makes the directory `work` anew from `inputs`, and exits with the code of the task"
        " (128+n for signal n). `script.sh` is the script as the driver made it.",
        _withheld(record),
        _environment(record, task),
        _inputs(record, inputs, options),
        "## Differences\n\n"
        + "\n".join(f"- {line}" for line in _differences(record, task, function)),
    ]
    return "\n\n".join(parts) + "\n"


def commands(record: Record, task: Task, function: str) -> list[str]:
    """Return the commands that run the task, each with its purpose."""
    out = ["./run.sh                # run the task again"]
    if task.image:
        out.append("./run.sh --no-image     # without its image")
    out.append("./run.sh --shell        # a shell in its directory and environment")
    if not record.definition.app and not record.withheld:
        seat = "" if record.role is None else f" --role {record.role.name} --index {record.index}"
        out += [
            "rm -rf work && cp -R inputs work",
            f"jobscribe job simulate -f job.yaml{seat} --dir work   # the task with addresses and ports of this machine",
        ]
    if function == "inline":
        out.append(
            "python3 -m jobscribe.client.in_process.replay call.bin   # the function under Pdb, in one process"
        )
    return out


def _withheld(record: Record) -> str:
    if not record.withheld:
        return f"## Values that are not here\n\nNone was found. {_CHECK}"
    rows = [f"| `{w.name}` | {_cell(w.where)} |" for w in record.withheld]
    return (
        f"## Values that are not here\n\n{_CHECK} Set these variables before `./run.sh`:"
        "\n\n| variable | place of the value |\n| --- | --- |\n" + "\n".join(rows)
    )


def _environment(record: Record, task: Task) -> str:
    spec = record.spec
    limits = {
        "image": task.image,
        "working directory": task.directory.partition("@/")[2],
        "time limit": _secs(task.spec.time_limit_secs),
        "time between SIGTERM and SIGKILL": _secs(task.spec.grace_secs),
        "core files": f"{spec.core_bytes} bytes" if spec.core_bytes else None,
        "CPUs": record.role and record.role.cpu,
        "memory": record.role and f"{record.role.memory_mb} MB",
        "GPUs": (record.role and record.role.gpu) or None,
        "driver": spec.driver,
        "index of the array": record.array_index,
        "app": f"{spec.simulation_type} {spec.compute_model}" if spec.data is not None else None,
        "request to the cluster": f"`{msgspec.json.encode(spec.batch).decode()}`"
        if isinstance(spec.batch, BatchRequest)
        else None,
        "variables": ", ".join(sorted(task.env)) or "none of its own",
    }
    rows = [
        f"| {name} | {_cell(str(value))} |" for name, value in limits.items() if value is not None
    ]
    return "## Task\n\n| property | value |\n| --- | --- |\n" + "\n".join(rows)


def _secs(value: float | None) -> str | None:
    return None if value is None else f"{value:g} s"


def _inputs(record: Record, inputs: Inputs, options: str) -> str:
    if record.spec.data is not None:
        text = (
            "The input is `input.json`, the data of the simulation. Files of the user's library belong into"
            " `lib`; they are not copied."
        )
    else:
        text = (
            "Files of the run directory that are older than the start of the run. A file that the run"
            " changed or removed is not here."
        )
    if inputs.copied:
        rows = [f"| {_cell(f['name'])} | {f['bytes']} | {f['sha256']} |" for f in inputs.copied]
        text += "\n\n| file | bytes | SHA-256 |\n| --- | --- | --- |\n" + "\n".join(rows)
    if inputs.missing:
        rows = [f"| {_cell(f['name'])} | {_cell(f['why'])} |" for f in inputs.missing]
        text += "\n\nNot copied:\n\n| file | reason |\n| --- | --- |\n" + "\n".join(rows)
        name = _cell(shlex.quote(inputs.missing[0]["name"]))
        text += f"\n\n`jobscribe job get{options} {record.jid} {name} -o inputs` copies one."
    return "## Inputs\n\n" + text


def _differences(record: Record, task: Task, function: str) -> Iterator[str]:
    yield "Variables of the login profile are those of your shell; `script.sh` adds those of the task."
    yield "A task that reaches its time limit gets SIGTERM from `timeout`, whose exit code is 124."
    if not task.image:
        yield "Memory and cores are not limited."
    if record.role is not None:
        where = (
            "Host lists and ports are those of the recorded attempt; nothing listens there now."
            if record.placed
            else "The run has not been placed: host lists and ports are of the machine that wrote this."
        )
        yield f"The other tasks do not run. {where} `job simulate` uses addresses of this machine."
    if record.role is not None and record.role.volumes:
        yield f"Volumes are not mounted: {', '.join(record.role.volumes)}."
    if isinstance(record.spec.batch, BatchRequest):
        yield "Modules and setup lines of the request to the cluster have no effect here."
    if record.spec.driver == "docker" and not task.image:
        yield "On its host the task ran in the image of the pool, which the supervisor does not name."
    if record.definition.app:
        yield (
            "`PYTHON` names the Python for the job command; it needs jobscribe and the app, in the same"
            " version."
        )
    if function == "file":
        yield (
            "The arguments of the function were a file of the user's library. It is not copied, because"
            " it may have secrets."
        )
    yield from (f"{note[0].upper()}{note[1:]}." for note in record.definition.notes)


def _cell(text: Any) -> str:
    return " ".join(clean(text).replace("|", "\\|").split())
