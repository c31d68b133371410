"""`jobscribe profile record`: the CPU profile of a running task, in a file here."""

import functools
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from ...protocol.errors import Refusal
from ...protocol.jobs.inspection import DEFAULT_RATE, MOST_SECS, Program
from ...protocol.jobs.profiling import plain_stacks
from ..session.inspection import OUTDATED, Inspection, decoded, nodes_of, select
from ..session.job_names import resolve_job
from ..session.session import Session, command, session
from ..terminal.quantities import SECS, duration
from . import folded
from .flame_graph import flame_page
from .folded import Recording

#: Nodes that are recorded at once: a user has eight shells.
_MOST_NODES = 6
#: Formats with the ends of their file names.
_ENDS = {"flamegraph": "html", "speedscope": "speedscope.json", "raw": "folded"}
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


class Place:
    """The recording on one node. node: None if the task has one only. end: the last record. error:
    what ended it.
    """

    def __init__(
        self,
        s: Session,
        start: Callable[[], Inspection],
        recording: Recording,
        node: str | None,
    ) -> None:
        self._s, self._start, self._recording, self.node = s, start, recording, node
        self._got = False
        self.inspection: Inspection | None = None
        self.end: dict[str, Any] | None = None
        self.error: Exception | None = None

    def record(self, seconds: float) -> None:
        """Add the stacks to the recording, until the end."""
        from ...client.api.errors import ClientError

        began = time.monotonic()
        try:
            inspection = self.inspection = self._start()
            for each in inspection.records():
                self._take(each, seconds, time.monotonic() - began)
            if self.end is None and not self._got:
                self.error = inspection.lost()
            elif (
                self.node is not None and self.end is not None and self.end.get("node") != self.node
            ):
                self.error = ClientError("agentOutdated", OUTDATED)
        except (ClientError, Refusal) as e:
            self.error = e

    def _take(self, each: dict[str, Any], seconds: float, spent: float) -> None:
        match each:
            case {"type": "samples"}:
                text = plain_stacks(decoded(each)).decode("utf-8", "replace")
                self._recording.add(text, self.node)
                self._got = True
            case {"type": "end"}:
                self.end = each
            case {"type": "note"}:
                self._s.screen.message(str(each.get("text")))
            case {"type": "failed"}:
                raise _failed(each)
            case _ if threading.current_thread() is threading.main_thread():
                done = f"recording, {min(spent, seconds):.0f} of {seconds:.0f} s"
                self._s.screen.progress(done, spent)


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
@click.option("--node", metavar="NODE", help="Only this node of a task on several nodes.")
def record(
    name: str,
    task: str | None,
    seconds: float,
    rate: int,
    native: bool,
    format_: str,
    output: str | None,
    node: str | None,
) -> None:
    """Record a CPU profile of the Python processes of a running task, with py-spy, on up to six of its
    nodes. The file is for you only, and no file is overwritten.

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
    nodes = nodes_of(chosen, node)
    if len(nodes) > _MOST_NODES:
        s.screen.message(
            f"only the first {_MOST_NODES} of {len(nodes)} nodes are recorded; --node names one"
        )
        nodes = nodes[:_MOST_NODES]
    recording, places = Recording(), list[Place]()
    for each in nodes:
        on = msgspec.structs.replace(program, node=each or msgspec.UNSET)
        client = s.client_for(jid).copy() if places else s.client_for(jid)
        start = functools.partial(Inspection, client, jid, chosen, attempt, on)
        places.append(Place(s, start, recording, each))
    _record_all(places, seconds)
    if not recording.samples and (wrong := next((p.error for p in places if p.error), None)):
        raise wrong
    _write(path, _formatted(recording, format_, whole, rate))
    _report(s, path, recording, places)


def _record_all(places: list[Place], seconds: float) -> None:
    """Record on all nodes at once, until all have ended. Ctrl-C ends all."""
    threads = [threading.Thread(target=p.record, args=(seconds,), daemon=True) for p in places[1:]]
    try:
        for thread in threads:
            thread.start()
        places[0].record(seconds)
        for thread in threads:
            thread.join()
    except BaseException:
        for place in places:
            if place.inspection is not None:
                place.inspection.hang_up(places[0].inspection)
        raise


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


def _report(s: Session, path: Path, recording: Recording, places: list[Place]) -> None:
    ends = [p.end for p in places if p.end is not None]
    secs = max((e["secs"] for e in ends if "secs" in e), default=None)
    over = not ends or any(e.get("over") for e in ends)
    failed = {p.node or "": str(p.error) for p in places if p.error is not None}
    if s.screen.json:
        value = {"file": str(path), "samples": recording.samples, "secs": secs, "jobEnded": over}
        named = {"nodes": [p.node for p in places if p.node], "failedNodes": failed}
        s.screen.value("jobscribe.profile.record/1", {**value, **named})
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
    for node, why in failed.items():
        s.screen.message(f"the recording{node and f' on {node}'} ended early: {why}")
