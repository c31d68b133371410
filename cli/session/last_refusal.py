"""The last submission of this command line that was refused: noted when it happens, told when
somebody asks for the job `last`.

One small file, beside the traces of crashes. Where it cannot be written or read, nothing is said.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from .crash_report import folders
from .session import Session

_FILE, _MOST_BYTES, _SENTENCE = "cli-refused.json", 8192, 500


@contextlib.contextmanager
def noting(session: Session) -> Iterator[None]:
    """Note what is refused in here, and let it go on."""
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
                    "where": _where(session),
                    "uid": session.client().uid,
                    "error": e.sentence[:_SENTENCE],
                },
            )
        raise


def since(session: Session, moment: float) -> tuple[float, str] | None:
    """(unix seconds, sentence) of the last refusal of the same user and supervisor, if it came
    after this moment.
    """
    found = [_read(os.path.join(folder, _FILE)) for folder in folders(session)]
    mine = [
        f
        for f in found
        if f is not None
        and (f.get("where"), f.get("uid")) == (_where(session), session.client().uid)
    ]
    told = max(((float(f["at"]), str(f["error"])) for f in mine), default=None)
    return told if told is not None and told[0] > moment else None


def _where(session: Session) -> str:
    return session.url or session.root


def _write(session: Session, note: dict[str, Any]) -> None:
    """Into the first folder that is this user's own."""
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
    """Nobody else's file is believed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as f:
            found = json.loads(f.read(_MOST_BYTES)) if os.fstat(fd).st_uid == os.getuid() else None
    except (OSError, ValueError):
        return None
    whole = (
        isinstance(found, dict)
        and isinstance(found.get("at"), int | float)
        and isinstance(found.get("error"), str)
    )
    return found if whole else None
