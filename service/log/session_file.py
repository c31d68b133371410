"""Log files of a server process in a root. A supervisor begins a new session; a front end writes to
the newest one.
"""

import os
from collections.abc import Callable

from ...runtime.log import session_folders
from ...runtime.log.destinations import RotatingFile
from ..settings.settings import LogSettings

#: Formats a sentence as a log line.
Line = Callable[[str], str]


class OwnSession:
    """The log session of one supervisor. If no session can be created, lines go to the previous
    one, with a warning.
    """

    def __init__(
        self, name: str, settings: LogSettings, root: str, line: Line, format_note: Line
    ) -> None:
        """line: formats messages of the file itself. said: formats messages of this class."""
        self._settings, self._root, self._format_note = settings, root, format_note
        problem = ""
        try:
            folder = session_folders.begin(root)
        except OSError as e:
            problem = (
                f"cannot create a log session: {e.strerror or e}; lines go to the previous session"
            )
            folder = os.path.dirname(os.path.realpath(os.path.join(root, "log", f"{name}.log")))
        self.session: str | None = (
            os.path.basename(folder) if not problem else session_folders.latest(root)
        )
        self._file = RotatingFile(
            os.path.join(folder, f"{name}.log"), settings.file_bytes, settings.files_kept, line
        )
        self._rotations = 0
        if problem:
            self._file.put(format_note(problem))
        self._prune()

    def put(self, text: str) -> None:
        self._file.put(text)
        if self._file.rotations != self._rotations:
            self._rotations = self._file.rotations
            self._prune()

    def _prune(self) -> None:
        removed = session_folders.prune(
            self._root, kept=self._settings.sessions_kept, total_bytes=self._settings.total_bytes
        )
        if removed.sessions:
            self._file.put(self._format_note(str(removed)))


def newest_session(
    name: str, settings: LogSettings, root: str, line: Line
) -> session_folders.Following:
    """Return an output that always writes to the newest session."""
    return session_folders.Following(
        root, name, lambda path: RotatingFile(path, settings.file_bytes, settings.files_kept, line)
    )
