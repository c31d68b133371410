"""`jobscribe core fetch`: a core file of a job to a local file."""

import os
import time

import click

from ...client.api.replies import Transfer
from ..session.job_names import resolve_job
from ..session.session import Session, command, session
from ..terminal.quantities import amount
from .listing import ATTEMPT, Core, Cores, chosen


@command()
@click.argument("name", metavar="JOB")
@click.argument("number", required=False, type=click.IntRange(1), metavar="[N]")
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Target file (default: the computeJid and the name of the core).",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@ATTEMPT
def fetch(name: str, number: int | None, path: str | None, force: bool, attempt: int) -> None:
    """Copy core file N of JOB to a local file that only you can read, and print its path.

    N is from `core list` (default: 1). The copy is compared by SHA-256. If it is interrupted, the
    same command continues it. A core contains the memory of the process, with its secrets.
    """
    s = session()
    jid = resolve_job(s, name)
    cores, core = chosen(s, jid, number, attempt)
    done = copy(s, jid, cores, core, path or f"{jid}.{core.file.name}", replace=force)
    if s.screen.json:
        item = {"name": done.name, "path": done.path, "size": done.size, "note": done.note}
        s.screen.value("jobscribe.core.fetch/1", {"computeJid": jid, **item})
        return
    if done.note:
        s.screen.message(done.note)
    s.screen.line(done.path)


def copy(s: Session, jid: str, cores: Cores, core: Core, path: str, *, replace: bool) -> Transfer:
    """Copy a core file, and show the progress. Raises ClientError, OSError."""
    begun = time.monotonic()
    return s.client_for(jid).get_core(
        jid,
        core.file,
        os.fspath(path),
        role=core.role,
        index=core.task_index,
        serial=cores.serial,
        attempt=cores.attempt,
        replace=replace,
        on_progress=lambda count: s.screen.progress(
            f"{amount(count)} of {amount(core.file.size)} copied", time.monotonic() - begun
        ),
    )
