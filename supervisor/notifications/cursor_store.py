"""Durable delivery state of each target, in one small file that is replaced as a whole. Everything
else is in the event log.
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
    """The file of cursors. One per process."""

    def __init__(self, root: Path) -> None:
        self._path = root / NAME
        # An abandoned write may still be in progress when the last one starts.
        self._turn = threading.Lock()

    def read(self) -> dict[str, SavedTarget]:
        """Return the saved state by target name; empty without a file. Raises Refusal("badConfig")
        for a damaged file.
        """
        for leftover in self._path.parent.glob(f"{NAME}.*.new"):  # left by a killed process
            with contextlib.suppress(OSError):
                leftover.unlink()
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_File)
        except FileNotFoundError:
            return {}
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise Refusal("badConfig", f"{self._path} is damaged ({e}); {_ADVICE}") from None
        except OSError as e:
            raise Refusal("badConfig", f"{self._path} cannot be read: {e.strerror}") from None
        if found.schema != SCHEMA:
            raise Refusal(
                "badConfig", f"{self._path} was written by another version of jobscribe; {_ADVICE}"
            )
        return found.targets

    def write(self, targets: Mapping[str, SavedTarget]) -> str | None:
        """Replace the file. Return None when it is durable. After a failure, return an error
        sentence; the previous content is unchanged.
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


_ADVICE = "remove it; targets then get notifications only of later changes"
