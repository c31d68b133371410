"""`jobscribe profile fetch`: local copies of profiles."""

import time
from typing import Any

import click

from ...client.api.replies import Transfer
from ..session.job_names import resolve_job
from ..session.session import Session, command, session
from ..terminal.quantities import amount
from .artifacts import all_profiles, artifacts, chosen


@command()
@click.argument("name", metavar="JOB")
@click.argument("profile", required=False, metavar="[NAME]")
@click.option(
    "-o",
    "--output",
    "folder",
    default=".",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Target folder; created if missing (default: the current one).",
)
def fetch(name: str, profile: str | None, folder: str) -> None:
    """Copy the profiles of JOB, or those with the name or pattern NAME, to a local folder, and print
    their paths.

    Each copy is compared by SHA-256. Existing files are kept. Exits with 125 if a file could not be
    copied.
    """
    s = session()
    jid = resolve_job(s, name)
    client = s.client_for(jid)
    found = artifacts(s, client, jid)
    wanted = all_profiles(found, jid) if profile is None else chosen(found, profile, jid)
    copies = _Copies(s)
    client.get_files(
        jid,
        [f.artifact.name for f in wanted],
        folder,
        on_progress=copies.progress,
        on_done=copies.done,
    )
    copies.report(jid)


class _Copies:
    """Shows the progress and the results of copies."""

    def __init__(self, s: Session) -> None:
        self._s, self._begun = s, time.monotonic()
        self._copied: list[dict[str, Any]] = []
        self._failed: list[dict[str, Any]] = []

    def progress(self, count: int, files: int) -> None:
        text = f"{files} profiles, {amount(count)} copied"
        self._s.screen.progress(text, time.monotonic() - self._begun)

    def done(self, found: Transfer) -> None:
        if found.code:
            error = found.error.replace("--force replaces it (in Python: `replace`)", "it was kept")
            self._s.screen.message(f"{found.name}: {error}")
            self._failed.append({"name": found.name, "code": found.code, "error": error})
            return
        self._copied.append({"name": found.name, "path": found.path, "size": found.size})
        if found.note:
            self._s.screen.message(f"{found.name}: {found.note}")
        if not self._s.screen.json:
            self._s.screen.line(found.path)

    def report(self, jid: str) -> None:
        """Print the JSON value. Exit with 125 if a file failed."""
        if self._s.screen.json:
            self._s.screen.value(
                "jobscribe.profile.fetch/1",
                {"computeJid": jid, "items": self._copied, "failed": self._failed},
            )
        if self._failed:
            raise SystemExit(125)
