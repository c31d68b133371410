"""`jobscribe db story`: the history of a job or agent from the log alone."""

from pathlib import Path

import click

from ..session.job_names import LAST_AMONG
from ..session.session import command, session
from .store_access import store_root


@command()
@click.argument("name", metavar="JOB")
def story(name: str) -> None:
    """Print the history of a job (its computeJid, a beginning of it, or `last`), of an agent (its
    key), or of `system`, from the log.
    """
    from ...db.maintenance.verification import events_of
    from ...db.records.event_text import data
    from ...db.records.event_text import story as lines
    from ...protocol.errors import Refusal

    s = session()
    root = store_root(s)
    stream = (
        name if name == "system" else f"agent/{name}" if "@" in name else f"job/{_jid(root, name)}"
    )
    events = events_of(root, stream)
    if not events:
        raise Refusal("notFound", f"the log has no events of {stream}")
    if s.screen.json:
        s.screen.value("jobscribe.db.story/1", {"stream": stream, "items": data(events)})
        return
    s.screen.line(stream)
    for line in lines(events):
        s.screen.line(f"  {line}")


def _jid(root: Path, name: str) -> str:
    """Return the computeJid in the log that begins with `name`, or the newest job for `last`.
    Returns `name` if there is none. Raises Refusal if there are several.
    """
    from ...db.maintenance.log_source import log_source
    from ...protocol.errors import Refusal

    with log_source(root).reader() as reader:
        if name == "last":
            newest = max(
                reader.jobs(None, None, None, None, LAST_AMONG),
                key=lambda r: (r.queued_at, r.serial),
                default=None,
            )
            found = [newest.jid] if newest else []
        else:
            found = [row.jid for row in reader.find_jobs(name, 2)]
    if len(found) > 1:
        raise Refusal("badRequest", f"several jobs begin with {name}; give more of the computeJid")
    return found[0] if found else name
