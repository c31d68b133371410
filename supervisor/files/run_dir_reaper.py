"""Removal of old run directories and of the evidence of their executions: a periodic search, and the
removal itself.

The core decides which run is purged. The directory is renamed at once, in the order of effects, so
that a newer run in the same place is never touched. The folder of an execution has a name of its own
for ever. Removal is slow and runs in separate threads.
Users' jobs may change the folders on the path; `safe_paths` ensures that nothing outside them is
touched.
"""

import asyncio
import contextlib
import errno
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ...db.events.state import Run
from ...db.store.contract import EventStore, IndexRow
from ...protocol.ids import AgentKey, Token, split_jid
from ...protocol.jobs.status import CANCELED, COMPLETED, ERROR, PURGED
from ...runtime import failpoints
from ...runtime.log.logger import Log
from ..core.interface.inputs import Now, Purge
from ..core.runs.retention import executions
from ..engine.decision_loop import Engine
from .evidence_files import remove_evidence
from .safe_paths import open_folder, remove

_PAGE = 64
#: Name prefix of directories to be removed. The dot hides them from listings of the user's
#: simulations.
_PREFIX = ".purged-"
#: Concurrent removals, and the time limit of one removal before other directories have their turn.
_AT_ONCE, _TURN_SECS = 2, 900.0
#: Time limit for running removals when the supervisor stops.
_CLOSE_SECS = 5.0
#: Folder of the executions of an agent.
_EVIDENCE = "run"
#: `<uid>/<simulationType>/<simulationId>/<computeModel>`
_DEPTH = 4
_IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)


class RunDirReaper:
    """Finds and removes old run directories. One per process. after_secs: age at which a run is
    purged; None: never.
    """

    def __init__(
        self,
        engine: Engine,
        store: EventStore,
        log: Log,
        now: Callable[[], Now],
        *,
        user_root: str,
        agents_root: str,
        after_secs: float | None,
        every_secs: float,
        elsewhere: Callable[[Run], bool] = lambda run: False,
    ) -> None:
        """agents_root: the folders of the agents of this machine. elsewhere: returns whether a run's
        directory is on a file system that this machine does not see. The user removes such a
        directory, and the run is not marked as purged.
        """
        self._elsewhere, self._agents_root = elsewhere, agents_root
        self._engine, self._store, self._log, self._now = engine, store, log, now
        self._user_root, self._after_secs, self._every_secs = user_root, after_secs, every_secs
        #: By status: all runs below this position were inspected. They are kept because of their
        #: plan and are not read again.
        self._kept_below: dict[str, int] = {}
        #: Runs changed after this position are not old, whatever their wall time. `_marks` has
        #: (monotonic time, position) of later rounds.
        self._old = 2**62
        self._marks: deque[tuple[float, int]] = deque()
        self._task: asyncio.Task[None] | None = None
        #: By temporary name of the directory.
        self._removing: dict[str, asyncio.Task[None]] = {}
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="purge")
        self._until = float("inf")
        #: called with the path of a directory whose removal has ended
        self.removed: Callable[[str], None] = lambda path: None

    def start(self) -> None:
        now = self._now()
        self._ahead, self._old = now.wall - now.mono, self._store.head()
        if self._after_secs is not None:
            self._task = asyncio.get_running_loop().create_task(
                self._search_periodically(self._after_secs)
            )

    async def close(self) -> None:
        """Stop. Running removals get a short time limit; the directories that remain are already
        renamed.
        """
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._until = time.monotonic() + _CLOSE_SECS
        await asyncio.gather(*self._removing.values())
        self._threads.shutdown()

    def remove(
        self, run_dir: str, serial: int, executed: Sequence[tuple[AgentKey, Token]] = ()
    ) -> None:
        """Rename a run directory at once and remove it in the background, with the evidence of these
        executions. A missing directory is no error.
        """
        failpoints.reached("purge.decided")
        evidence = self._evidence(executed)
        temporary = _temporary_name(run_dir, serial)
        try:
            folder = self._folder_of(run_dir)
        except FileNotFoundError:
            self._start_removal(temporary, evidence)
            return
        except OSError as e:
            self._log_failure(run_dir, e)
            return
        try:
            os.rename(
                os.path.basename(run_dir),
                os.path.basename(temporary),
                src_dir_fd=folder,
                dst_dir_fd=folder,
            )
        except FileNotFoundError:
            self._start_removal(temporary, evidence)
            return
        except OSError as e:
            self._log_failure(run_dir, e)
            if e.errno in _IN_THE_WAY:
                self._start_removal(temporary, evidence)
            return
        finally:
            os.close(folder)
        failpoints.reached("purge.renamed")
        self._start_removal(temporary, evidence)

    def _evidence(self, executed: Sequence[tuple[AgentKey, Token]]) -> list[str]:
        """Return the folders of executions, where this machine has them."""
        return [
            os.path.join(self._agents_root, str(key), _EVIDENCE, token.name)
            for key, token in executed
        ]

    def _log_of(self, path: str) -> Log:
        """Return the log of the job with this run directory or evidence."""
        return self._log.bound(jid=_jid(path, self._agents_root))

    def _log_failure(self, path: str, error: OSError) -> None:
        """Log a failed removal. The next round tries again."""
        self._log_of(path)(
            "the run directory {} of a purged run cannot be removed: {}", path, error.strerror
        )

    def _folder_of(self, path: str) -> int:
        """Return a descriptor of the parent folder of a run directory or of evidence. Takes the user
        root from the path: the setting may have changed. Raises OSError.
        """
        parts = path.split("/")
        if path.startswith(self._agents_root + "/"):
            return open_folder(self._agents_root, parts[-3:-1])
        base = "/".join(parts[:-_DEPTH])
        return open_folder(base or "/", parts[-_DEPTH:-1])

    def _start_removal(self, temporary: str, evidence: Sequence[str] = ()) -> None:
        if temporary not in self._removing:
            task = asyncio.get_running_loop().create_task(
                self._remove_all(temporary, tuple(evidence))
            )
            self._removing[temporary] = task
            task.add_done_callback(lambda _: self._removing.pop(temporary))

    async def _remove_all(self, temporary: str, evidence: Sequence[str]) -> None:
        """Remove evidence, then the directory: as long as that exists, the next round continues."""
        for path in evidence:
            await self._remove_in_background(path)
        await self._remove_in_background(temporary)
        self.removed(temporary)

    async def _remove_in_background(self, temporary: str) -> None:
        try:
            gone = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._remove_tree, temporary
            )
        except FileNotFoundError:
            return  # evidence on another machine
        except OSError as e:
            self._log_failure(temporary, e)
            return
        if not gone:
            self._log_of(temporary)(
                "{} is not completely removed yet; the next round continues", temporary
            )

    def _remove_tree(self, temporary: str) -> bool:
        """Remove the directory in a thread. Return whether it is gone."""
        own = time.monotonic() + _TURN_SECS
        folder, name = self._folder_of(temporary), os.path.basename(temporary)
        of_execution = temporary.startswith(self._agents_root + "/")
        try:
            return (remove_evidence if of_execution else remove)(
                folder, name, lambda: time.monotonic() < min(own, self._until)
            )
        finally:
            os.close(folder)

    async def _search_periodically(self, after_secs: float) -> None:
        while True:
            try:
                self._age(after_secs)
                await self._search(self._sane_wall_time() - after_secs)
            except Exception as e:
                # The next round tries again; nothing depends on this one.
                self._log.exception(
                    "the search for runs to purge failed; the next round tries again", error=e
                )
            await asyncio.sleep(self._every_secs)

    def _age(self, after_secs: float) -> None:
        """Measure the age of runs that ended during this process by the monotonic clock: their wall
        time may be wrong if the clock was set meanwhile.
        """
        mono = self._now().mono
        self._marks.append((mono, self._store.head()))
        while self._marks[0][0] <= mono - after_secs:
            self._old = self._marks.popleft()[1]

    def _sane_wall_time(self) -> float:
        """Return the wall time, limited if the clock was set ahead since the start: otherwise all
        runs would look old.
        """
        now = self._now()
        return min(now.wall, now.mono + self._ahead)

    async def _search(self, ended_before: float) -> None:
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
                    if not self._never_purged(row, ended_before):
                        self._kept_below[status] = row.position
                await asyncio.sleep(0)

    def _never_purged(self, row: IndexRow, ended_before: float) -> bool:
        """Purge the run if it is old enough. Return whether it is never purged, because of its
        user's plan or its file system.
        """
        if row.status == PURGED:
            self._finish_removal(row)
            return False
        if row.ended_at is None or row.ended_at > ended_before or row.position > self._old:
            return False
        entry = self._engine.durable(row.jid)
        run = None if entry is None else entry.job.run
        if run is not None and self._elsewhere(run):
            return True
        self._engine.tell(Purge(row.jid, row.serial, ended_before))
        return run is not None and run.spec.active_plan in self._engine.policy.kept_plans

    def _finish_removal(self, row: IndexRow) -> None:
        """Complete a removal that a crash interrupted between decision, rename and removal."""
        uid, sid, model = split_jid(row.jid)
        run_dir = os.path.join(self._user_root, uid, row.simulation_type, sid, model)
        temporary = _temporary_name(run_dir, row.serial)
        renamed, there = os.path.lexists(temporary), os.path.lexists(run_dir)
        if not (renamed or there):
            return
        entry = self._engine.durable(row.jid)
        run = None if entry is None else entry.job.run
        own = executions(run) if run is not None and run.serial == row.serial else ()
        if renamed:
            self._start_removal(temporary, self._evidence(own))
        job = self._engine.world.jobs.get(row.jid)
        if there and (job is None or (job.run is not None and job.run.serial == row.serial)):
            self.remove(run_dir, row.serial, own)


def _temporary_name(run_dir: str, serial: int) -> str:
    """Return the temporary name of a directory that is to be removed."""
    folder, name = os.path.split(run_dir)
    return os.path.join(folder, f"{_PREFIX}{name}-{serial}")


def _jid(path: str, agents_root: str) -> str:
    """Return the compute job of evidence or of a run directory, from its normal or its temporary
    name.
    """
    if path.startswith(agents_root + "/"):
        return "-".join(os.path.basename(path).split("-")[:3])
    uid, _, sid, model = path.split("/")[-_DEPTH:]
    return f"{uid}-{sid}-{model.removeprefix(_PREFIX).rpartition('-')[0] if model.startswith(_PREFIX) else model}"
