"""The file of queues and limits (YAML, `queues.file`). All problems are reported together, with their
lines.

`protocol.clusters.queues` declares the fields; here are the rules.
"""

from ...protocol.clusters.queues import Queue, Queues
from ...protocol.errors import Refusal
from ...protocol.ids import DEFAULT_QUEUE
from ...schema.structs import Place
from . import site_file


def load(path: str | None) -> Queues:
    """Return the queues in this file; without a file, those of a site that configures none. Raises
    Refusal with all problems.
    """
    if path is None:
        return Queues()
    queues, found = read(path)
    if queues is None:
        raise site_file.combined(path, found)
    return queues


def read(path: str) -> tuple[Queues | None, list[Refusal]]:
    """Return the queues, or all problems of the file."""
    return site_file.read(path, "queues.file", Queues, _check)


def _check(queues: Queues, place: Place) -> Queues:
    default = queues.queues.get(DEFAULT_QUEUE, Queue())
    for key in ("users", "plans"):
        if getattr(default, key):
            place.within("queues").within(DEFAULT_QUEUE).error(
                key, "everybody may use the queue `default`", "another queue for some users"
            )
    return queues
