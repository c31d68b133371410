"""`jobscribe retention`: files of ended runs that the supervisor removed or would remove."""

from typing import TYPE_CHECKING, Any

import click

from ..session.request_progress import show_progress
from ..session.session import command, session

if TYPE_CHECKING:
    from ...client.sync_client import Client

_HEADS = ("KIND", "COUNT", "INODES", "MIB")
_KINDS = {
    "scripts": "scripts and exit files",
    "evidence": "evidence",
    "cores": "core files",
    "profiles": "profiles of runs",
    "agentLogs": "logs of retired agents",
    "records": "records of purged runs",
}


@command()
@click.option("--dry-run", is_flag=True, help="Report what would go now; remove nothing.")
@click.option("--now", is_flag=True, help="Remove it now, at full speed.")
def retention(dry_run: bool, now: bool) -> None:
    """Show what the supervisor has removed since its start because of its age (settings
    `retention.*`).
    """
    if dry_run and now:
        raise click.UsageError("give --dry-run or --now, not both")
    s = session()
    client = s.client()
    if not (dry_run or now):
        reply = client.operating.retention()
        reply.pop("state", None)
        if s.screen.json:
            s.screen.value("jobscribe.retention/1", reply)
            return
        _print(reply["total"])
        if error := reply["compactions"]["lastError"]:
            s.screen.message(f"the last compaction of the event log failed: {error}")
        return
    with show_progress(s, client, _progress):
        report = client.operating.retention_sweep(dry_run=dry_run)
    if s.screen.json:
        s.screen.value("jobscribe.retention.sweep/1", report)
        return
    _print(report)
    would = "would go; nothing was removed" if dry_run else "removed"
    s.screen.message(f"{report['inspected']} folders inspected in {report['secs']:.1f} s: {would}")


def _print(report: dict[str, Any]) -> None:
    rows = [
        (_KINDS[kind], str(of["count"]), str(of["files"]), f"{of['bytes'] / 2**20:.1f}")
        for kind, of in report["kinds"].items()
    ]
    s = session()
    s.screen.table(_HEADS, rows)
    if report["failed"]:
        s.screen.message(f"{report['failed']} removals failed; the supervisor's log has the reason")


def _progress(client: "Client") -> str:
    current = client.operating.retention()["current"]
    return f"{current['inspected']} folders inspected" if current else "waiting for the last pass"
