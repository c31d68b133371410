"""The program of a warm worker: a job that runs one call after the other until it is idle.

It never unpickles; `call_process` runs the functions. A batch is accepted, and a call may begin,
only when that is on disk. After a restart of the job, no call begins a second time.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from .. import runner
from . import call_files
from .call_files import Call
from .journal import Journal, open_private, private_folder, sync_folder, write_all
from .process import Process, death, memory_kills

#: Seconds between two looks for batches, by the seconds since the last batch or outcome.
_PAUSES = ((0.2, 0.001), (3.0, 0.005), (30.0, 0.02))
_LONGEST_PAUSE = 0.1
#: Sentence about a call that had begun when its worker was restarted.
LOST = "its worker was stopped and started again while the call may have run"
#: Sentence about an accepted call whose batch is not there after a restart.
MISSING = "its arguments were lost while its worker was stopped and started again"
EXIT_DISK = 74
#: How long the process of functions may take to end when the worker does.
_FINISH_SECS = 2.0


class Worker:
    """The loop. idle_secs: it ends after this time without calls."""

    def __init__(self, boot: str, place: str, idle_secs: float) -> None:
        self._boot, self._place, self._idle_secs = boot, place, idle_secs
        self._inbox = os.path.join(place, call_files.INBOX)
        self._boot_id = _boot_id()
        self._waiting: deque[Call] = deque()
        self._functions: dict[bytes, bytes] = {}
        self._frames: list[call_files.Frame] = []
        #: calls of a batch without a durable outcome; outcomes in the group that is being stored
        self._open: dict[int, set[int]] = {}
        self._settled: list[Call] = []
        self._storing: list[Call] = []
        self._storing_to = 0
        self._kept: set[int] = set()
        self._next_batch, self._accepted = 1, 0
        self._granted = self._grant_stored = 0
        self._running: Call | None = None
        self._kills = 0
        self._ending = False
        self._last = self._looked = time.monotonic()
        self._process: Process | None = None
        private_folder(self._inbox)
        self._journal = Journal(os.path.join(place, call_files.OUTCOMES))
        self._begun = open_private(os.path.join(place, call_files.BEGUN), os.O_RDWR)
        self._recover(os.path.join(place, call_files.OUTCOMES))
        sync_folder(place)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._journal.wake, selectors.EVENT_READ)

    def run(self) -> int:
        self._frames.insert(0, ({"kind": "ready", "pid": os.getpid()}, b""))
        self._store_now()
        self._start()
        while not self._idle():
            ready = {key.fd for key, _ in self._selector.select(self._pause())}
            self._step(ready)
        if self._process is not None:
            self._process.finish(_FINISH_SECS)
        return 0

    def _step(self, ready: set[int]) -> None:
        process = self._process
        if process is not None and ready & {process.answers, process.ended}:
            self._answered(process)
        if time.monotonic() - self._looked >= 0.001:
            self._look()
        if self._journal.finished():
            self._stored()
            if self._frames:
                self._store()
        self._dispatch()

    # ---- batches

    def _look(self) -> None:
        """Accept the batches that arrived."""
        self._looked = time.monotonic()
        names = set(os.listdir(self._inbox))
        if call_files.batch_name(self._next_batch) not in names:
            return
        # the agent synced the files, but not their names
        sync_folder(self._inbox)
        while call_files.batch_name(self._next_batch) in names:
            for number in self._batch(self._next_batch, set()):
                self._cancel(number)
            frame = {"kind": "accepted", "batch": self._next_batch, "last": self._accepted}
            self._frames.append((frame, b""))
            self._open.setdefault(self._next_batch, set())
            self._next_batch += 1
            self._last = self._looked

    def _batch(self, number: int, done: set[int]) -> list[int]:
        """Queue the calls of a batch except those in `done`. Return the calls to cancel.

        A damaged batch changes nothing; an outcome refuses it. Raises OSError.
        """
        fd = open_private(os.path.join(self._inbox, call_files.batch_name(number)), os.O_RDONLY)
        with open(fd, "rb") as file:
            data = file.read()
        try:
            batch = call_files.read_batch(data, number, set(self._functions))
        except ValueError as e:
            text = f"batch {number} of calls is damaged: {e}"
            runner.say(f"jobscribe: {text}")
            self._frames.append(({"kind": "refused", "batch": number, "text": text}, b""))
            return []
        if batch.functions:
            self._kept.add(number)
        self._functions.update(batch.functions)
        self._ending = self._ending or batch.end
        for call in batch.calls:
            self._accepted = max(self._accepted, call.number)
            if call.number not in done:
                self._waiting.append(call)
                self._open.setdefault(number, set()).add(call.number)
        return batch.cancel

    def _cancel(self, number: int) -> None:
        for call in self._waiting:
            if call.number == number:
                self._waiting.remove(call)
                self._settle(call, {"kind": "canceled"}, b"")
                return
        self._frames.append(({"kind": "late", "call": number}, b""))

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._inbox, name))

    # ---- calls

    def _dispatch(self) -> None:
        """Give the next call to the process, if that the call may begin is on disk."""
        if self._running is not None or not self._waiting:
            return
        call = self._waiting[0]
        if call.number > self._grant_stored:
            if not self._journal.busy:
                self._store()
            return
        if self._process is None:
            self._start()
        assert self._process is not None
        self._running = self._waiting.popleft()
        self._kills = memory_kills()
        os.pwrite(self._begun, call_files.begun(call.number, self._boot_id), 0)
        self._process.send(call, self._functions)

    def _answered(self, process: Process) -> None:
        answer = process.answer()
        call, self._running = self._running, None
        if answer is None:
            self._forget_process()
            if call is not None:
                text = death(process.end(), memory_kills() > self._kills)
                runner.say(f"jobscribe: {text}")
                self._settle(call, {"kind": "crashed", "text": text}, b"")
            else:
                process.end()
        elif call is not None:
            self._settle(call, json.loads(answer[0]), answer[1])

    def _settle(self, call: Call, outcome: dict[str, Any], body: bytes) -> None:
        self._frames.append(({**outcome, "call": call.number}, body))
        self._settled.append(call)
        self._last = time.monotonic()

    def _start(self) -> None:
        self._process = Process(self._boot, self._place)
        for fd in (self._process.answers, self._process.ended):
            self._selector.register(fd, selectors.EVENT_READ)

    def _forget_process(self) -> None:
        assert self._process is not None
        for fd in (self._process.answers, self._process.ended):
            self._selector.unregister(fd)
        self._process = None

    # ---- the journal

    def _store(self) -> None:
        """Begin to store all frames, and permission for the next calls."""
        self._journal.begin(self._group())

    def _store_now(self) -> None:
        self._journal.append(self._group())
        self._stored()

    def _group(self) -> bytes:
        number = self._waiting[0].number if self._waiting else self._accepted + 1
        self._granted = max(self._granted, min(self._accepted, number + call_files.GRANT))
        frames = [*self._frames, ({"kind": "grant", "to": self._granted}, b"")]
        self._storing, self._settled, self._frames = self._settled, [], []
        self._storing_to = self._next_batch - 1
        return call_files.group(frames)

    def _stored(self) -> None:
        """Note that the group is durable. Remove batches whose calls all have an outcome."""
        self._grant_stored = self._granted
        for call in self._storing:
            self._open[call.batch].discard(call.number)
        for batch in [b for b, left in self._open.items() if not left and b <= self._storing_to]:
            del self._open[batch]
            # a later attempt needs the functions that other batches use
            if batch not in self._kept:
                self._remove(call_files.batch_name(batch))
        self._storing = []

    def _recover(self, path: str) -> None:
        """Continue after an earlier attempt of this job. Calls that may have begun are lost.
        Raises OSError, ValueError (damaged).
        """
        with open(path, "rb") as file:
            found = call_files.recovered(file.read())
        self._journal.repair(found.size, found.committed)
        self._accepted, self._granted = found.accepted, found.granted
        self._next_batch = max(found.batches, default=0) + 1
        for batch, numbers in found.batches.items():
            try:
                self._batch(batch, found.done)
            except FileNotFoundError:
                for number in set(numbers) - found.done:
                    self._frames.append(({"kind": "lost", "text": MISSING, "call": number}, b""))
        self._give_up(self._begun_before())

    def _give_up(self, begun: Iterable[int]) -> None:
        lost = set(begun)
        for call in [c for c in self._waiting if c.number in lost]:
            self._waiting.remove(call)
            self._settle(call, {"kind": "lost", "text": LOST}, b"")

    def _begun_before(self) -> Iterable[int]:
        """Return the calls that may have begun in an earlier attempt."""
        number, boot = call_files.read_begun(os.pread(self._begun, 4096, 0))
        # the file is not synced, so after a power cut or on another host it may be old
        return (number,) if boot == self._boot_id else range(1, self._granted + 1)

    # ---- time

    def _pause(self) -> float:
        """Return how long to wait for the process and the disk before the next look for batches."""
        silent = time.monotonic() - self._last
        return next((pause for secs, pause in _PAUSES if silent < secs), _LONGEST_PAUSE)

    def _idle(self) -> bool:
        if self._waiting or self._running or self._frames or self._journal.busy:
            return False
        return self._ending or time.monotonic() - self._last > self._idle_secs


def main(words: list[str]) -> int:
    """Run a worker. words: Python and cloudpickle of the client, seconds of idle time."""
    python, cloudpickle, idle_secs = words
    place = os.environ.get("JOBSCRIBE_RUN_DIR") or os.getcwd()
    try:
        runner.check({"python": python, "cloudpickle": cloudpickle})
    except ValueError as e:
        runner.say(f"jobscribe: {e}")
        frames: list[call_files.Frame] = [({"kind": "refused", "text": str(e)}, b"")]
        fd = open_private(os.path.join(place, call_files.OUTCOMES), os.O_WRONLY | os.O_TRUNC)
        write_all(fd, call_files.group(frames) + call_files.COMMIT)
        return runner.REFUSED
    try:
        boot = sys.orig_argv[sys.orig_argv.index("-c") + 1]
        return Worker(boot, place, float(idle_secs)).run()
    except OSError as e:
        runner.say(f"jobscribe: the worker cannot write its files: {e}")
        return EXIT_DISK
    except call_files.Damaged as e:
        runner.say(f"jobscribe: the worker cannot go on: {e}")
        return EXIT_DISK


def _boot_id() -> str:
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""
