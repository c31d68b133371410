"""Facts for `job why` from outside the log: existing files of an execution, names of users, limits
of a partition.
"""

import getpass
import os
from collections.abc import Callable

import msgspec

from ...db.events.state import Run, Task
from ...protocol.clusters.batch import BatchRequest, ClusterStatus, Partition


class _UidFile(msgspec.Struct, frozen=True):
    """The file `server.uid_file`: uids by name."""

    uids: dict[str, str]


class UserNames:
    """Names of uids: those of the front end's file of uids, and of this process's unix user.

    own_uid: uid of the command line user. An unreadable file has no names.
    """

    def __init__(self, path: str | None, own_uid: str) -> None:
        self._path, self._own_uid = path, own_uid
        self._read: tuple[int, int] | None = None
        self._names: dict[str, str] = {}

    def __call__(self, uid: str) -> str | None:
        """Return the name of a uid, or None if it is unknown."""
        if uid == self._own_uid:
            try:
                return getpass.getuser()
            except (KeyError, OSError):
                return None
        self._update()
        return self._names.get(uid)

    def _update(self) -> None:
        if self._path is None:
            return
        try:
            info = os.stat(self._path)
            if (seen := (info.st_mtime_ns, info.st_ino)) == self._read:
                return
            with open(self._path, "rb") as file:
                known = msgspec.json.decode(file.read(), type=_UidFile).uids
        except (OSError, msgspec.DecodeError):
            return
        self._read = seen
        self._names = {uid: _printable(name) for name, uid in known.items()}


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name)[:64]


def partition_of(run: Run, news: Callable[[str], dict[str, ClusterStatus]]) -> Partition | None:
    """Return the partition of a Slurm run, as its cluster reported it last; None if unknown."""
    asked, task = run.spec.batch, run.telling
    said = None if task is None else task.batch_said
    if not isinstance(asked, BatchRequest):
        return None
    cluster = said.cluster if said is not None else asked.cluster
    status = news(run.spec.uid).get(cluster or "")
    name = (said.partition if said is not None else "") or asked.partition
    if status is None:
        return None
    return next((p for p in status.partitions if p.name == name or (not name and p.default)), None)


def files_of(task: Task, folder: str) -> frozenset[str] | None:
    """Return the names of the files in an evidence folder; None if this machine may not see it."""
    if task.agent_key.driver != "local":
        return None
    try:
        return frozenset(
            entry.name for entry in os.scandir(folder) if entry.is_file() and entry.stat().st_size
        )
    except OSError:
        return frozenset()
