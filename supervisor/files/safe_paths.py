"""Safe access to users' folders. The supervisor may run as root, and users' jobs may change these
folders at any time.

A user owns `<user root>/<uid>` and may put a link, a pipe or another folder anywhere below it. So
every step opens a name relative to an open folder and never follows a link. Deep, large or changing
trees cause no long waits, no deep recursion and no large number of open files.
"""

import os
import secrets
from collections.abc import Callable, Sequence

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LIFTED = ".lifted-"


def step(folder: int, name: str) -> int:
    """Return a descriptor of a folder in `folder`. Raises OSError: ELOOP or ENOTDIR for a link."""
    return os.open(name, FOLDER, dir_fd=folder)


def open_folder(base: str, parts: Sequence[str]) -> int:
    """Return a descriptor of the folder `parts` below `base`. `base` belongs to the operator and
    may be a link. Raises OSError.
    """
    fd = os.open(base, FOLDER & ~os.O_NOFOLLOW)
    for part in parts:
        try:
            inner = step(fd, part)
        finally:
            os.close(fd)
        fd = inner
    return fd


def give_to(fd: int, owner: tuple[int, int]) -> None:
    """Change the owner (unix uid and gid) of a file that this process created. Other files keep
    their owner. Raises OSError.
    """
    if owner[0] != os.geteuid() and os.fstat(fd).st_uid == os.geteuid():
        os.fchown(fd, *owner)


def remove(folder: int, name: str, go_on: Callable[[], bool]) -> bool:
    """Remove a name in `folder` and everything in it. Return whether it is gone. Blocks; stops
    when `go_on` returns False.

    Unremovable files stay. Does not cross file systems.
    """
    try:
        top = step(folder, name)
    except FileNotFoundError:
        return True
    except OSError:
        return _unlink(folder, name)
    try:
        while go_on() and _sweep(top, go_on):
            pass
    finally:
        os.close(top)
    return _rmdir(folder, name)


def _sweep(top: int, go_on: Callable[[], bool]) -> bool:
    """Sweep a folder once. Return whether anything changed.

    A subfolder is emptied by moving its folders up to this level, so only two folders are open at
    any depth.
    """
    changed = False
    with os.scandir(top) as entries:
        for entry in entries:
            if not go_on():
                break
            changed |= _remove_entry(top, entry) or (
                _is_folder(entry) and _empty(top, entry.name, go_on)
            )
    return changed


def _empty(top: int, name: str, go_on: Callable[[], bool]) -> bool:
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
                changed |= _remove_entry(inner, entry) or (
                    _is_folder(entry) and _move_up(inner, entry.name, top)
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


def _remove_entry(folder: int, entry: os.DirEntry[str]) -> bool:
    return _rmdir(folder, entry.name) if _is_folder(entry) else _unlink(folder, entry.name)


def _move_up(inner: int, name: str, top: int) -> bool:
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


def _unlink(folder: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
