"""Compaction of the event log of this supervisor, while it runs: exchanges the log for one that
another process has prepared (`db.maintenance.online_compaction`), and starts such a process from
time to time.
"""

import asyncio
import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from ...db.maintenance import online_compaction, trimmed_jobs
from ...db.maintenance.database.compaction import DatabaseExchange
from ...db.maintenance.new_log import Compacted
from ...db.maintenance.online_compaction import CompactedLog
from ...db.records.record_files import SETTLED_SECS
from ...db.sqlite.store import SqliteStore
from ...db.store.contract import Appended, Done, EventStore
from ...protocol.errors import Refusal
from ...runtime.log.logger import Log

#: Interval of compactions, and new events that are worth one.
EVERY_SECS, EVENTS = 24 * 3600.0, 50_000
#: Wait before the first one: the start has other things to do.
_FIRST_SECS = 600.0
_CLOSE_SECS = 5.0
_NICE = 19
#: Jobs that are read again before other work goes on, and the pause before those in use are tried.
_RELOADED, _AGAIN_SECS = 50, 0.2


class CompactionState(msgspec.Struct, kw_only=True, rename="camel"):
    """Compactions since the start of this supervisor. at: wall time of the last one."""

    done: int = 0
    failed: int = 0
    at: float | None = None
    events_before: int | None = None
    events_after: int | None = None
    last_error: str | None = None


class LogCompaction:
    """One per process. older_than_secs: age of the last event of a folded job; None: a compaction
    only when somebody asks for it. reload: `Engine.reload`.
    """

    def __init__(
        self,
        store: EventStore,
        log: Log,
        wall: Callable[[], float],
        *,
        root: Path,
        older_than_secs: float | None,
        reload: Callable[[Iterable[str]], int],
    ) -> None:
        self._store, self._log, self._wall, self._root = store, log, wall, root
        self._older_than_secs, self._reload = older_than_secs, reload
        self.state = CompactionState()
        self._task: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._compacted_at = 0

    def start(self) -> None:
        online_compaction.clear_leftovers(self._root)
        self._reload_trimmed()  # the previous supervisor may have been killed meanwhile
        if self._older_than_secs is not None:
            self._task = asyncio.get_running_loop().create_task(
                self._compact_periodically(self._store, self._older_than_secs)
            )

    async def close(self) -> None:
        for task in (self._task, self._reloading):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def exchange(self, *, keep: bool) -> Compacted:
        """Exchange the log for the prepared one. keep: keep the old log aside. Raises Refusal;
        then the log is unchanged.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Appended | Refusal] = loop.create_future()
        began = time.monotonic()
        prepared = self._exchange(lambda r: None if done.done() else done.set_result(r), keep)
        result = await done
        if isinstance(result, Refusal):
            self.state.failed += 1
            self.state.last_error = result.sentence
            raise result
        assert prepared.result is not None
        compacted = prepared.result
        self._compacted_at = result.last
        self._reload_trimmed()
        self.state.done += 1
        self.state.at, self.state.last_error = self._wall(), None
        self.state.events_before, self.state.events_after = (
            compacted.events_before,
            compacted.events_after,
        )
        self._log(
            "the event log was compacted: {} events became {}; writes waited {:.2f} s",
            compacted.events_before,
            compacted.events_after,
            time.monotonic() - began,
        )
        return compacted

    def _exchange(self, done: Done, keep: bool) -> CompactedLog | DatabaseExchange:
        if isinstance(self._store, SqliteStore):
            prepared = CompactedLog(self._root, self._wall(), keep=keep)
            self._store.exchange(prepared, done)
            return prepared
        from ...db.postgres.store import PostgresStore

        # the process that prepared the log keeps a backup
        assert isinstance(self._store, PostgresStore)
        exchanged = DatabaseExchange(self._wall())
        self._store.exchange(exchanged, done)
        return exchanged

    def _reload_trimmed(self) -> None:
        """Have the jobs read again that lack data in the new log, and their records written."""
        if self._reloading is not None:
            self._reloading.cancel()
        lists = trimmed_jobs.read(self._root)
        self._reloading = (
            asyncio.get_running_loop().create_task(self._reload_lists(lists)) if lists else None
        )

    async def _reload_lists(self, lists: dict[Path, list[str]]) -> None:
        jids = itertools.chain.from_iterable(lists.values())
        while some := list(itertools.islice(jids, _RELOADED)):
            self._reload(some)
            await asyncio.sleep(0)
        left = self._reload(())
        while left:
            await asyncio.sleep(_AGAIN_SECS)
            left = self._reload(())
        # until then, a power failure may take records
        await asyncio.sleep(2 * SETTLED_SECS)
        for path in lists:
            path.unlink(missing_ok=True)

    async def _compact_periodically(self, store: EventStore, older_than_secs: float) -> None:
        await asyncio.sleep(_FIRST_SECS)
        while True:
            if store.head() - self._compacted_at >= EVENTS:
                try:
                    await self._run(older_than_secs)
                except OSError as e:
                    self.state.failed += 1
                    self.state.last_error = f"the compaction cannot be started: {e}"
                # also without success: the next day has new events
                self._compacted_at = store.head()
            await asyncio.sleep(EVERY_SECS)

    async def _run(self, older_than_secs: float) -> None:
        """Compact the log in another process, which asks this one to exchange the files."""
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "jobscribe.cli",
            "--root",
            str(self._root),
            "db",
            "compact",
            "--no-keep",
            "--older-than",
            str(older_than_secs / 86_400),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, child.pid, _NICE)
        try:
            _, said = await child.communicate()
        except asyncio.CancelledError:
            child.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child.wait(), _CLOSE_SECS)
            raise
        if child.returncode:
            self.state.failed += 1
            self.state.last_error = said.decode("utf-8", "replace").strip()[-500:]
            self._log("the compaction of the event log failed: {}", self.state.last_error)
