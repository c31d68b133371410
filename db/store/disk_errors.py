"""Classification of failed writes: whether a retry is allowed, and the message for the caller.

A failed fsync is never retried: the kernel may drop the dirty pages, and the next fsync succeeds
without them.
"""

import errno
import sqlite3
from collections.abc import Callable

from ...protocol.errors import Refusal

_RETRYABLE = frozenset(
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
_RETRYABLE_IO = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_NOMEM,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_GETTEMPPATH,
        sqlite3.SQLITE_IOERR_LOCK,
    }
)
_RETRYABLE_ERRNO = frozenset(
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

#: Exceptions from reading a store file. SQLite quotes a damaged schema in its message, which may
#: raise UnicodeDecodeError.
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)


def is_retryable(error: BaseException) -> bool:
    """Return whether a retry is allowed: the log is unchanged, and the cause may go away."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return code is not None and (code & 0xFF in _RETRYABLE or code in _RETRYABLE_IO)
    return isinstance(error, OSError) and error.errno in _RETRYABLE_ERRNO


def describe(error: BaseException) -> str:
    """Return the error text with SQLite's name for it."""
    name = getattr(error, "sqlite_errorname", None)
    return f"{error} ({name})" if name else str(error) or type(error).__name__


def open_refusal(error: Exception, what: str, repair: Callable[[], str]) -> Refusal:
    """Return the refusal for a store file that cannot be opened (storageUnavailable) or is damaged
    (storeDamaged).
    """
    code = getattr(error, "sqlite_errorcode", None)
    device = (
        code is not None
        and code & 0xFF == sqlite3.SQLITE_IOERR
        and code != sqlite3.SQLITE_IOERR_SHORT_READ
    )
    if is_retryable(error) or device or isinstance(error, OSError):
        return Refusal("storageUnavailable", f"{what} cannot be opened: {describe(error)}")
    return Refusal("storeDamaged", f"{what} is damaged: {describe(error)}. {repair()}")
