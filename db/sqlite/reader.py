"""Reads of the SQLite store, on a read-only connection of their own."""

from pathlib import Path

from ...protocol.errors import Refusal
from ..sql.reader import SqlReader
from ..store.disk_errors import UNREADABLE, open_refusal
from .opening import repair
from .schema import open_for_reading


class Reader(SqlReader):
    """A read-only connection, used in the thread that created it. Raises Refusal."""

    def __init__(self, path: Path) -> None:
        def refusal(error: Exception) -> Refusal:
            return open_refusal(error, str(path), lambda: repair(path))

        try:
            self._file = open_for_reading(path)
        except UNREADABLE as e:
            raise refusal(e) from None
        super().__init__(self._file, str(path), lambda: repair(path), UNREADABLE, refusal)

    def close(self) -> None:
        self._file.close()
