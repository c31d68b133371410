"""Run directories that are not kept: who looks for them now and then, and how they are taken away.

Which run is purged is the core's decision. The directory gets another name at once, in the order of effects, so that a newer
run in the same place is never touched; removing it may take its time.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable

from ..db.store import EventStore, IndexRow
from ..protocol.ids import split_jid
from ..protocol.status import CANCELED, COMPLETED, ERROR, PURGED
from ..runtime.log import Log
from .core.inputs import Now, Purge
from .engine import Engine

_PAGE = 256
#: Directories that were given up to be removed; a dot keeps them out of what lists the user's simulations.
_DOOMED = ".purged-"


class Purging:
    """One per process. after_secs: how long runs are kept; None: for ever."""

    def __init__(
        self, engine: Engine, store: EventStore, log: Log, now: Callable[[], Now], *, user_root: str, after_secs: float | None,
        every_secs: float,
    ) -> None:
        self._engine, self._store, self._log, self._now = engine, store, log, now
        self._user_root, self._after_secs, self._every_secs = user_root, after_secs, every_secs
        #: what was looked at and is kept, by job: the next round need not read it again
        self._kept: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._removing: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        if self._after_secs is not None:
            self._task = asyncio.get_running_loop().create_task(self._look_now_and_then(self._after_secs))

    async def close(self) -> None:
        """What is being removed is removed; a directory that is left has its other name already."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await asyncio.gather(*self._removing)

    def remove(self, run_dir: str, serial: int) -> None:
        """Out of the way at once, gone a little later. Where there is none, it is done."""
        folder, name = os.path.split(run_dir)
        doomed = os.path.join(folder, f"{_DOOMED}{name}-{serial}")
        try:
            os.rename(run_dir, doomed)
        except FileNotFoundError:
            return
        except OSError as e:
            # the next round finds it again
            self._log("the run directory {} of a purged run cannot be removed: {}", run_dir, e.strerror)
            return
        task = asyncio.get_running_loop().create_task(asyncio.to_thread(shutil.rmtree, doomed, ignore_errors=True))
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)

    async def _look_now_and_then(self, after_secs: float) -> None:
        while True:
            try:
                await self._look(self._now().wall - after_secs)
            except Exception as e:
                # it is tried again; nothing depends on it
                self._log.exception("looking for runs to purge failed", error=e)
            await asyncio.sleep(self._every_secs)

    async def _look(self, ended_before: float) -> None:
        for status in (COMPLETED, CANCELED, ERROR, PURGED):
            before: int | None = None
            while rows := self._store.jobs(status=status, before=before, limit=_PAGE):
                before = rows[-1].position
                self._page(rows, ended_before)
                await asyncio.sleep(0)

    def _page(self, rows: list[IndexRow], ended_before: float) -> None:
        for row in rows:
            if row.status == PURGED:
                self._finish(row)
            elif row.ended_at is not None and row.ended_at <= ended_before and self._kept.get(row.jid) != row.serial:
                self._engine.tell(Purge(row.jid, row.serial, ended_before))
                entry = self._engine.durable(row.jid)
                if entry is not None and entry.job.run is not None and entry.job.run.spec.active_plan in self._engine.policy.kept_plans:
                    self._kept[row.jid] = row.serial

    def _finish(self, row: IndexRow) -> None:
        """A crash may have come between the decision and the directory's new name."""
        uid, sid, model = split_jid(row.jid)
        run_dir = os.path.join(self._user_root, uid, row.simulation_type, sid, model)
        job = self._engine.world.jobs.get(row.jid)
        if os.path.lexists(run_dir) and (job is None or (job.run is not None and job.run.serial == row.serial)):
            self.remove(run_dir, row.serial)
