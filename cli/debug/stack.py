"""`jobscribe debug stack`: the stacks of all processes of a running task."""

import shlex
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from ...protocol.jobs.inspection import Program
from ...schema.jobs.withheld import Withholding
from ..session.inspection import Inspection, select
from ..session.job_names import resolve_job
from ..session.session import command, session
from ..terminal.quantities import duration

_COMMAND_CHARS = 200


@command()
@click.argument("name", metavar="JOB")
@click.argument("task", required=False, metavar="[ROLE-INDEX]")
@click.option("--native", is_flag=True, help="Also show frames of C. Stops each process briefly.")
def stack(name: str, task: str | None, native: bool) -> None:
    """Print the stacks of all processes of a running task: of Python by py-spy or by the job's
    faulthandler; of C, with --native, by py-spy and gdb. For each process, show the method, and why
    others failed.

    The job goes on. Exits with 1 if no stack of a Python process could be read.
    """
    s = session()
    jid = resolve_job(s, name)
    chosen, attempt = select(s, jid, task)
    inspection = Inspection(s, jid, chosen, attempt, Program(name="stacks", native=native))
    began, found, end = time.monotonic(), [], None
    try:
        for record in inspection.records():
            match record:
                case {"type": "process"}:
                    found.append(_redacted(record))
                case {"type": "end"}:
                    end = record
                case _:
                    s.screen.progress(
                        f"{len(found)} processes inspected", time.monotonic() - began
                    )
    except BaseException:
        inspection.hang_up()
        raise
    if end is None:
        raise inspection.lost()
    about = {"computeJid": jid, "role": chosen["role"], "index": chosen["index"]}
    if s.screen.json:
        s.screen.value(
            "jobscribe.debug.stack/1",
            {**about, "host": chosen["host"], "attempt": attempt, "processes": found},
        )
    else:
        s.screen.line(
            f"task {chosen['role']}/{chosen['index']} of {jid} on {chosen['host']}:"
            f" {end.get('processes')} processes"
        )
        for line in (line for record in found for line in process_lines(record)):
            s.screen.line(line)
        if end.get("shown") != end.get("processes"):
            s.screen.message(f"only the first {end.get('shown')} were inspected")
    if any(p["python"] for p in found) and not any(p["python"] and p["method"] for p in found):
        raise SystemExit(1)


def _redacted(record: dict[str, Any]) -> dict[str, Any]:
    words: Sequence[Any] = record.get("command") or ()
    line = Withholding().line(shlex.join(map(str, words)))
    return {**{k: v for k, v in record.items() if k != "type"}, "command": line}


def process_lines(record: dict[str, Any]) -> Iterator[str]:
    """Yield the text of a process."""
    command_ = record["command"] or f"[{record['name']}]"
    more = "..." if len(command_) > _COMMAND_CHARS else ""
    yield ""
    yield f"pid {record['pid']}  {command_[:_COMMAND_CHARS]}{more}"
    state = [record["stateText"], f"{duration(record['cpuSecs'])} of CPU time"]
    if record["frozen"]:
        state.insert(0, "frozen")
    if record["waitsIn"]:
        state.append(f"waits in {record['waitsIn']}")
    if record["method"]:
        state.append(f"read by {record['method']}")
    yield f"  {', '.join(state)}"
    for failure in record["failed"]:
        remedy = f"; {failure['remedy']}" if failure["remedy"] else ""
        yield f"  not by {failure['method']}: {failure['reason']}{remedy}"
    for thread in record["threads"]:
        marks = [m for m, on in (("runs", thread["active"]), ("has the GIL", thread["gil"])) if on]
        shown = f" ({', '.join(marks)})" if marks else ""
        yield f"  thread {thread['id']} {thread['name']}{shown}"
        for frame in thread["frames"]:
            line = f":{frame['line']}" if frame["line"] else ""
            yield f"    {frame['function']}  {frame['file']}{line}"
    for line in record["text"].splitlines():
        yield f"    {line}"
