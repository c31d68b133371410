"""`jobscribe db move`: the log of a stopped root, moved from its file into PostgreSQL, or back."""

from pathlib import Path
from typing import Any

import click

from ..session.session import Session, command, session
from .store_access import (
    head_of,
    locked,
    locked_root,
    print_result,
    progress_reporter,
    shard_option,
    store_roots,
)


@command()
@click.argument("database", metavar="[URL]", required=False)
@click.option("--to-file", is_flag=True, help="Move the log back into the root's SQLite file.")
@click.option("--password-file", metavar="FILE", help="File with the password, mode 0600.")
@shard_option
def move(database: str | None, to_file: bool, password_file: str | None, shard: int | None) -> None:
    """Move the event log from the root's SQLite file to the PostgreSQL database URL, or back. Only
    while no supervisor uses the root; jobs continue. Then set store.url, or remove it.

    On a site with shards: from one database to another, all shards, or one (--shard). URL is that of
    store.url: the schema of a shard has its number at the end.
    """
    s = session()
    if to_file == (database is not None):
        raise click.UsageError("give the URL of the database, or --to-file")
    roots = store_roots(s, shard)
    if roots[0][0] is not None:
        _shards(s, roots, database, password_file)
    elif database is None:
        _to_file(s)
    else:
        _to_database(s, database, password_file)


def _shards(
    s: Session,
    roots: list[tuple[int | None, Path]],
    database: str | None,
    password_file: str | None,
) -> None:
    from ...db.maintenance.move import move_shard
    from ...db.store.database_marker import name_database
    from ...protocol.errors import Refusal
    from ...runtime.store_address import parsed
    from ...service.site.secret_files import file_problems
    from ...service.site.shards import with_schema

    if database is None:
        raise Refusal(
            "badRequest",
            "a site with shards needs a store that all shards reach, so its logs cannot move into files: give the"
            " URL of another database",
        )
    for problem in () if password_file is None else file_problems(password_file):
        raise problem.refusal("--password-file")
    results, lines = dict[str, Any](), []
    for number, path in roots:
        assert number is not None
        url = with_schema(database, number)
        with locked(path) as root:

            def name(root: Path = root, url: str = url) -> None:
                name_database(root, url, password_file)

            done = move_shard(root, number, parsed(url), password_file, name, progress_reporter(s))
        results[str(number)] = done
        lines.append(
            head_of(number)
            + (
                "its log is there already"
                if done is None
                else f"{done.events} events moved to {done.store}"
            )
        )
    lines.append(
        "set store.url to start the supervisors; the tables in the previous database stay as a copy"
    )
    print_result(s, "jobscribe.db.move/1", lines, {"shards": results})


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
