"""`jobscribe debug stack`: the stacks of all processes of a running task."""

import contextlib
import shlex
import time
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from ...client.api.errors import ClientError
from ...protocol.errors import Refusal
from ...protocol.jobs.inspection import ProcessStacks, Program, Thread
from ...schema.jobs.withheld import Withholding
from ..session.inspection import OUTDATED, Inspection, nodes_of, select
from ..session.job_names import resolve_job
from ..session.session import Session, command, session
from ..terminal.quantities import duration

_COMMAND_CHARS = 200
#: Nodes of a task that are asked without --node.
_MOST_NODES = 64


@command()
@click.argument("name", metavar="JOB")
@click.argument("task", required=False, metavar="[ROLE-INDEX]")
@click.option("--native", is_flag=True, help="Also show frames of C. Stops each process briefly.")
@click.option("--node", metavar="NODE", help="Only this node of a task on several nodes.")
def stack(name: str, task: str | None, native: bool, node: str | None) -> None:
    """Print the stacks of all processes of a running task, on all of its nodes: of Python by py-spy or
    by the job's faulthandler; of C, with --native, by py-spy and gdb. For each process, show the
    method, and why others failed.

    The job goes on. Exits with 1 if no stack of a Python process, or not each node, could be read.
    """
    s = session()
    jid = resolve_job(s, name)
    chosen, attempt = select(s, jid, task)
    nodes = nodes_of(chosen, node)
    found, failed = list[tuple[str, ProcessStacks]](), dict[str, str]()
    for each in nodes[:_MOST_NODES]:
        program = Program(name="stacks", native=native, node=each or msgspec.UNSET)
        on = each or str(chosen["host"])
        try:
            processes, end = _of_node(
                s, Inspection(s.client_for(jid), jid, chosen, attempt, program)
            )
        except (ClientError, Refusal) as e:
            if each is None:
                raise
            failed[each] = e.sentence
            s.screen.message(f"node {each}: {e.sentence}")
            continue
        found += [(on, process) for process in processes]
        if not s.screen.json:
            _show(s, f"task {chosen['role']}/{chosen['index']} of {jid} on {on}", processes, end)
        if each is not None and end.get("node") != each:
            raise ClientError("agentOutdated", OUTDATED)
    if len(nodes) > _MOST_NODES:
        s.screen.message(
            f"only the first {_MOST_NODES} of {len(nodes)} nodes were asked; --node names one"
        )
    if s.screen.json:
        about = {"computeJid": jid, "role": chosen["role"], "index": chosen["index"]}
        rows = [
            {**msgspec.to_builtins(p), "command": command_line(p), "node": on} for on, p in found
        ]
        value = {**about, "host": chosen["host"], "attempt": attempt, "processes": rows}
        s.screen.value("jobscribe.debug.stack/1", {**value, "failedNodes": failed})
    pythons = [p for _, p in found if p.python]
    if failed or (pythons and not any(p.method for p in pythons)):
        raise SystemExit(1)


def _of_node(s: Session, inspection: Inspection) -> tuple[list[ProcessStacks], dict[str, Any]]:
    """Return the processes of one node, and the last record. Raises ClientError."""
    try:
        found, end = _collected(s, inspection)
    except BaseException:
        inspection.hang_up()
        raise
    if end is None:
        raise inspection.lost()
    return found, end


def _show(s: Session, where: str, found: list[ProcessStacks], end: dict[str, Any]) -> None:
    s.screen.line(f"{where}: {end.get('processes')} processes")
    for line in (line for process in found for line in process_lines(process)):
        s.screen.line(line)
    if end.get("shown") != end.get("processes"):
        s.screen.message(f"only the first {end.get('shown')} were inspected")


def _collected(
    s: Session, inspection: Inspection
) -> tuple[list[ProcessStacks], dict[str, Any] | None]:
    """Return the processes, and the last record. Raises ClientError."""
    began, end = time.monotonic(), None
    found: list[ProcessStacks] = []
    for record in inspection.records():
        match record:
            case {"type": "process"}:
                with contextlib.suppress(msgspec.ValidationError):
                    found.append(msgspec.convert(record, ProcessStacks))
            case {"type": "end"}:
                end = record
        s.screen.progress(f"{len(found)} processes inspected", time.monotonic() - began)
    return found, end


def command_line(process: ProcessStacks) -> str:
    """Return the command line of a process without values that look like secrets."""
    return Withholding().line(shlex.join(process.command))


def process_lines(process: ProcessStacks) -> Iterator[str]:
    """Yield the text of a process."""
    command_ = command_line(process) or f"[{process.name}]"
    more = "..." if len(command_) > _COMMAND_CHARS else ""
    yield ""
    yield f"pid {process.pid}  {command_[:_COMMAND_CHARS]}{more}"
    state = [process.state_text, f"{duration(process.cpu_secs)} of CPU time"]
    if process.frozen:
        state.insert(0, "frozen")
    if process.waits_in:
        state.append(f"waits in {process.waits_in}")
    if process.method:
        state.append(f"read by {process.method}")
    yield f"  {', '.join(state)}"
    for failure in process.failed:
        remedy = f"; {failure.remedy}" if failure.remedy else ""
        yield f"  not by {failure.method}: {failure.reason}{remedy}"
    for thread in process.threads:
        yield from _thread_lines(thread)
    for line in process.text.splitlines():
        yield f"    {line}"


def _thread_lines(thread: Thread) -> Iterator[str]:
    marks = [m for m, on in (("runs", thread.active), ("has the GIL", thread.gil)) if on]
    shown = f" ({', '.join(marks)})" if marks else ""
    yield f"  thread {thread.id} {thread.name}{shown}"
    for frame in thread.frames:
        line = f":{frame.line}" if frame.line else ""
        yield f"    {frame.function}  {frame.file}{line}"
