"""`jobscribe supervisors`: the supervisors of a site whose store is in PostgreSQL."""

from typing import TYPE_CHECKING, Any

import click
import msgspec

from ...protocol.errors import Refusal
from ..session.session import command, session
from ..session.setting_assignments import assignments
from .startup import given_options, load_settings

if TYPE_CHECKING:
    from ...service.settings.settings import Settings

_HEADS = ("SHARD", "SERVED BY", "ADDRESSES", "LEASE", "EPOCH", "STANDBYS", "LAG")

shard_option = click.option(
    "--shard", type=int, metavar="K", help="Only this shard, of a site with shards."
)


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
@shard_option
def supervisors(file: str | None, sets: tuple[str, ...], shard: int | None) -> None:
    """List the supervisors with store.standby of a site: which one serves, and which ones stand by. On a site
    with shards: the supervisor that serves each shard, with its lease and standbys.

    Reads the database of store.url, so it needs no supervisor, and must run as its unix user.
    """
    from ...service.site.shards import of_shard

    named = {} if shard is None else {"shards.number": str(shard)}
    settings = load_settings(given_options(assignments(sets) | named), file)
    if settings.store.url is None:
        raise Refusal(
            "badConfig", "store.url is not set: only sites in PostgreSQL have several supervisors"
        )
    if settings.shards.count is not None and settings.shards.number is None:
        _all_shards(settings, settings.shards.count)
        return
    _one(of_shard(settings))


def _one(settings: "Settings") -> None:
    from ...db.postgres.supervisors import listed
    from ...runtime.store_address import parsed

    assert settings.store.url is not None
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


def _all_shards(settings: "Settings", count: int) -> None:
    from ...db.postgres.supervisors import served
    from ...runtime.store_address import parsed
    from ...service.site.shards import numbered

    rows, members = [], []
    for number in range(count):
        url = numbered(settings, number).store.url
        assert url is not None
        address = parsed(url)
        try:
            lease, found = served(address, settings.store.password_file)
        except OSError as e:
            raise Refusal("storageUnavailable", f"{address.name} cannot be used: {e}") from None
        rows.append({"shard": number} | ({} if lease is None else msgspec.to_builtins(lease)))
        members += [{"shard": number, **msgspec.to_builtins(m)} for m in found]
    screen = session().screen
    if screen.json:
        screen.value("jobscribe.supervisors/1", {"supervisors": members, "shards": rows})
        return
    screen.table(_HEADS, [_row(row) for row in rows])


def _row(row: dict[str, Any]) -> list[str]:
    if "owner" not in row:
        return [str(row["shard"]), "never started", *["-"] * 5]
    left, lag = row["leaseEndsInSecs"], row["lagSecs"]
    return [
        str(row["shard"]),
        row["owner"] or "nobody",
        " ".join(row["addresses"].values()) or "-",
        "-" if left is None else f"ends in {left:.1f} s",
        "-" if row["epoch"] is None else str(row["epoch"]),
        " ".join(row["standbys"]) or "none",
        "-" if lag is None else f"{lag:.1f} s",
    ]


def _line(m: dict[str, Any]) -> str:
    where = " ".join(m["addresses"].values())
    lease = "" if m["epoch"] is None else f", epoch {m['epoch']}"
    ahead = (
        f", its clock is {m['clockAheadSecs']:+.0f} s apart" if abs(m["clockAheadSecs"]) > 1 else ""
    )
    return f"{m['role']}: {m['host']}:{m['pid']}, {where}, last sign {m['seenSecsAgo']:.1f} s ago{lease}{ahead}"
