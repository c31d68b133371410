"""`jobscribe db move`: the log of a stopped root, moved from its file into PostgreSQL, or back."""

import click

from ..session.session import Session, command, session
from .store_access import locked_root, print_result, progress_reporter


@command()
@click.argument("database", metavar="[URL]", required=False)
@click.option("--to-file", is_flag=True, help="Move the log back into the root's SQLite file.")
@click.option("--password-file", metavar="FILE", help="File with the password, mode 0600.")
def move(database: str | None, to_file: bool, password_file: str | None) -> None:
    """Move the event log from the root's SQLite file to the PostgreSQL database URL, or back. Only
    while no supervisor uses the root; jobs continue. Then set store.url, or remove it.
    """
    s = session()
    if to_file == (database is not None):
        raise click.UsageError("give the URL of the database, or --to-file")
    if database is None:
        _to_file(s)
    else:
        _to_database(s, database, password_file)


def _to_file(s: Session) -> None:
    from ...db.maintenance.move import move_to_file

    with locked_root(s) as root:
        done = move_to_file(root, progress_reporter(s))
    lines = [
        f"{done.events} events moved to {done.store}",
        "the tables in the database stay as a copy that is not used; remove store.url to start the supervisor",
    ]
    print_result(s, "jobscribe.db.move/1", lines, done)


def _to_database(s: Session, database: str, password_file: str | None) -> None:
    from ...db.maintenance.move import move_to_postgres
    from ...db.postgres.opening import Site
    from ...db.store.database_marker import name_database, named_database
    from ...protocol.errors import Refusal
    from ...runtime.store_address import parsed
    from ...service.site.secret_files import file_problems
    from ...supervisor.process import root_identity

    for problem in () if password_file is None else file_problems(password_file):
        raise problem.refusal("--password-file")
    address = parsed(database)
    with locked_root(s) as root:
        named = named_database(root)
        if named is not None:
            raise Refusal("badRequest", f"the event log of {root} is in {named.url} already")
        identity = root_identity.read_identity(root)
        if identity is None:
            raise Refusal("notFound", f"{root} has no root.json: start its supervisor once")
        done = move_to_postgres(
            root,
            Site(address, password_file, root / "db", identity.id),
            lambda: name_database(root, database, password_file),
            progress_reporter(s),
        )
    lines = [
        f"{done.events} events moved to {done.store}",
        f"the previous file is in {done.aside}; set store.url to start the supervisor",
    ]
    print_result(s, "jobscribe.db.move/1", lines, done)
