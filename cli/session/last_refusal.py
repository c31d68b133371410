"""The last refused submission of this user: stored in a file, reported when the user names the job
`last`.

The file lies beside the crash reports. Errors on writing or reading it are ignored.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from .crash_report import folders
from .session import Session

_FILE, _MAX_BYTES, _MAX_SENTENCE = "cli-refused.json", 8192, 500


@contextlib.contextmanager
def record_refusal(session: Session) -> Iterator[None]:
    """Store a refusal raised in the block, and raise it again."""
    from ...client.api.errors import ClientError
    from ...protocol.errors import Refusal

    try:
        yield
    except (Refusal, ClientError) as e:
        with contextlib.suppress(OSError, Refusal, ClientError):
            _write(
                session,
                {
                    "at": time.time(),
                    "where": _supervisor(session),
                    "uid": session.client().uid,
                    "error": e.sentence[:_MAX_SENTENCE],
                },
            )
        raise


def refusal_since(session: Session, moment: float) -> tuple[float, str] | None:
    """Return (unix seconds, sentence) of the last refusal for the same user and supervisor, or None
    if there is none after `moment` (unix seconds).
    """
    found = [_read(os.path.join(folder, _FILE)) for folder in folders(session)]
    mine = [
        f
        for f in found
        if f is not None
        and (f.get("where"), f.get("uid")) == (_supervisor(session), session.client().uid)
    ]
    latest = max(((float(f["at"]), str(f["error"])) for f in mine), default=None)
    return latest if latest is not None and latest[0] > moment else None


def _supervisor(session: Session) -> str:
    return session.url or session.root


def _write(session: Session, note: dict[str, Any]) -> None:
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
            with os.fdopen(fd, "w", encoding="utf-8") as f:
                json.dump(note, f)
            os.replace(f"{path}.new", path)
            return


def _read(path: str) -> dict[str, Any] | None:
    """Return the note, or None if it is missing, invalid or belongs to another user."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as f:
            found = json.loads(f.read(_MAX_BYTES)) if os.fstat(fd).st_uid == os.getuid() else None
    except (OSError, ValueError):
        return None
    valid = (
        isinstance(found, dict)
        and isinstance(found.get("at"), int | float)
        and isinstance(found.get("error"), str)
    )
    return found if valid else None
