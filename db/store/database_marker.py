"""The files in a root that name the PostgreSQL database of its log: without them, the log is in the
root's SQLite file.

They let commands find the log without the settings of the supervisor, and keep everybody from taking
such a root for one without a log. They have no password.
"""

import contextlib
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...runtime.filesystems import make_folder, write_atomically
from .store_folder import sync_folder

#: Files in the store's folder: the URL of `store.url`, and the path of `store.password_file`.
URL_FILE, PASSWORD_FILE = "store.url", "store.password_file"
_IDENTITY = "root.json"


class Database(NamedTuple):
    """root_id: the identity of the root; None if it cannot be read."""

    url: str
    password_file: str | None
    root_id: str | None


class _Identity(msgspec.Struct):
    id: str


def named_database(root: Path) -> Database | None:
    """Return the database of the root; None for a root with its log in a file."""
    url = _text(root / "db" / URL_FILE)
    if url is None:
        return None
    root_id = None
    with contextlib.suppress(OSError, msgspec.DecodeError):
        root_id = msgspec.json.decode((root / _IDENTITY).read_bytes(), type=_Identity).id
    return Database(url, _text(root / "db" / PASSWORD_FILE), root_id)


def name_database(root: Path, url: str, password_file: str | None) -> None:
    """Name the database in the root, durably. Raises OSError."""
    folder = root / "db"
    make_folder(str(folder))
    if password_file is None:
        (folder / PASSWORD_FILE).unlink(missing_ok=True)
    else:
        write_atomically(str(folder / PASSWORD_FILE), password_file.encode(), sync=True)
    write_atomically(str(folder / URL_FILE), url.encode(), sync=True)


def forget_database(root: Path) -> None:
    """Make the file in the root its log again, durably. Raises OSError."""
    folder = root / "db"
    (folder / URL_FILE).unlink(missing_ok=True)
    sync_folder(folder)
    (folder / PASSWORD_FILE).unlink(missing_ok=True)


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None
