"""`jobscribe supervisor`: a supervisor with a configured secret, for service managers."""

import click

from ...protocol.shards import MOST
from ..session.session import command
from ..session.setting_assignments import assignments
from .startup import serve_supervisor, service_exit_codes, settings_options


@command()
@settings_options
@click.option(
    "--shard",
    type=click.IntRange(0, MOST - 1),
    metavar="K",
    help="Shard that this supervisor serves, on a site with shards (setting shards.number).",
)
def supervisor(
    port: int | None, ip: str | None, file: str | None, sets: tuple[str, ...], shard: int | None
) -> None:
    """Start a supervisor with the configured secret and stay in the foreground: for services.

    Prints one line on standard output when it is ready. The log goes to standard error and
    <root>/log.
    """
    with service_exit_codes():
        given = {"supervisor.port": port, "supervisor.ip": ip, "shards.number": shard}
        serve_supervisor({**given, **assignments(sets)}, file)
