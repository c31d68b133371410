"""`jobscribe db export`: all events as JSON lines."""

import sys

import click

from ..session.session import command, session
from .store_access import shard_option, store_roots


@command()
@click.option(
    "--after",
    type=click.IntRange(0),
    default=0,
    metavar="POSITION",
    help="Only events after this position.",
)
@shard_option
def export(after: int, shard: int | None) -> None:
    """Write all events as JSON lines, oldest first, and verify each. On a site with shards: those of one shard
    after the other, each with the field `shard`.
    """
    from ...db.maintenance.verification import export as lines
    from ...protocol.errors import Refusal

    roots = store_roots(session(), shard)
    if after and len(roots) > 1:
        raise Refusal(
            "badRequest", "each shard has positions of its own: name one shard (--shard K)"
        )
    for k, root in roots:
        for line in lines(root, after):
            # a line is an object
            text = line if k is None else f'{{"shard":{k},{line[1:]}'
            sys.stdout.write(text + "\n")
    sys.stdout.flush()
