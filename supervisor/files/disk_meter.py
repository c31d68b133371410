"""The background task that measures the disk usage of users: a part at the end of each run in it, and
everything of each user from time to time.

One thread measures, one folder after the other. No request waits for it. The sums are in one file,
so that quotas apply right after a restart; then every user is measured again.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from ...db.events.state import Job
from ...protocol.errors import Refusal
from ...protocol.ids import parse, parse_agent_key, split_jid
from ...runtime.filesystems import write_atomically
from ...runtime.log.logger import Log
from .disk_usage import EVIDENCE, DiskUsage
from .disk_walk import Size, Stopped, Walk

#: Interval of complete measurements, at least; and how much longer than one it is at least.
EVERY_SECS, REST_FACTOR = 900.0, 20.0
#: Time from the start of the supervisor to the first measurement.
FIRST_SECS = 1.0
#: Time in which changed parts are collected, to be measured together.
COLLECT_SECS = 0.25
#: A folder that was just measured is measured again after this time, and after this multiple of the
#: time that it took, at the earliest: the end of each run of an array changes the same folder.
PART_SECS, PART_FACTOR = 2.0, 20.0
#: Parts measured by one call of the thread, and parts whose last measurement is remembered.
BATCH, MAX_MEASURED = 256, 10_000
#: A user who was just refused is measured again after this time, at the earliest.
AGAIN_SECS = 10.0
#: Interval in which changed sums are stored.
STORE_SECS = 5.0
#: Executions whose evidence was counted, so that none counts twice.
MAX_COUNTED = 10_000
_RUN = "run"

T = TypeVar("T")
#: uid, and the name of a part of the user's files
Part = tuple[str, str]


class DiskMeter:
    """Measures users' files and answers what quotas say. One per process.

    user_root, agents_root: folders of users and of agents. mono, wall: clocks.
    """

    def __init__(
        self,
        usage: DiskUsage,
        log: Log,
        path: Path,
        *,
        user_root: str,
        agents_root: str,
        mono: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.usage, self._log, self._path = usage, log, path
        self._user_root, self._agents_root = user_root, agents_root
        self._mono, self._wall = mono, wall
        #: parts to measure, and users to measure as a whole, with the earliest time
        self._parts: dict[Part, float] = {}
        #: earliest time of the next measurement of parts that were measured, the oldest first
        self._rested: dict[Part, float] = {}
        self._whole: dict[str, float] = {}
        self._looked: dict[str, float] = {}
        #: serial of the last run of a job whose end was seen
        self._counted: dict[tuple[str, int], None] = {}
        self._wake = asyncio.Event()
        self._changed, self._stored_at = False, 0.0
        self._task: asyncio.Task[None] | None = None
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="disk")

    def start(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            try:
                self.usage.restore(self._path.read_bytes())
            except (msgspec.DecodeError, OSError) as e:
                if isinstance(e, FileNotFoundError):
                    raise
                self._log("{} cannot be read, and is made anew: {}", str(self._path), str(e))
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        self._stop.set()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._store()
        self._threads.shutdown()

    def sizes(self) -> dict[str, int]:
        return {
            "parts": len(self._parts),
            "rested": len(self._rested),
            "whole": len(self._whole),
            "users": len(self.usage.users),
            "counted": len(self._counted),
        }

    # ---- what changes

    def ended(self, job: Job) -> None:
        """Measure the simulation of a job whose run has ended, and the evidence of that run."""
        run = job.run
        if run is None or run.busy:
            return
        if (key := (job.jid, run.serial)) in self._counted:
            return
        self._counted[key] = None
        while len(self._counted) > MAX_COUNTED:
            del self._counted[next(iter(self._counted))]
        uid, sid, _ = split_jid(job.jid)
        self.changed(uid, f"{run.spec.simulation_type}/{sid}")
        for attempt in run.attempts:
            for task in attempt.tasks:
                folder = f"{EVIDENCE}/{task.agent_key}/{_RUN}/{task.token.name}"
                self.changed(uid, folder)

    def changed(self, uid: str, part: str) -> None:
        """Measure a part of a user's files soon: something was stored in it or removed from it."""
        self._parts.setdefault((uid, part), self._rested.get((uid, part), 0.0))
        self._wake.set()

    def removed(self, run_dir: str) -> None:
        """Measure the user of a run directory that was removed with its evidence."""
        uid = run_dir.split("/")[-4]
        if _is_uid(uid):
            self.look_again(uid)

    def look_again(self, uid: str) -> None:
        """Measure a user as a whole soon, but not in short intervals."""
        now = self._mono()
        due = max(now, self._looked.get(uid, -AGAIN_SECS) + AGAIN_SECS)
        self._whole[uid] = min(due, self._whole.get(uid, due))
        self._wake.set()

    # ---- quotas

    def refusal(self, uid: str, plan: str | None) -> Refusal | None:
        """Return why a user may start no new run, or None. A user who is refused is measured again:
        files may have been removed.
        """
        refusal = self.usage.refusal(uid, plan)
        if refusal is not None:
            self.look_again(uid)
        return refusal

    def reserve(self, uid: str, size: int) -> None:
        """See `DiskUsage.reserve`."""
        try:
            self.usage.reserve(uid, size)
        except Refusal:
            self.look_again(uid)
            raise

    def unreserve(self, uid: str, size: int) -> None:
        self.usage.unreserve(uid, size)

    def uploaded(self, uid: str, part: str, size: int) -> str | None:
        """Count a file that was stored, at once. Return a warning for the reply, if there is one."""
        self.usage.grow(uid, part, Size(size, 1))
        self._changed = True
        self.changed(uid, part)
        return self.usage.warning(uid)

    # ---- the task

    async def _run(self) -> None:
        await asyncio.sleep(FIRST_SECS)
        next_pass = self._mono()
        while not self._stop.is_set():
            self._wake.clear()  # before it looks for changes, so that none is missed
            try:
                if self._mono() >= next_pass:
                    begun = self._mono()
                    await self._find_users()
                    while self._due():
                        await self._measure_next()
                    took = self._mono() - begun
                    next_pass = self._mono() + max(EVERY_SECS, REST_FACTOR * took)
                elif self._due():
                    await self._wait_until_collected()
                    await self._measure_next()
                else:
                    await self._store_in_time()
                    await self._wait(next_pass - self._mono())
            except Stopped:
                return
            except Exception as e:
                # the next pass measures again; nothing else depends on this one
                self._log.exception("the disk usage of users was not measured", error=e)
                await asyncio.sleep(STORE_SECS)

    async def _wait_until_collected(self) -> None:
        """Wait for the ends of other runs, unless only whole users are due."""
        now = self._mono()
        if any(due <= now for due in self._parts.values()):
            await asyncio.sleep(COLLECT_SECS)

    async def _wait(self, secs: float) -> None:
        """Wait for the next change, the time of a user, or the time to store the sums."""
        times = (*self._whole.values(), *self._parts.values())
        waits = [secs, *(due - self._mono() for due in times)]
        if self._changed:
            waits.append(STORE_SECS)
        # not wait_for, which may lose a cancellation that comes together with a change
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.01, min(waits))):
                await self._wake.wait()

    def _due(self) -> bool:
        now = self._mono()
        return any(due <= now for due in (*self._parts.values(), *self._whole.values()))

    async def _measure_next(self) -> None:
        await self._store_in_time()
        self._changed = True
        now = self._mono()
        parts = [part for part, due in self._parts.items() if due <= now][:BATCH]
        if parts:
            for part in parts:
                del self._parts[part]
            for part, size, took in await self._walk(partial(self._sizes, parts)):
                self._measured(part, size, took)
            return
        uid = next(uid for uid, due in self._whole.items() if due <= now)
        del self._whole[uid]
        self._looked[uid] = now
        await self._measure_user(uid)

    def _sizes(self, parts: Sequence[Part], walk: Walk) -> list[tuple[Part, Size, float]]:
        """Return the sizes of parts, and how long each took."""
        out = []
        for uid, part in parts:
            begun, words = self._mono(), part.split("/")
            size = (
                walk.size(self._agents_root, words[1:])
                if words[0] == EVIDENCE
                else walk.size(self._user_root, (uid, *words))
            )
            out.append(((uid, part), size, self._mono() - begun))
        return out

    def _measured(self, part: Part, size: Size, took: float) -> None:
        uid, name = part
        if name.startswith(EVIDENCE + "/"):
            self.usage.grow(uid, EVIDENCE, size)
            return
        self._rested.pop(part, None)
        self._rested[part] = self._mono() + max(PART_SECS, PART_FACTOR * took)
        if len(self._rested) > MAX_MEASURED:
            del self._rested[next(iter(self._rested))]
        if not self.usage.measured_part(uid, name, size):
            self.look_again(uid)

    async def _measure_user(self, uid: str) -> None:
        ended = [p for u, p in self._parts if u == uid and p.startswith(EVIDENCE + "/")]
        parts, rest = await self._walk(partial(self._all_parts, uid))
        for part in ended:  # counted now, with all evidence of the user
            self._parts.pop((uid, part), None)
        if not parts and not rest.bytes:
            self.usage.forget(uid)
            return
        self.usage.measured(uid, parts, rest, self._wall())

    def _all_parts(self, uid: str, walk: Walk) -> tuple[dict[str, Size], Size]:
        """Return the sizes of the parts of a user, and of everything beside them."""
        parts: dict[str, Size] = {}
        types, rest = walk.folders(self._user_root, (uid,))
        for type_ in types:
            names, beside = walk.folders(self._user_root, (uid, type_))
            rest += beside
            for name in names:
                parts[f"{type_}/{name}"] = walk.size(self._user_root, (uid, type_, name))
        evidence = [
            walk.size(self._agents_root, (key,)) for key in self._agents() if _user_of(key) == uid
        ]
        if evidence:
            parts[EVIDENCE] = sum(evidence, Size())
        return parts, rest

    async def _find_users(self) -> None:
        """Let all users be measured who have files, or had some."""
        found = await self._walk(self._users)
        now = self._mono()
        for uid in sorted(found | self.usage.users.keys()):
            self._whole.setdefault(uid, now)
        self._looked = {uid: at for uid, at in self._looked.items() if at > now - EVERY_SECS}

    def _users(self, walk: Walk) -> set[str]:
        names, _ = walk.folders(self._user_root, ())
        agents = {_user_of(key) for key in self._agents()}
        return {uid for uid in (*names, *agents) if uid is not None and _is_uid(uid)}

    def _agents(self) -> list[str]:
        try:
            return sorted(os.listdir(self._agents_root))
        except OSError:
            return []

    async def _walk(self, measure: Callable[[Walk], T]) -> T:
        walk = Walk(lambda: not self._stop.is_set(), rest=self._stop.wait)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, measure, walk)

    async def _store_in_time(self) -> None:
        if self._changed and self._mono() >= self._stored_at + STORE_SECS:
            await asyncio.to_thread(write_atomically, str(self._path), self._take())

    def _take(self) -> bytes:
        self._changed, self._stored_at = False, self._mono()
        return self.usage.stored()

    def _store(self) -> None:
        if not self._changed:
            return
        try:
            write_atomically(str(self._path), self._take())
        except OSError as e:
            self._log("{} was not written: {}", str(self._path), str(e))


def _user_of(key: str) -> str | None:
    """Return the user of an agent's folder; None for another name."""
    try:
        return parse_agent_key(key).uid
    except Refusal:
        return None


def _is_uid(name: str) -> bool:
    try:
        parse("uid", name)
    except Refusal:
        return False
    return True
