"""Lists of jobs that a compaction of a log in use has trimmed. A list is on the disk before the log
is exchanged, and stays until the supervisor has written the records of these jobs: a kill in between
leaves no outdated record. A list without an exchange is harmless.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ...runtime.filesystems import write_atomically
from .log_source import store_path

_PART = ".trimmed-"


def write(root: Path, position: int, jids: Sequence[str]) -> None:
    """Write the list of a new log, which reaches up to `position`. Raises OSError."""
    if jids:
        path = store_path(root)
        named = path.with_name(f"{path.name}{_PART}{position}")
        write_atomically(str(named), msgspec.json.encode(jids), sync=True)


def read(root: Path) -> dict[Path, list[str]]:
    """Return all lists. A file that is not a list counts as an empty one."""
    path = store_path(root)
    return {p: _jids(p) for p in sorted(path.parent.glob(f"{path.name}{_PART}*"))}


def _jids(path: Path) -> list[str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[str])
    except (OSError, msgspec.DecodeError):
        return []
