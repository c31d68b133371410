"""`notify`: those who are told when runs change - how each stands, a test of one, and another try
at once.
"""

from typing import Any

import click

from .session.request_progress import show_progress
from .session.session import command, session
from .terminal.quantities import moment

_HEADS = ("TARGET", "STATE", "DELIVERED", "WAITING", "GIVEN UP", "NEXT TRY", "TO")
_NONE = (
    "nobody is told of anything: name a file of targets in notify.file (see docs/notifications.md)"
)


@command(name="list")
def list_targets() -> None:
    """Show who is told when runs change, and how each stands: delivered since the start, waiting,
    the next try, the last error.

    WAITING: notifications that are to be delivered, and behind the +, events of the log that were
    not looked at yet.
    """
    s = session()
    told = s.client().operating.notify()
    if s.screen.json:
        s.screen.value(
            "jobscribe.notify/1", {"items": told["targets"], "unwritten": told["unwritten"]}
        )
        return
    if not told["targets"]:
        s.screen.message(_NONE)
        return
    s.screen.table(_HEADS, [_row(target) for target in told["targets"]])
    for target in told["targets"]:
        if target["failingSince"] is not None:
            s.screen.message(
                f"{target['name']} fails since {moment(target['failingSince'])}: {target['lastError']}"
            )
    if told["unwritten"]:
        s.screen.message(
            f"{told['unwritten']}; what is told until then is told again after a restart"
        )


@command()
@click.argument("name")
def test(name: str) -> None:
    """Send the target NAME a message about nothing, and show its answer. Exits with 1 when it was
    not delivered.
    """
    s = session()
    client = s.client()
    with show_progress(s, client, lambda asker: f"{name} has not answered yet"):
        answer = client.operating.notify_test(name)
    answer.pop("state", None)
    if s.screen.json:
        s.screen.value("jobscribe.notify.test/1", answer)
    else:
        for line in answer["answer"].splitlines():
            s.screen.line(line)
        s.screen.message(
            f"{name} was {'' if answer['delivered'] else 'not '}told, after {answer['secs']:.1f} s: {answer['said']}"
        )
    if not answer["delivered"]:
        raise SystemExit(1)


@command()
@click.argument("name")
def retry(name: str) -> None:
    """Try at once what waits for the target NAME, however long its pause would last."""
    s = session()
    answer = s.client().operating.notify_retry(name)
    if s.screen.json:
        s.screen.value("jobscribe.notify.retry/1", {"name": name, "waiting": answer["waiting"]})
    elif answer["waiting"]:
        s.screen.message(
            f"{answer['waiting']} notifications for {name} are tried now; 'jobscribe notify list' shows what comes of it"
        )
    else:
        s.screen.message(f"nothing waits for {name}")


def _row(target: dict[str, Any]) -> list[str]:
    behind = f" +{target['behind']}" if target["behind"] else ""
    return [
        target["name"],
        "ok" if target["failingSince"] is None else "failing",
        str(target["delivered"]),
        f"{target['waiting']}{behind}",
        str(target["givenUp"]),
        "-" if target["nextTry"] is None else moment(target["nextTry"]),
        target["to"],
    ]
