"""`jobscribe db story`: the history of a job or agent from the log alone."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..session.job_names import LAST_AMONG
from ..session.session import command, session
from .store_access import shard_option, store_roots

if TYPE_CHECKING:
    from ...db.store.contract import IndexRow


@command()
@click.argument("name", metavar="JOB")
@shard_option
def story(name: str, shard: int | None) -> None:
    """Print the history of a job (its computeJid, a beginning of it, or `last`), of an agent (its
    key), or of `system`, from the log.
    """
    from ...db.maintenance.verification import events_of
    from ...db.records.event_text import data
    from ...db.records.event_text import story as lines
    from ...protocol.errors import Refusal

    s = session()
    roots = store_roots(s, shard)
    if name == "system" and len(roots) > 1:
        raise Refusal("badRequest", "each shard has a stream `system`: name one shard (--shard K)")
    if name == "system" or "@" in name:
        stream = name if name == "system" else f"agent/{name}"
        found = [(root, stream) for _, root in roots]
    else:
        found = _jobs([root for _, root in roots], name)
    stories = [(stream, events) for root, stream in found if (events := events_of(root, stream))]
    if not stories:
        raise Refusal("notFound", f"the log has no events of {found[0][1] if found else name}")
    # a user is in one shard, so an agent is, too
    stream, events = stories[0]
    if s.screen.json:
        s.screen.value("jobscribe.db.story/1", {"stream": stream, "items": data(events)})
        return
    s.screen.line(stream)
    for line in lines(events):
        s.screen.line(f"  {line}")


def _jobs(roots: list[Path], name: str) -> list[tuple[Path, str]]:
    """Return the job that begins with `name`, or the newest one for `last`, with its root; `name` itself in
    each root if there is none. Raises Refusal if there are several.
    """
    from ...protocol.errors import Refusal

    rows = [(root, row) for root in roots for row in _rows(root, name)]
    if name == "last":
        rows = sorted(rows, key=lambda r: (r[1].queued_at, r[1].serial))[-1:]
    if len(rows) > 1:
        raise Refusal("badRequest", f"several jobs begin with {name}; give more of the computeJid")
    if not rows:
        return [(root, f"job/{name}") for root in roots]
    return [(rows[0][0], f"job/{rows[0][1].jid}")]


def _rows(root: Path, name: str) -> list["IndexRow"]:
    from ...db.maintenance.log_source import log_source

    with log_source(root).reader() as reader:
        if name == "last":
            return reader.jobs(None, None, None, None, LAST_AMONG)
        return reader.find_jobs(name, 2)
