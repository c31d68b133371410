"""`jobscribe profile open`: a profile as a page in the browser."""

import os
import tempfile
from typing import TYPE_CHECKING

import click

from ...protocol.errors import Refusal
from ..session.job_names import resolve_job
from ..session.session import command, session
from .artifacts import Found, all_profiles, artifacts, chosen
from .curve_plot import curve_page
from .flame_graph import flame_page

if TYPE_CHECKING:
    from ...client.sync_client import Client

#: Largest profile that becomes a page.
_MOST_BYTES = 32 * 2**20
#: Programs for formats without a page, by the ending of the file.
_PROGRAMS = {
    "prof": "python3 -m pstats FILE (or snakeviz FILE)",
    "bin": "memray flamegraph --no-web FILE",
}


@command(name="open")
@click.argument("name", metavar="JOB")
@click.argument("profile", required=False, metavar="[NAME]")
@click.option("--no-browser", is_flag=True, help="Print the path of the page only.")
def open_profile(name: str, profile: str | None, no_browser: bool) -> None:
    """Show a profile of JOB in the browser: a flame graph of CPU time, or memory and GPUs over time.
    Without NAME: the largest one.

    The page needs no network. It is a temporary file that only you can read.
    """
    s = session()
    jid = resolve_job(s, name)
    client = s.client_for(jid)
    found = artifacts(s, client, jid)
    wanted = all_profiles(found, jid) if profile is None else chosen(found, profile, jid)
    one = max(wanted, key=lambda f: (f.artifact.ending not in _PROGRAMS, f.size))
    path = _write(_page(client, jid, one))
    if s.screen.json:
        value = {"computeJid": jid, "name": one.name, "path": path}
        s.screen.value("jobscribe.profile.open/1", value)
    else:
        s.screen.line(path)
    if len(wanted) > 1:
        s.screen.message(f"{one.name} of {len(wanted)} profiles: jobscribe profile list {jid}")
    if not no_browser and not s.screen.json:
        import webbrowser

        if not webbrowser.open(f"file://{path}"):
            s.screen.message("no browser can be started here; open the file in one")


def _page(client: "Client", jid: str, found: Found) -> str:
    """Return the HTML of a profile. Raises Refusal, ClientError."""
    program = _PROGRAMS.get(found.artifact.ending)
    if program is not None:
        raise Refusal(
            "badRequest",
            f"{found.name} needs another program: {program}",
            {"advice": f"jobscribe profile fetch {jid} {found.name}"},
        )
    if found.size > _MOST_BYTES:
        raise Refusal("tooLarge", f"{found.name} has {found.size} bytes, too many for a page")
    with client.open_file(jid, found.artifact.name, length=_MOST_BYTES) as file:
        text = file.read().decode("utf-8", "replace")
    title = f"{jid} {found.artifact.file}"
    if found.artifact.ending == "collapsed":
        seconds = 1e-6 if found.artifact.tool == "cpu-sampler" else None
        return flame_page(text.splitlines(), title, seconds_per_unit=seconds)
    return curve_page(text.splitlines(), title)


def _write(page: str) -> str:
    """Write a new temporary file, 0600. Return its path."""
    fd, path = tempfile.mkstemp(prefix="jobscribe-profile-", suffix=".html")
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(page)
    return path
