"""`jobscribe notify list`, `notify test` and `notify retry`: notification targets and delivery."""

from typing import Any

import click

from .session.request_progress import show_progress
from .session.session import command, session
from .terminal.quantities import moment

_HEADS = ("TARGET", "STATE", "DELIVERED", "WAITING", "GIVEN UP", "NEXT TRY", "DESTINATION")
_NONE = "no notification targets: set notify.file to a file of targets (see docs/notifications.md)"


@command(name="list")
def list_targets() -> None:
    """List the notification targets: delivered since the start, waiting, the next try, the last
    error.

    WAITING counts notifications to deliver; the number after + counts events of the log that are
    not processed yet.
    """
    s = session()
    reply = s.client().operating.notify()
    if s.screen.json:
        s.screen.value(
            "jobscribe.notify/1", {"items": reply["targets"], "unwritten": reply["unwritten"]}
        )
        return
    if not reply["targets"]:
        s.screen.message(_NONE)
        return
    s.screen.table(_HEADS, [_row(target) for target in reply["targets"]])
    for target in reply["targets"]:
        if target["failingSince"] is not None:
            s.screen.message(
                f"{target['name']} has failed since {moment(target['failingSince'])}: {target['lastError']}"
            )
    if reply["unwritten"]:
        s.screen.message(
            f"{reply['unwritten']}; notifications sent meanwhile are sent again after a restart"
        )


@command()
@click.argument("name")
def test(name: str) -> None:
    """Send a test message to the target NAME and show its response. Exits with 1 if the message was
    not delivered.
    """
    s = session()
    client = s.client()
    with show_progress(s, client, lambda _: f"waiting for a response of {name}"):
        answer = client.operating.notify_test(name)
    answer.pop("state", None)
    if s.screen.json:
        s.screen.value("jobscribe.notify.test/1", answer)
    else:
        for line in answer["answer"].splitlines():
            s.screen.line(line)
        s.screen.message(
            f"{name}: {'delivered' if answer['delivered'] else 'not delivered'} after {answer['secs']:.1f} s: {answer['said']}"
        )
    if not answer["delivered"]:
        raise SystemExit(1)


@command()
@click.argument("name")
def retry(name: str) -> None:
    """Send the waiting notifications of the target NAME now, without waiting for its backoff."""
    s = session()
    answer = s.client().operating.notify_retry(name)
    if s.screen.json:
        s.screen.value("jobscribe.notify.retry/1", {"name": name, "waiting": answer["waiting"]})
    elif answer["waiting"]:
        s.screen.message(
            f"sending {answer['waiting']} notifications to {name} now; 'jobscribe notify list' shows the result"
        )
    else:
        s.screen.message(f"no notifications wait for {name}")


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
