"""Crash reports: the traceback of an unexpected exception in a file for its owner alone, with
secrets masked.
"""

import contextlib
import os
import sys
import tempfile
import time
import traceback

from .session import Session

MAX_BYTES = 1024 * 1024


def write_crash_report(error: BaseException, session: Session) -> str | None:
    """Append the traceback to a file and return its path. None if no folder is writable."""
    from ...protocol.redaction import Redactor

    redactor = Redactor(session.secrets())
    trace = "".join(traceback.format_exception(error))
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    text = redactor.text(
        f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} pid {os.getpid()} jobscribe {command}\n{trace}\n"
    )
    for folder in folders(session):
        with contextlib.suppress(OSError):
            return _append(os.path.join(folder, "cli-crash.log"), text.encode("utf-8", "replace"))
    return None


def folders(session: Session) -> list[str]:
    """Return the folders to try: `<root>/log` if the root exists, then a folder for temporary
    files.
    """
    out = []
    with contextlib.suppress(Exception):
        if os.path.isdir(session.root):
            out.append(os.path.join(session.root, "log"))
    return [*out, os.path.join(tempfile.gettempdir(), f"jobscribe-{os.getuid()}")]


def _append(path: str, text: bytes) -> str:
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder).st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    if os.path.exists(path) and os.path.getsize(path) > MAX_BYTES:
        os.replace(path, path + ".1")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(file, 0o600)
        os.write(file, text)
    finally:
        os.close(file)
    return path
