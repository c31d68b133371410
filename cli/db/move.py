"""`jobscribe db move`: the log of a stopped root, moved from its file into PostgreSQL."""

import click

from ..session.session import command, session
from .store_access import locked_root, print_result, progress_reporter


@command()
@click.argument("database", metavar="URL")
@click.option("--password-file", metavar="FILE", help="File with the password, mode 0600.")
def move(database: str, password_file: str | None) -> None:
    """Move the event log from the root's SQLite file to the PostgreSQL database URL. Only while no
    supervisor uses the root; jobs continue. Then set store.url.
    """
    from ...db.maintenance.move import move_to_postgres
    from ...db.postgres.opening import Site
    from ...protocol.errors import Refusal
    from ...runtime.store_address import parsed
    from ...service.site.secret_files import file_problems
    from ...supervisor.process import root_identity
    from ...supervisor.process.event_log import name_database

    for problem in () if password_file is None else file_problems(password_file):
        raise problem.refusal("--password-file")
    s = session()
    address = parsed(database)
    with locked_root(s) as root:
        identity = root_identity.read_identity(root)
        if identity is None:
            raise Refusal("notFound", f"{root} has no root.json: start its supervisor once")
        done = move_to_postgres(
            root,
            Site(address, password_file, root / "db", identity.id),
            lambda: name_database(root, database),
            progress_reporter(s),
        )
    lines = [
        f"{done.events} events moved to {done.store}",
        f"the previous file is in {done.aside}; set store.url to start the supervisor",
    ]
    print_result(s, "jobscribe.db.move/1", lines, done)
