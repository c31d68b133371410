"""A site that a command holds as a supervisor would: no supervisor can serve it meanwhile."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import psycopg

from ...store.head_file import DurablePosition
from .. import lease, supervisors
from ..connection import Raw, connect, refusal
from ..opening import ERRORS, MOVED, Site, check_clock, check_site, create, has_tables, take_lease


class Held(NamedTuple):
    """head: the end of the log. empty: there was none; its tables are new."""

    site: Site
    raw: Raw
    epoch: int
    head: DurablePosition
    empty: bool


@contextlib.contextmanager
def hold(site: Site, *, moved: bool = False) -> Iterator[Held]:
    """Take the lease of the site, and create its tables if it has none. moved: also of a log that was
    moved away. Raises Refusal: rootBusy, foreignParts, storageUnavailable, ...
    """
    try:
        raw = connect(site.address, site.password_file, bounded=False)
    except (psycopg.Error, OSError) as e:
        raise refusal(e, site.address) from None
    try:
        check_clock(site, raw)
        empty = not has_tables(raw, site.address.schema)
        if empty:
            create(site, raw)
        check_site(site, raw, moved=moved)
        supervisors.create(raw)
        taken = take_lease(site, raw, lease.new_holder())
        try:
            yield Held(site, raw, taken.epoch, taken.head, empty)
        finally:
            with contextlib.suppress(psycopg.Error):  # it expires
                lease.release(raw, taken.epoch)
    except ERRORS as e:
        raise refusal(e, site.address) from None
    finally:
        raw.close()


def mark_moved(held: Held) -> None:
    """Have the log of this site refused from now on: it is in a file of the root. Raises Refusal."""
    try:
        held.raw.execute("UPDATE site SET root_id = %s", (MOVED + held.site.root_id,))
    except psycopg.Error as e:
        raise refusal(e, held.site.address) from None
