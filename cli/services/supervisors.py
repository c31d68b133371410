"""`jobscribe supervisors`: the supervisors of a site whose store is in PostgreSQL."""

from typing import Any

import click
import msgspec

from ...protocol.errors import Refusal
from ..session.session import command, session
from ..session.setting_assignments import assignments
from .startup import given_options, load_settings


@command()
@click.option(
    "--config", "file", type=click.Path(), metavar="FILE", help="Configuration file (TOML)."
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any setting, by its name in `jobscribe config show`.",
)
def supervisors(file: str | None, sets: tuple[str, ...]) -> None:
    """List the supervisors with store.standby of a site: which one serves, and which ones stand by.

    Reads the database of store.url, so it needs no supervisor, and must run as its unix user.
    """
    from ...service.site.shards import of_shard

    settings = of_shard(load_settings(given_options(assignments(sets)), file))
    if settings.store.url is None:
        raise Refusal(
            "badConfig", "store.url is not set: only sites in PostgreSQL have several supervisors"
        )
    from ...db.postgres.supervisors import listed
    from ...runtime.store_address import parsed

    address = parsed(settings.store.url)
    try:
        found = listed(address, settings.store.password_file)
    except OSError as e:
        raise Refusal("storageUnavailable", f"{address.name} cannot be used: {e}") from None
    screen = session().screen
    if screen.json:
        screen.value("jobscribe.supervisors/1", {"supervisors": msgspec.to_builtins(found)})
        return
    for m in found:
        screen.line(_line(msgspec.to_builtins(m)))
    if not found:
        screen.message("no supervisor with store.standby was started")


def _line(m: dict[str, Any]) -> str:
    where = " ".join(m["addresses"].values())
    lease = "" if m["epoch"] is None else f", epoch {m['epoch']}"
    ahead = (
        f", its clock is {m['clockAheadSecs']:+.0f} s apart" if abs(m["clockAheadSecs"]) > 1 else ""
    )
    return f"{m['role']}: {m['host']}:{m['pid']}, {where}, last sign {m['seenSecsAgo']:.1f} s ago{lease}{ahead}"
