"""Where a server process writes its log in a root: a supervisor into the session that it begins,
the front end into the newest.
"""

import os
from collections.abc import Callable

from ...runtime.log import session_folders
from ...runtime.log.destinations import RotatingFile
from ..settings.settings import LogSettings

#: Makes a line of the log out of a sentence.
Line = Callable[[str], str]


class OwnSession:
    """The session of a supervisor, which begins with it. Where none can be made, the log goes on in
    the one before, and says so.
    """

    def __init__(self, name: str, settings: LogSettings, root: str, line: Line, said: Line) -> None:
        """line: for what the file says on its own account; said: for what is said here."""
        self._settings, self._root, self._said = settings, root, said
        trouble = ""
        try:
            folder = session_folders.begin(root)
        except OSError as e:
            trouble = f"no session of the log can be begun: {e.strerror or e}; its lines go where those before went"
            folder = os.path.dirname(os.path.realpath(os.path.join(root, "log", f"{name}.log")))
        self.session: str | None = (
            os.path.basename(folder) if not trouble else session_folders.latest(root)
        )
        self._file = RotatingFile(
            os.path.join(folder, f"{name}.log"), settings.file_bytes, settings.files_kept, line
        )
        self._rotations = 0
        if trouble:
            self._file.put(said(trouble))
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
            self._file.put(self._said(str(removed)))


def newest_session(
    name: str, settings: LogSettings, root: str, line: Line
) -> session_folders.Following:
    """An output into the newest session, whichever that is."""
    return session_folders.Following(
        root, name, lambda path: RotatingFile(path, settings.file_bytes, settings.files_kept, line)
    )
