"""`db init|adopt`: what an operator decides about a root whose parts do not belong together. Both
want the supervisor stopped.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from ..session.session import Session, command, session
from .inspection import store_root


@command()
@click.option("--accept-loss", is_flag=True, help="Yes: all jobs of this root are forgotten.")
def init(accept_loss: bool) -> None:
    """Begin an empty log in a root that has lost its log. Only while no supervisor uses the root.

    All jobs are forgotten. Jobs that still run are ended when the supervisor starts; files in run
    directories stay.
    """
    from ...supervisor.process import root_identity

    s = session()
    if not accept_loss:
        raise click.UsageError(
            "all jobs would be forgotten, and those that run ended: say --accept-loss, or put a backup back"
        )
    with _held(s) as root:
        aside = root_identity.init(root)
    lines = [
        f"{root}: the log begins anew",
        *([f"the records of earlier jobs are in {aside}"] if aside else []),
    ]
    _answer(
        s, "jobscribe.db.init/1", lines, {"recordsAside": None if aside is None else str(aside)}
    )


@command()
def adopt() -> None:
    """Make this folder a root of its own: a copy of another root, or one whose parts are of
    different roots.

    Only while no supervisor uses the root. Of a copy, the folders of the agents are put aside: what
    runs there belongs to the original and is not touched. Its jobs are reported here as lost.
    """
    from ...supervisor.process import root_identity

    s = session()
    with _held(s) as root:
        done = root_identity.adopt(root)
    lines = [f"{root} is a root of its own now, with the id {done.root_id}"]
    if done.agents_aside:
        lines.append(
            f"the folders of the original's agents are in {done.agents_aside}; remove them when you do not need them"
        )
    _answer(
        s, "jobscribe.db.adopt/1", lines, {"rootId": done.root_id, "agentsAside": done.agents_aside}
    )


@contextlib.contextmanager
def _held(s: Session) -> Iterator[Path]:
    """The root, which must be there, and which no supervisor has meanwhile. Raises Refusal."""
    from ...protocol.errors import Refusal
    from ...supervisor.process.root_directory import RootDirectory

    path = store_root(s)
    if not path.is_dir():
        raise Refusal("notFound", f"there is no root {path}")
    root = RootDirectory(str(path))
    try:
        yield root.path
    finally:
        root.close()


def _answer(s: Session, schema: str, lines: list[str], value: dict[str, str | None]) -> None:
    if s.screen.json:
        s.screen.value(schema, value)
        return
    for line in lines:
        s.screen.line(line)
