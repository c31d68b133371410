"""Idle connections for reuse: any threads of one process. Opens and closes none."""

import os
import threading
from typing import Generic, TypeVar

#: Maximum number of idle connections; others are closed after their use.
MAX_IDLE = 32

C = TypeVar("C")


class IdleConnections(Generic[C]):
    """Idle connections to one address at a time. After a fork, the child starts without any: a
    connection that two processes use mixes their answers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid, self._url = os.getpid(), ""
        self._idle: list[C] = []
        self._keeps = True

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, url: str) -> tuple[C | None, list[C]]:
        """Return an idle connection to this address, and connections that the caller must close."""
        with self._lock:
            outdated: list[C] = []
            if self._url != url or self._pid != os.getpid():
                outdated, self._idle = self._idle, []
                self._url, self._pid = url, os.getpid()
            return (self._idle.pop() if self._idle else None), outdated

    def put(self, url: str, connection: C) -> bool:
        """Keep a connection. Return False if the caller must close it."""
        with self._lock:
            kept = (
                self._keeps
                and len(self._idle) < MAX_IDLE
                and self._url == url
                and self._pid == os.getpid()
            )
            if kept:
                self._idle.append(connection)
            return kept

    def clear(self, *, for_good: bool = False) -> list[C]:
        """Return all connections; the caller must close them. for_good: keep none from now on."""
        with self._lock:
            self._keeps = self._keeps and not for_good
            cleared, self._idle = self._idle, []
            return cleared
