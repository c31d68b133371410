"""Records of submitted jobs in the workflow's folder: each exists until the workflow knows the end
of its run, so that a workflow that was killed finds its runs again.
"""

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import NamedTuple

from jobscribe.runtime.filesystems import write_atomically


class Record(NamedTuple):
    """digest: of the submission; a run with the same one is the same submission. meaning: digest of
    the commands and files of the job.
    """

    digest: str
    meaning: str


class Records:
    """The records of one workflow. folder: created, for its owner alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def find(self, model: str) -> Record | None:
        """Return the record of a job. None without one, or if it is damaged."""
        try:
            found = json.loads(self._path(model).read_text(encoding="utf-8"))
            return Record(str(found["digest"]), str(found["meaning"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def create(self, model: str, meaning: str) -> Record:
        """Write the record of a new submission. It is durable when this returns. Raises OSError."""
        record = Record(secrets.token_hex(16), meaning)
        text = json.dumps(record._asdict())
        write_atomically(str(self._path(model)), text.encode(), 0o600, sync=True)
        return record

    def script(self, model: str, text: str) -> str:
        """Write the script of a job, and return its path. It may contain secrets. Raises OSError."""
        path = self.folder / f"{model}.sh"
        write_atomically(str(path), text.encode(), 0o700)
        return str(path)

    def remove(self, model: str) -> None:
        """Forget a job: the workflow knows its end."""
        for path in (self._path(model), self.folder / f"{model}.sh"):
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _path(self, model: str) -> Path:
        return self.folder / f"{model}.json"
