"""`jobscribe profile list`: the profiles of a job."""

import click

from ..session.job_names import resolve_job
from ..session.session import command, session
from .artifacts import Found, artifacts

_HEADS = ("NAME", "TOOL", "PROCESS", "SIZE", "OVERHEAD", "STATE")


@command(name="list")
@click.argument("name", metavar="JOB")
def list_profiles(name: str) -> None:
    """List the profiles of JOB: tool, process, bytes, what the tool costs the job, and state.

    `recording`: the job runs. `cut`: the size limit was reached. `unavailable`: there is no profile,
    for the reason that follows.
    """
    s = session()
    jid = resolve_job(s, name)
    found = artifacts(s, s.client_for(jid), jid)
    if s.screen.json:
        items = [_item(f) for f in found]
        s.screen.value("jobscribe.profile.list/1", {"computeJid": jid, "items": items})
        return
    if found:
        s.screen.table(_HEADS, [_row(f) for f in found])
    else:
        s.screen.message(f"{jid} has no profile; submit with --profile cpu, mem or gpu")
    for each in found:
        if each.reason:
            s.screen.message(f"{each.artifact.tool}: {each.reason}")


def _row(found: Found) -> list[str]:
    a = found.artifact
    process = "-" if a.pid is None else f"{a.pid} {a.program}"
    return [
        found.name,
        a.tool,
        process,
        "-" if a.note else str(found.size),
        found.overhead,
        found.state,
    ]


def _item(found: Found) -> dict[str, object]:
    a = found.artifact
    return {
        "name": found.name,
        "file": a.name,
        "tool": a.tool,
        "pid": a.pid,
        "program": a.program,
        "size": found.size,
        "mtime": found.mtime,
        "overhead": found.overhead,
        "state": found.state,
        "reason": found.reason or None,
    }
