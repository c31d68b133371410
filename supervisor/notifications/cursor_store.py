"""How far each target is, durable in one small file that is written whole. The log has all the
rest.
"""

import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ...protocol.errors import Refusal
from ...runtime.filesystems import write_atomically
from .delivery_queue import SavedTarget

NAME = "notifications.json"
SCHEMA = "jobscribe.notifications/1"


class _File(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    targets: dict[str, SavedTarget]


class CursorStore:
    """One per process."""

    def __init__(self, root: Path) -> None:
        self._path = root / NAME
        # a write that nobody waits for any more may still be under way when the last one comes
        self._turn = threading.Lock()

    def read(self) -> dict[str, SavedTarget]:
        """By the names of targets; empty where there is none yet. Raises Refusal("badConfig") where
        it is not what we wrote.
        """
        for leftover in self._path.parent.glob(
            f"{NAME}.*.new"
        ):  # of one that was killed while it wrote
            with contextlib.suppress(OSError):
                leftover.unlink()
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_File)
        except FileNotFoundError:
            return {}
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise Refusal("badConfig", f"{self._path} is damaged ({e}); {_AWAY}") from None
        except OSError as e:
            raise Refusal("badConfig", f"{self._path} cannot be read: {e.strerror}") from None
        if found.schema != SCHEMA:
            raise Refusal(
                "badConfig", f"{self._path} was written by another version of jobscribe; {_AWAY}"
            )
        return found.targets

    def write(self, targets: Mapping[str, SavedTarget]) -> str | None:
        """Durable when this returns None; else the sentence says why it is not, and what was there
        before is still there.
        """
        try:
            with self._turn:
                write_atomically(
                    str(self._path),
                    msgspec.json.encode(_File(schema=SCHEMA, targets=dict(targets))),
                    sync=True,
                )
        except OSError as e:
            return f"{self._path} cannot be written: {e.strerror}"
        return None


_AWAY = "take it away, and every target is told of what happens from then on"
