"""`jobscribe audit`: requests of users for other users, and relayed shells."""

import click

from ..session.session import command, session
from ..terminal.quantities import SECS

#: Types of events -> types of records; others are "act".
_TYPES = {"ShellOpened": "shellOpened", "ShellClosed": "shellClosed"}


@command()
@click.option("--since", type=SECS, metavar="TIME", help="Only the last TIME, as in 7d.")
@click.option("--actor", metavar="UID", help="Only requests of this user.")
def audit(since: float | None, actor: str | None) -> None:
    """List the requests of administrators for other users, and the begin and end of all relayed
    shells, oldest first: time, actor, subject, action and peer. With --json one JSON line for each.

    Requests that change something are all listed; a repeated read of the same data is listed once
    an hour. Refused requests are not listed.
    """
    s = session()
    found = False
    for event in s.client().audit(since_secs=since, actor=actor):
        found = True
        if s.screen.json:
            type_ = _TYPES.get(event["event"]["type"], "act")
            s.screen.record({"type": type_, "at": event["at"], **_fields(event["event"])})
        else:
            s.screen.line(f"{event['time']}  {event['text']}")
    if not found and not s.screen.json:
        s.screen.message("no requests for other users on record")


def _fields(event: dict[str, object]) -> dict[str, object]:
    return {k: v for k, v in event.items() if k not in ("type", "at")}
