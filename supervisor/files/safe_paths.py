"""Ways through the folders of users, for a supervisor that may be root there while users' jobs
change whatever they like.

A user owns `<user root>/<uid>` and may put a link, a pipe or another folder in any place below it
at any moment. So every step goes from an open folder to a name in it and never through a link; and
nothing waits, goes deep or opens much because somebody made a tree that is deep, large, or changes
while it is looked at.
"""

import os
import secrets
from collections.abc import Callable, Sequence

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LIFTED = ".lifted-"


def step(folder: int, name: str) -> int:
    """A descriptor of this folder in `folder`. Raises OSError: ELOOP or ENOTDIR where it is a link."""
    return os.open(name, FOLDER, dir_fd=folder)


def opened(base: str, parts: Sequence[str]) -> int:
    """A descriptor of the folder `parts` below `base`, which is the operator's and may well be a
    link. Raises OSError.
    """
    fd = os.open(base, FOLDER & ~os.O_NOFOLLOW)
    for part in parts:
        try:
            inner = step(fd, part)
        finally:
            os.close(fd)
        fd = inner
    return fd


def give(fd: int, owner: tuple[int, int]) -> None:
    """What this process made becomes the owner's (unix uid and gid); what it did not make stays
    whose it is. Raises OSError.
    """
    if owner[0] != os.geteuid() and os.fstat(fd).st_uid == os.geteuid():
        os.fchown(fd, *owner)


def remove(folder: int, name: str, go_on: Callable[[], bool]) -> bool:
    """Take away whatever has this name in `folder`, and all that is in it. Is it gone? Blocks;
    stops when `go_on` says no.

    What cannot be removed stays. Not into other file systems.
    """
    try:
        top = step(folder, name)
    except FileNotFoundError:
        return True
    except OSError:
        return _unlinked(folder, name)
    try:
        while go_on() and _swept(top, go_on):
            pass
    finally:
        os.close(top)
    return _rmdir(folder, name)


def _swept(top: int, go_on: Callable[[], bool]) -> bool:
    """One round through a folder. Folders in it are emptied by lifting theirs up here: two are open
    at once, however deep it is.

    Did anything change?
    """
    changed = False
    with os.scandir(top) as entries:
        for entry in entries:
            if not go_on():
                break
            changed |= _taken(top, entry) or (
                _is_folder(entry) and _emptied(top, entry.name, go_on)
            )
    return changed


def _emptied(top: int, name: str, go_on: Callable[[], bool]) -> bool:
    try:
        inner = step(top, name)
    except OSError:
        return False
    changed = False
    try:
        if os.fstat(inner).st_dev != os.fstat(top).st_dev:
            return False
        with os.scandir(inner) as entries:
            for entry in entries:
                if not go_on():
                    break
                changed |= _taken(inner, entry) or (
                    _is_folder(entry) and _lifted(inner, entry.name, top)
                )
    except OSError:
        return changed
    finally:
        os.close(inner)
    return _rmdir(top, name) or changed


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _taken(folder: int, entry: os.DirEntry[str]) -> bool:
    return _rmdir(folder, entry.name) if _is_folder(entry) else _unlinked(folder, entry.name)


def _lifted(inner: int, name: str, top: int) -> bool:
    try:
        os.rename(name, _LIFTED + secrets.token_hex(8), src_dir_fd=inner, dst_dir_fd=top)
    except OSError:
        return False
    return True


def _rmdir(folder: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _unlinked(folder: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
