"""`jobscribe drain host`, `site`, `list` and `end`: hosts, or the site, that get no new runs; and `drain
supervisor`: a handover to a standby.
"""

from typing import Any

import click

from ..session.session import command, session
from ..terminal.quantities import moment

_HEADS = ("WHAT", "DRIVER", "SINCE", "BY", "REASON")
_reason = click.option(
    "--reason", default="", metavar="TEXT", help="Shown to users whose runs wait."
)
_driver = click.option(
    "--driver", metavar="NAME", help="Driver of the host. Default: that of its pool."
)


@command()
@click.argument("host")
@_driver
@_reason
def host(host: str, driver: str | None, reason: str) -> None:
    """Start no new runs on HOST. What runs goes on; waiting runs move to other hosts, if there are
    any. Repeating it is harmless.
    """
    s = session()
    drains = s.client().operating.drain(host, driver=driver, reason=reason)
    _answer(drains, f"{host} is drained: it gets no new runs until 'jobscribe drain end {host}'")


@command()
@_reason
def site(reason: str) -> None:
    """Start no new runs at all. New runs are accepted and wait; what runs goes on. Repeating it is
    harmless.
    """
    drains = session().client().operating.drain(reason=reason)
    _answer(drains, "the site is drained: new runs wait until 'jobscribe drain end'")


@command()
@click.argument("name")
def supervisor(name: str) -> None:
    """Let the supervisor NAME (HOST:PID, as in 'jobscribe supervisors') hand the site over to a standby,
    for example before maintenance of its machine. Jobs go on, and it stands by when it is started again.

    Repeating it is harmless: a supervisor that does not serve is left as it is. Refused while none
    stands by.
    """
    s = session()
    answer = s.client().operating.hand_over(name)
    if s.screen.json:
        s.screen.value("jobscribe.handover/1", {"name": name, "begun": answer["begun"]})
    elif answer["begun"]:
        s.screen.message(f"{name} hands over: 'jobscribe supervisors' shows the one that serves")
    else:
        s.screen.message(f"{name} does not serve the site: {answer['name']} does")


@command()
@click.argument("host", required=False)
@_driver
def end(host: str | None, driver: str | None) -> None:
    """End the drain of HOST, or without HOST that of the site. Repeating it is harmless."""
    drains = session().client().operating.drain_end(host, driver=driver)
    _answer(drains, f"{host or 'the site'} starts runs again")


@command(name="list")
def list_drains() -> None:
    """List the drains: of what, since when, by whom and why."""
    s = session()
    drains = s.client().operating.drains()
    if s.screen.json:
        s.screen.value("jobscribe.drain/1", {"items": drains})
    elif drains:
        s.screen.table(_HEADS, [_row(d) for d in drains])
    else:
        s.screen.message("nothing is drained")


def _answer(drains: list[dict[str, Any]], sentence: str) -> None:
    s = session()
    if s.screen.json:
        s.screen.value("jobscribe.drain/1", {"items": drains})
    else:
        s.screen.message(sentence)
        left = [d["host"] or "the site" for d in drains]
        s.screen.message(f"drained: {', '.join(left) or 'nothing'}")


def _row(drain: dict[str, Any]) -> list[str]:
    return [
        drain["host"] or "the site",
        drain["driver"] or "-",
        moment(drain["at"]),
        drain["by"],
        drain["reason"] or "-",
    ]
