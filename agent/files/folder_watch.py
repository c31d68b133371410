"""Waiting for a change in a folder: by inotify, or by polling every 50 ms on network file systems."""

import asyncio
import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator

from ...runtime.filesystems import network_file_system

POLL_SECS = 0.05
_MODIFY, _MOVED_TO, _CREATE, _DELETE_SELF = 0x2, 0x80, 0x100, 0x400
_HEADER = struct.Struct("iIII")
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


class Change:
    """Event that any change in the folder sets, until `clear`. notified: the kernel reports
    changes; otherwise `wait` polls.
    """

    def __init__(self, *, notified: bool) -> None:
        self._event = asyncio.Event()
        self.notified = notified

    def clear(self) -> None:
        self._event.clear()

    def set(self) -> None:
        self._event.set()

    async def wait(self, secs: float) -> None:
        """Wait for a change, at most `secs`; returns early without change notifications, so check
        again afterwards.
        """
        if secs <= 0:
            return
        with contextlib.suppress(TimeoutError):
            # Python 3.11's wait_for may swallow a cancellation
            async with asyncio.timeout(secs if self.notified else min(secs, POLL_SECS)):
                await self._event.wait()


class Folders:
    """Watched folders. One inotify descriptor for all, opened on first use."""

    def __init__(self) -> None:
        self._fd = -1
        self._watches: dict[int, list[Change]] = {}
        self._local: dict[str, bool] = {}

    @contextlib.contextmanager
    def watching(self, folder: str) -> Iterator[Change]:
        """Yield a Change that is set from now on."""
        watch = self._add(folder)
        change = Change(notified=watch is not None)
        if watch is None:
            yield change
            return
        self._watches.setdefault(watch, []).append(change)
        try:
            yield change
        finally:
            others = self._watches.get(watch, [])
            if change in others:
                others.remove(change)
            if not others:
                self._watches.pop(watch, None)
                _libc.inotify_rm_watch(self._fd, watch)

    def close(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _add(self, folder: str) -> int | None:
        """Return a watch, or None if the folder does not exist, is on a network file system, or the
        user has too many watches.
        """
        parent = os.path.dirname(folder)
        if parent not in self._local:
            self._local[parent] = network_file_system(parent) is None
        if not self._local[parent] or not self._open():
            return None
        watch = int(
            _libc.inotify_add_watch(
                self._fd, os.fsencode(folder), _MODIFY | _MOVED_TO | _CREATE | _DELETE_SELF
            )
        )
        return watch if watch >= 0 else None

    def _open(self) -> bool:
        if self._fd < 0:
            self._fd = int(_libc.inotify_init1(_NONBLOCK_CLOEXEC))
            if self._fd >= 0:
                asyncio.get_running_loop().add_reader(self._fd, self._readable)
        return self._fd >= 0

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            watch, _mask, _cookie, length = _HEADER.unpack_from(data, at)
            at += _HEADER.size + length
            # -1: the queue overflowed
            for change in self._watches.get(watch, ()) if watch >= 0 else self._all():
                change.set()

    def _all(self) -> list[Change]:
        return [c for changes in self._watches.values() for c in changes]
