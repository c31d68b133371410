"""`jobscribe db init`: an empty log for a root that has lost its log."""

import click

from ..session.session import command, session
from .store_access import locked_root, print_result


@command()
@click.option("--accept-loss", is_flag=True, help="Confirm that all jobs of this root are lost.")
def init(accept_loss: bool) -> None:
    """Create an empty log in a root that has lost its log. Only while no supervisor uses the root.

    All jobs are forgotten. Jobs that still run are stopped when the supervisor starts. Files in run
    directories stay.
    """
    from ...supervisor.process import root_identity

    s = session()
    if not accept_loss:
        raise click.UsageError(
            "all jobs would be forgotten, and running jobs stopped: add --accept-loss, or restore a backup"
        )
    with locked_root(s) as root:
        aside = root_identity.init(root)
    lines = [
        f"{root}: new empty log",
        *([f"the records of earlier jobs are in {aside}"] if aside else []),
    ]
    print_result(
        s, "jobscribe.db.init/1", lines, {"recordsAside": None if aside is None else str(aside)}
    )
