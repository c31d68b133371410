"""`db check|rebuild|story|export`: the event store of a root without its supervisor. What replaces
or copies it is in `db_upkeep`.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..session.job_names import LAST_AMONG
from ..session.session import Session, command, session

if TYPE_CHECKING:
    from ...db.maintenance.verification import Report

Progress = Callable[[str, int, int], None]


@command()
def check() -> None:
    """Verify every event, checksum, index row and record. Exits with 1 when something is wrong."""
    from ...db.maintenance import verification

    s = session()
    report = verification.check(store_root(s), shown(s))
    if s.screen.json:
        import msgspec

        s.screen.value("jobscribe.db.check/1", {"ok": report.ok, **msgspec.to_builtins(report)})
    else:
        for line in _told(report):
            s.screen.line(line)
    raise SystemExit(0 if report.ok else 1)


def _told(report: "Report") -> list[str]:
    out = [
        f"{report.path}: {report.events} events, {report.jobs} jobs"
        + (", in use" if report.in_use else "")
    ]
    for problem in report.problems:
        at = "" if problem.position is None else f" at position {problem.position}"
        out.append(f"  {problem.where}{at}: {problem.what}")
    if report.more_problems:
        out.append(f"  and {report.more_problems} more")
    if report.records_behind:
        out.append(
            f"  {report.records_behind} records are behind the log; the next start writes them"
        )
    if report.ok:
        return [*out, "nothing is wrong"]
    return [*out, f"the log is whole up to position {report.whole_up_to}"]


@command()
def rebuild() -> None:
    """Write index and records anew from the log. Only while no supervisor uses the root."""
    from ...db.maintenance import rebuild as rebuilding

    s = session()
    done = rebuilding.rebuild(store_root(s), shown(s))
    if s.screen.json:
        import msgspec

        s.screen.value("jobscribe.db.rebuild/1", msgspec.to_builtins(done))
        return
    s.screen.line(
        f"{done.events} events, {done.jobs} jobs"
        + (f", {done.records_removed} records removed" if done.records_removed else "")
    )


@command()
@click.argument("name", metavar="JOB")
def story(name: str) -> None:
    """Tell a story from the log: of a job (its computeJid, a beginning of it, or `last`), of an
    agent (its key), or `system`.
    """
    from ...db.maintenance.verification import events_of
    from ...db.records.event_text import data
    from ...db.records.event_text import story as lines
    from ...protocol.errors import Refusal

    s = session()
    root = store_root(s)
    stream = (
        name if name == "system" else f"agent/{name}" if "@" in name else f"job/{_jid(root, name)}"
    )
    events = events_of(root, stream)
    if not events:
        raise Refusal("notFound", f"the log has no event of {stream}")
    if s.screen.json:
        s.screen.value(
            "jobscribe.db.records.event_text/1", {"stream": stream, "items": data(events)}
        )
        return
    s.screen.line(stream)
    for line in lines(events):
        s.screen.line(f"  {line}")


@command()
@click.option(
    "--after",
    type=click.IntRange(0),
    default=0,
    metavar="POSITION",
    help="Only what comes after this position.",
)
def export(after: int) -> None:
    """Write all events as lines of JSON, oldest first, verifying each."""
    from ...db.maintenance.verification import export as lines

    for line in lines(store_root(session()), after):
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def store_root(s: Session) -> Path:
    """Raises Refusal where the root is somebody else's, and may not be looked into."""
    from ...protocol.errors import Refusal

    if s.options.get("url"):
        raise click.UsageError("the store is read where it lies: give --root, not --url")
    root = Path(s.root)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        try:
            os.listdir(root / "db")
        except PermissionError:
            raise Refusal(
                "foreignRoot",
                f"the event store in {root} cannot be read: it belongs to somebody else",
            ) from None
    return root


def shown(s: Session) -> Progress:
    begun = time.monotonic()

    def progress(what: str, done: int, of: int) -> None:
        s.screen.progress(f"{done} of {of} {what}", time.monotonic() - begun)

    return progress


def _jid(root: Path, name: str) -> str:
    """The computeJid that begins like this, among those in the log; `last` for the newest."""
    from ...db.maintenance.verification import opened, store_path
    from ...db.sqlite.reader import Reader
    from ...protocol.errors import Refusal

    opened(root).close()
    reader = Reader(store_path(root))
    try:
        if name == "last":
            newest = max(
                reader.jobs(None, None, None, None, LAST_AMONG),
                key=lambda r: (r.queued_at, r.serial),
                default=None,
            )
            found = [newest.jid] if newest else []
        else:
            found = [row.jid for row in reader.find_jobs(name, 2)]
    finally:
        reader.close()
    if len(found) > 1:
        raise Refusal("badRequest", f"{name} is the beginning of several jobs")
    return found[0] if found else name
