"""The writer thread that all SQL stores share: it takes pending batches in groups, has them
committed, and reports them in the order of the appends.

A failed commit refuses the group and everything appended before `resumed`. After an error that
leaves the state of the log unknown, the writer is `dead`. Encoding and callbacks run in the owner's
thread.
"""

import queue
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Generic, TypeVar

from ...protocol.errors import Refusal
from ..store.contract import Appended, Deliver, Done, Stored
from ..store.group_commit import CommitGroup, Listener, PendingBatch, Point, notify_listeners
from ..store.head_file import DurablePosition

#: Maximum number of events in one transaction. Larger groups delay other batches and are hardly
#: faster.
GROUP = 2048
#: Number of cached stream versions; others are read from the log.
VERSIONS_KEPT = 20_000

#: A task of the thread other than a batch.
Task = TypeVar("Task")


class CommitThread(ABC, Generic[Task]):
    """The owner's thread calls `put`, `resumed` and `stopped`; everything else runs in the
    writer's own thread, which `start` begins.
    """

    def __init__(
        self, head: DurablePosition, deliver: Deliver, listeners: list[Listener], point: Point
    ) -> None:
        self._deliver, self._listeners, self._point = deliver, listeners, point
        self._log = head
        #: position up to which everything is durable
        self.head = head.position
        self._versions: OrderedDict[str, int] = OrderedDict()
        self._queue: queue.SimpleQueue[PendingBatch | Task | None] = queue.SimpleQueue()
        self._task_next: Task | None = None
        #: batches of this era and earlier ones are refused
        self._failed_era = -1
        self._failure = Refusal("storageUnavailable", "")
        self.dead: Refusal | None = None
        self._undelivered: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="event store", daemon=True)

    # ---- the owner's thread

    def start(self) -> None:
        self._thread.start()

    def put(self, item: PendingBatch | Task) -> None:
        self._queue.put(item)

    def resumed(self, era: int) -> int:
        """Return the era from which batches are accepted again, which is `era` if nothing failed in
        it. Raises Refusal.
        """
        if self.dead is not None:
            raise self.dead
        return max(era, self._failed_era + 1)

    def stopped(self) -> Refusal | None:
        """Write pending batches and end the thread. Returns the refusal if the log must not be
        touched any more.
        """
        self._queue.put(None)
        self._thread.join()
        return self.dead

    # ---- its own thread

    @abstractmethod
    def _store(self, group: CommitGroup) -> None:
        """Commit the group. Raises any error; the group is then not in the log, or the writer is
        `dead`.
        """

    @abstractmethod
    def _look_up(self, streams: list[str]) -> list[tuple[str, int]]:
        """Return the versions of those of these streams that have events."""

    @abstractmethod
    def _witness(self, log: DurablePosition) -> None:
        """Write the head file; the position is visible to every process on return. Raises any
        error.
        """

    @abstractmethod
    def _undone(self, error: Exception) -> bool:
        """Return whether the log is as it was before the failed commit, and a retry is allowed."""

    @abstractmethod
    def _maintain(self) -> None:
        """Do due maintenance, after the callbacks. Raises nothing."""

    @abstractmethod
    def _perform(self, task: Task) -> None:
        """Do a task between two commits. Raises nothing."""

    @abstractmethod
    def _described(self, error: Exception) -> str:
        """Return the text of an error."""

    def _idle(self) -> float | None:
        """Keep what must be kept while nothing is written. Return when to be called again, in
        seconds; None: never.
        """
        return None

    def _finish(self) -> None:
        """Do the last step of the thread, unless the writer is `dead`. Raises nothing."""
        return

    def _run(self) -> None:
        going = True
        while going:
            batches, going = self._next()
            if batches:
                self._write(batches)
                if self.dead is None:
                    self._maintain()
            if self._task_next is not None:
                task, self._task_next = self._task_next, None
                self._perform(task)
        if self.dead is None:
            self._finish()

    def _next(self) -> tuple[list[PendingBatch], bool]:
        """Return pending batches up to the group size; False after the last one."""
        batches: list[PendingBatch] = []
        size = 0
        wait = self._idle() if self.dead is None else None
        try:
            while size < GROUP:
                item = self._queue.get(block=not batches, timeout=None if batches else wait)
                if item is None:
                    return batches, False
                if not isinstance(item, PendingBatch):
                    self._task_next = item
                    return batches, True
                batches.append(item)
                size += max(1, item.size)
        except queue.Empty:
            pass
        return batches, True

    def _write(self, batches: list[PendingBatch]) -> None:
        late = [b for b in batches if b.era <= self._failed_era]
        results: list[tuple[Done, Appended | Refusal]] = [(b.done, self._failure) for b in late]
        events: list[Stored] = []
        fresh = batches[len(late) :]
        if fresh:
            try:
                group = self._commit(fresh)
                results, events = results + group.results, group.events
            except Exception as e:
                self._failed(e, max(b.era for b in fresh))
                results += [(b.done, self._failure) for b in fresh]
        self._report(events, results)

    def _report(self, events: list[Stored], results: list[tuple[Done, Appended | Refusal]]) -> None:
        try:
            self._deliver(lambda: notify_listeners(self._listeners, events, results))
            self._point("delivered")
        except Exception as e:
            # the owner's event loop is gone; still write the pending batches
            self._undelivered = e

    def _commit(self, batches: list[PendingBatch]) -> CommitGroup:
        """Commit the batches and return the group with its results. Raises any error; a conflict
        refuses only its own batch.
        """
        if self.dead is not None:
            raise self.dead
        self._point("taken")
        streams = {w[0] for b in batches for w in b.writes if w[0] not in self._versions}
        if streams:
            self._versions.update(self._look_up(sorted(streams)))
        group = CommitGroup(
            self._log.position, self._log.checksum, lambda stream: self._versions.get(stream, 0)
        )
        for batch in batches:
            group.admit(batch)
        if group.empty:
            return group
        self._store(group)
        self._log = DurablePosition(group.position, group.checksum)
        self._versions.update(group.versions)
        for stream in group.versions:
            self._versions.move_to_end(stream)
        while len(self._versions) > VERSIONS_KEPT:
            self._versions.popitem(last=False)
        try:
            self._point("committed")
            if group.rows:
                self._witness(self._log)
            self._point("witnessed")
        except Exception as e:
            self._head_file_failed(e)
            raise
        self.head = self._log.position
        return group

    # ---- failures

    def _failed(self, error: Exception, era: int) -> None:
        if self.dead is None:
            sentence = f"the event store cannot be written: {self._described(error)}"
            if not self._undone(error):
                self._die(sentence)
            else:
                self._failure = Refusal("storageUnavailable", sentence)
        if self.dead is not None:
            self._failure = self.dead
        #: set last, because another thread reads it in `resumed`
        self._failed_era = max(era, self._failed_era)

    def _head_file_failed(self, error: Exception) -> None:
        self._die(f"the head file of the event store cannot be written: {self._described(error)}")

    def _die(self, sentence: str, code: str = "storageUnavailable") -> None:
        self.dead = Refusal(
            code,
            sentence + "; nothing is written until you restart the supervisor",
        )
