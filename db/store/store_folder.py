"""The folder of a store in the root: its owner, its mode, and syncs of files and folders."""

import os
from pathlib import Path

from ...protocol.errors import Refusal
from ...runtime.filesystems import foreign_owner, user_name


def check_owner(folder: Path) -> None:
    """Raise Refusal("foreignRoot") if the folder, or its parent if the folder does not exist,
    belongs to another user.
    """
    existing = next((p for p in (folder, folder.parent) if p.exists()), None)
    owner = None if existing is None else foreign_owner(str(existing))
    if owner is not None:
        raise Refusal(
            "foreignRoot",
            f"{existing} belongs to {owner}, but this process runs as {user_name(os.geteuid())}; nothing was written",
        )


def make_folder(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        if folder.stat().st_mode & 0o777 != 0o700:
            folder.chmod(0o700)
    sync_folder(folder.parent)


def sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    sync_file(folder)
