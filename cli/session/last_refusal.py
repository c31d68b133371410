"""The last refused submission of this user: stored in a file, reported when the user names the job
`last`.

The file lies beside the crash reports. Errors on writing or reading it are ignored.
"""

import contextlib
import os
import time
from collections.abc import Iterator

import msgspec

from .crash_report import folders
from .session import Session

_FILE, _MAX_BYTES, _MAX_SENTENCE = "cli-refused.json", 8192, 500


class _Note(msgspec.Struct, frozen=True):
    """The content of the file. at: unix seconds. where, uid: supervisor and user of the submission."""

    at: float
    where: str
    uid: str
    error: str


@contextlib.contextmanager
def record_refusal(session: Session) -> Iterator[None]:
    """Store a refusal raised in the block, and raise it again."""
    from ...client.api.errors import ClientError
    from ...protocol.errors import Refusal

    try:
        yield
    except (Refusal, ClientError) as e:
        with contextlib.suppress(OSError, Refusal, ClientError):
            sentence = e.sentence[:_MAX_SENTENCE]
            _write(session, _Note(time.time(), *_submitter(session), sentence))
        raise


def refusal_since(session: Session, moment: float) -> tuple[float, str] | None:
    """Return (unix seconds, sentence) of the last refusal for the same user and supervisor, or None
    if there is none after `moment` (unix seconds).
    """
    found = [_read(os.path.join(folder, _FILE)) for folder in folders(session)]
    mine = [
        (note.at, note.error)
        for note in found
        if note is not None and (note.where, note.uid) == _submitter(session)
    ]
    latest = max(mine, default=None)
    return latest if latest is not None and latest[0] > moment else None


def _submitter(session: Session) -> tuple[str, str]:
    """Return the supervisor, by its address or root, and the user."""
    return session.remote or session.root, session.client().uid


def _write(session: Session, note: _Note) -> None:
    """Write the note into the first folder that belongs to this user."""
    for folder in folders(session):
        with contextlib.suppress(OSError):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if os.stat(folder).st_uid != os.getuid():
                continue
            path = os.path.join(folder, _FILE)
            fd = os.open(
                f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600
            )
            with os.fdopen(fd, "wb") as f:
                f.write(msgspec.json.encode(note))
            os.replace(f"{path}.new", path)
            return


def _read(path: str) -> _Note | None:
    """Return the note, or None if it is missing, invalid or belongs to another user."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as f:
            if os.fstat(fd).st_uid != os.getuid():
                return None
            return msgspec.json.decode(f.read(_MAX_BYTES), type=_Note)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
