"""Log records in the machine's journal, with searchable fields: `journalctl JOBSCRIBE_JID=...`.

This is the journal's native protocol. A record is one datagram of `NAME=value` lines; a value of
several lines is preceded by its length. A record that is too large for a datagram is sent as a
sealed memory file. The journal adds time, pid and unit.

A caller waits for the journal no longer than its patience and never gets its errors. Lost records
are counted in `lost`, and noted in the journal once it takes records again. Standard library only.
"""

import array
import errno
import fcntl
import os
import re
import socket
import threading
from collections.abc import Iterable

from .destinations import is_writable
from .logger import Record, shown_ids

SOCKET = "/run/systemd/journal/socket"
#: syslog priorities
INFO, WARNING, ERROR = "6", "4", "3"
_PRIORITY = {"debug": "7", "warning": WARNING, "error": ERROR, "critical": "2"}

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_ID = re.compile(r"[a-z][a-z0-9_]{0,50}", re.ASCII)
_TOO_LARGE = (errno.EMSGSIZE, errno.ENOBUFS)


class Journal:
    """Journal destination. identifier: name of the program, as in `journalctl -t`. patience_secs:
    longest wait of a record for a busy journal. After a timeout, records do not wait until the
    journal takes one again.
    """

    def __init__(
        self, identifier: str, *, patience_secs: float = 0.0, path: str | None = None
    ) -> None:
        self._identifier, self._patience, self._path = identifier, patience_secs, path or SOCKET
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.lost = 0
        self._unreported = 0

    def put(self, record: Record) -> None:
        """Send a record. Never raises."""
        with self._lock:
            try:
                if self._unreported:
                    self._send(
                        _packed(
                            self._note(
                                f"({self._unreported} log lines before this one could not be written)"
                            )
                        )
                    )
                    self._unreported = 0
                self._send(_packed(self._fields(record)))
            except OSError:
                self.lost += 1
                self._unreported += 1

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _fields(self, record: Record) -> Iterable[tuple[str, str]]:
        path, line, name = [*record.where.split(":", 2), "", ""][:3]
        yield "MESSAGE", f"{record.where} {record.message}{shown_ids(record)}"
        yield "PRIORITY", _PRIORITY.get(record.level, ERROR if record.traceback else INFO)
        yield "SYSLOG_IDENTIFIER", self._identifier
        yield from (("CODE_FILE", path), ("CODE_LINE", line), ("CODE_FUNC", name))
        for key, value in record.ids.items():
            if _ID.fullmatch(key):
                yield f"JOBSCRIBE_{key.upper()}", value
        if record.traceback:
            yield "JOBSCRIBE_TRACEBACK", record.traceback

    def _note(self, message: str) -> Iterable[tuple[str, str]]:
        return ("MESSAGE", message), ("PRIORITY", WARNING), ("SYSLOG_IDENTIFIER", self._identifier)

    def _send(self, data: bytes) -> None:
        """Send a datagram. Raise OSError if it was not taken."""
        try:
            self._offer(data)
        except (BlockingIOError, _Full):
            raise
        except OSError:
            # a restarted journal may have a new socket at the same path
            self._disconnect()
            self._offer(data)

    def _offer(self, data: bytes) -> None:
        journal = self._connected()
        if not is_writable(journal.fileno(), 0.0 if self._unreported else self._patience):
            raise _Full
        try:
            journal.send(data)
        except OSError as e:
            if e.errno not in _TOO_LARGE:
                raise
            _send_file(journal, data)

    def _connected(self) -> socket.socket:
        if self._socket is None:
            fresh = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            try:
                fresh.setblocking(False)
                fresh.connect(self._path)
            except BaseException:
                fresh.close()
                raise
            self._socket = fresh
        return self._socket

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Full(OSError):
    """The journal's socket buffer is full."""


def is_journal(fd: int, named: str | None) -> bool:
    """Return whether this descriptor leads to the journal. named: the value of JOURNAL_STREAM,
    `device:inode`.
    """
    try:
        info = os.fstat(fd)
    except OSError:
        return False
    return named == f"{info.st_dev}:{info.st_ino}"


def _packed(fields: Iterable[tuple[str, str]]) -> bytes:
    out = bytearray()
    for name, value in fields:
        data = value.encode("utf-8", "backslashreplace")
        if b"\n" in data:
            out += b"%s\n%s%s\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
        else:
            out += b"%s=%s\n" % (name.encode(), data)
    return bytes(out)


def _send_file(journal: socket.socket, data: bytes) -> None:
    """Send the record as a sealed memory file: the journal accepts no other."""
    fd = os.memfd_create("jobscribe-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        journal.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    finally:
        os.close(fd)
