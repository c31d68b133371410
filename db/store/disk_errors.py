"""What a failed write means: may it be tried again, is the disk's word still to be trusted, and how
it is told.

A failed fsync is never tried again: the pages it was for may be lost although the next one
succeeds.
"""

import errno
import sqlite3
from collections.abc import Callable

from ...protocol.errors import Refusal

_PASSING = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
    }
)
_PASSING_IO = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_NOMEM,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_GETTEMPPATH,
        sqlite3.SQLITE_IOERR_LOCK,
    }
)
_PASSING_ERRNO = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EFBIG,
        errno.EACCES,
    }
)

#: What reading a file may raise; the second where SQLite quotes a damaged schema in its message.
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)


def passing(error: BaseException) -> bool:
    """Did the write fail for a reason that may go away, leaving the log as it was before?"""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return code is not None and (code & 0xFF in _PASSING or code in _PASSING_IO)
    return isinstance(error, OSError) and error.errno in _PASSING_ERRNO


def describe(error: BaseException) -> str:
    """The error in a few words, with SQLite's name for it."""
    name = getattr(error, "sqlite_errorname", None)
    return f"{error} ({name})" if name else str(error) or type(error).__name__


def not_opened(error: Exception, what: str, repair: Callable[[], str]) -> Refusal:
    """Why a file of the store cannot be used: the disk does not let us, or what is in it is
    damaged.
    """
    code = getattr(error, "sqlite_errorcode", None)
    device = (
        code is not None
        and code & 0xFF == sqlite3.SQLITE_IOERR
        and code != sqlite3.SQLITE_IOERR_SHORT_READ
    )
    if passing(error) or device or isinstance(error, OSError):
        return Refusal("storageUnavailable", f"{what} cannot be opened: {describe(error)}")
    return Refusal("storeDamaged", f"{what} is damaged: {describe(error)}. {repair()}")
