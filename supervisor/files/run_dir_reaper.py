"""Run directories that are not kept: who looks for them now and then, and how they are taken away.

Which run is purged is the core's decision. The directory gets another name at once, in the order of
effects, so that a newer run in the same place is never touched; removing it may take its time, in
threads that do nothing else. Whatever the user's jobs did to the folders on the way to it, nothing
outside them is touched (`user_folders`).
"""

import asyncio
import contextlib
import errno
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ...db.events.state import Run
from ...db.store.contract import EventStore, IndexRow
from ...protocol.ids import split_jid
from ...protocol.jobs.status import CANCELED, COMPLETED, ERROR, PURGED
from ...runtime import failpoints
from ...runtime.log.logger import Log
from ..core.interface.inputs import Now, Purge
from ..engine.decision_loop import Engine
from .safe_paths import opened, remove

_PAGE = 64
#: Directories that were given up to be removed; a dot keeps them out of what lists the user's
#: simulations.
_DOOMED = ".purged-"
#: Directories that are removed at once; and how long one may take, before others have their turn
#: and it is looked for again.
_AT_ONCE, _TURN_SECS = 2, 900.0
#: Whoever stops the supervisor does not wait longer for what is being removed.
_CLOSE_SECS = 5.0
#: `<uid>/<simulationType>/<simulationId>/<computeModel>`
_DEPTH = 4
_IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)


class RunDirReaper:
    """One per process. after_secs: how long runs are kept; None: for ever."""

    def __init__(
        self,
        engine: Engine,
        store: EventStore,
        log: Log,
        now: Callable[[], Now],
        *,
        user_root: str,
        after_secs: float | None,
        every_secs: float,
        elsewhere: Callable[[Run], bool] = lambda run: False,
    ) -> None:
        """elsewhere: does this run's directory lie where we see nothing? It is its user's to
        remove, and is not called purged.
        """
        self._elsewhere = elsewhere
        self._engine, self._store, self._log, self._now = engine, store, log, now
        self._user_root, self._after_secs, self._every_secs = user_root, after_secs, every_secs
        #: by status: whatever last changed before this position was looked at and is kept for its
        #: plan; it need not be read again
        self._kept_below: dict[str, int] = {}
        #: what changed last after this position is not old, whatever its wall time says; and
        #: (monotonic time, position) of rounds since
        self._old = 2**62
        self._marks: deque[tuple[float, int]] = deque()
        self._task: asyncio.Task[None] | None = None
        #: by the other name of what is being removed
        self._removing: dict[str, asyncio.Task[None]] = {}
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="purge")
        self._until = float("inf")

    def start(self) -> None:
        now = self._now()
        self._ahead, self._old = now.wall - now.mono, self._store.head()
        if self._after_secs is not None:
            self._task = asyncio.get_running_loop().create_task(
                self._look_now_and_then(self._after_secs)
            )

    async def close(self) -> None:
        """What is being removed has a moment; a directory that is left has its other name already."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._until = time.monotonic() + _CLOSE_SECS
        await asyncio.gather(*self._removing.values())
        self._threads.shutdown()

    def remove(self, run_dir: str, serial: int) -> None:
        """Out of the way at once, gone a little later. Where there is none, it is done."""
        failpoints.reached("purge.decided")
        doomed = _doomed(run_dir, serial)
        try:
            folder = self._folder_of(run_dir)
        except FileNotFoundError:
            return
        except OSError as e:
            self._kept_back(run_dir, e)
            return
        try:
            os.rename(
                os.path.basename(run_dir),
                os.path.basename(doomed),
                src_dir_fd=folder,
                dst_dir_fd=folder,
            )
        except FileNotFoundError:
            return
        except OSError as e:
            self._kept_back(run_dir, e)
            if e.errno in _IN_THE_WAY:
                self._erase(doomed)
            return
        finally:
            os.close(folder)
        failpoints.reached("purge.renamed")
        self._erase(doomed)

    def _kept_back(self, path: str, error: OSError) -> None:
        """The next round finds it again."""
        self._log(
            "the run directory {} of a purged run cannot be removed: {}",
            path,
            error.strerror,
            jid=_jid(path),
        )

    def _folder_of(self, path: str) -> int:
        """A descriptor of the folder that a run directory is in. The user root may have been
        another one at the time. Raises OSError.
        """
        parts = path.split("/")
        base = "/".join(parts[:-_DEPTH])
        return opened(base or "/", parts[-_DEPTH:-1])

    def _erase(self, doomed: str) -> None:
        if doomed not in self._removing:
            task = asyncio.get_running_loop().create_task(self._erased(doomed))
            self._removing[doomed] = task
            task.add_done_callback(lambda _: self._removing.pop(doomed))

    async def _erased(self, doomed: str) -> None:
        try:
            gone = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._gone, doomed
            )
        except OSError as e:
            self._kept_back(doomed, e)
            return
        if not gone:
            self._log(
                "{} is not gone yet; the next round goes on with it", doomed, jid=_jid(doomed)
            )

    def _gone(self, doomed: str) -> bool:
        """In a thread."""
        own = time.monotonic() + _TURN_SECS
        folder = self._folder_of(doomed)
        try:
            return remove(
                folder, os.path.basename(doomed), lambda: time.monotonic() < min(own, self._until)
            )
        finally:
            os.close(folder)

    async def _look_now_and_then(self, after_secs: float) -> None:
        while True:
            try:
                self._age(after_secs)
                await self._look(self._today() - after_secs)
            except Exception as e:
                # it is tried again; nothing depends on it
                self._log.exception("looking for runs to purge failed", error=e)
            await asyncio.sleep(self._every_secs)

    def _age(self, after_secs: float) -> None:
        """What this process saw end ages on the monotonic clock: its wall time may be from before a
        clock was set right.
        """
        mono = self._now().mono
        self._marks.append((mono, self._store.head()))
        while self._marks[0][0] <= mono - after_secs:
            self._old = self._marks.popleft()[1]

    def _today(self) -> float:
        """The wall time, unless it was set ahead since we began: no run is as old as that would
        make it.
        """
        now = self._now()
        return min(now.wall, now.mono + self._ahead)

    async def _look(self, ended_before: float) -> None:
        for status in (COMPLETED, CANCELED, ERROR, PURGED):
            below = self._kept_below.get(status, 0)
            before: int | None = None
            while rows := [
                r
                for r in self._store.jobs(status=status, before=before, limit=_PAGE)
                if r.position >= below
            ]:
                if before is None:
                    self._kept_below[status] = rows[0].position + 1
                before = rows[-1].position
                for row in rows:
                    if not self._kept(row, ended_before):
                        self._kept_below[status] = row.position
                await asyncio.sleep(0)

    def _kept(self, row: IndexRow, ended_before: float) -> bool:
        """Purges it if it can be. Is it one that never will be, because of its user's plan?"""
        if row.status == PURGED:
            self._finish(row)
            return False
        if row.ended_at is None or row.ended_at > ended_before or row.position > self._old:
            return False
        entry = self._engine.durable(row.jid)
        run = None if entry is None else entry.job.run
        if run is not None and self._elsewhere(run):
            return True
        self._engine.tell(Purge(row.jid, row.serial, ended_before))
        return run is not None and run.spec.active_plan in self._engine.policy.kept_plans

    def _finish(self, row: IndexRow) -> None:
        """A crash may have come between the decision, the directory's new name, and its end."""
        uid, sid, model = split_jid(row.jid)
        run_dir = os.path.join(self._user_root, uid, row.simulation_type, sid, model)
        doomed = _doomed(run_dir, row.serial)
        if os.path.lexists(doomed):
            self._erase(doomed)
        job = self._engine.world.jobs.get(row.jid)
        if os.path.lexists(run_dir) and (
            job is None or (job.run is not None and job.run.serial == row.serial)
        ):
            self.remove(run_dir, row.serial)


def _doomed(run_dir: str, serial: int) -> str:
    """What a directory is called that nobody shall find any more."""
    folder, name = os.path.split(run_dir)
    return os.path.join(folder, f"{_DOOMED}{name}-{serial}")


def _jid(path: str) -> str:
    """The compute job whose run directory this is, under either name."""
    uid, _, sid, model = path.split("/")[-_DEPTH:]
    return f"{uid}-{sid}-{model.removeprefix(_DOOMED).rpartition('-')[0] if model.startswith(_DOOMED) else model}"
