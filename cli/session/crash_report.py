"""Where the trace of an unexpected exception goes: a file that only its owner can read, without the
secrets in use.
"""

import contextlib
import os
import sys
import tempfile
import time
import traceback

from .session import Session

MAX_BYTES = 1024 * 1024


def written(error: BaseException, session: Session) -> str | None:
    """The file that the trace was added to, or None where there was no place for it."""
    from ...protocol.redaction import Redactor

    redactor = Redactor(session.secrets())
    trace = "".join(traceback.format_exception(error))
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    text = redactor.text(
        f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} pid {os.getpid()} jobscribe {command}\n{trace}\n"
    )
    for folder in folders(session):
        with contextlib.suppress(OSError):
            return _appended(os.path.join(folder, "cli-crash.log"), text.encode("utf-8", "replace"))
    return None


def folders(session: Session) -> list[str]:
    """`<root>/log` where the root exists; otherwise a folder of our own among the temporary ones."""
    out = []
    with contextlib.suppress(Exception):
        if os.path.isdir(session.root):
            out.append(os.path.join(session.root, "log"))
    return [*out, os.path.join(tempfile.gettempdir(), f"jobscribe-{os.getuid()}")]


def _appended(path: str, text: bytes) -> str:
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder).st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    if os.path.exists(path) and os.path.getsize(path) > MAX_BYTES:
        os.replace(path, path + ".1")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(file, 0o600)
        os.write(file, text)
    finally:
        os.close(file)
    return path
