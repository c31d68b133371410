"""Facts for `job why` that are not in the log of the job: files, names of users, cluster limits.

Shapes only; `runs/why_facts.py` reads them.
"""

from collections.abc import Callable

import msgspec

from ...protocol.clusters.batch import Partition


def _no_name(uid: str) -> str | None:
    return None


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """folder: of the execution's evidence. files: names of the files in it; None if this machine
    cannot see it. name: returns the name of a user, None if unknown. partition: of the run's cluster.
    store_fails_since: time (unix seconds) since which the event store cannot be written.
    """

    folder: str | None = None
    files: frozenset[str] | None = None
    name: Callable[[str], str | None] = _no_name
    partition: Partition | None = None
    store_fails_since: float | None = None

    def named(self, uid: str) -> str:
        """Return a uid, with the user's name if it is known."""
        name = self.name(uid)
        return uid if name is None or name == uid else f"{uid} ({name})"
