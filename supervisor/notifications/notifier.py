"""All notification targets: created from the operator's file, woken by the log, saved in one small
file.

Deliveries that are not saved yet are repeated after a restart with the same id. A full disk stops
nothing: deliveries continue with state in memory, and a log line says so. Without a file of targets
nothing here runs.
"""

import asyncio
import contextlib
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...db.store.contract import EventStore, Stored
from ...protocol.errors import Refusal
from ...protocol.redaction import Redactor, is_secret
from ...runtime.clock import Clock
from ...runtime.log.logger import Log
from ...runtime.one_shot_thread import in_thread
from ...service.settings.settings import Settings
from ...service.site.notification_file import Target, headers_of, load, secret_of
from ..process.counters import Counters
from ..process.root_directory import RootDirectory
from .command_sender import Program
from .cursor_store import CursorStore
from .delivery_queue import Queue, SavedTarget
from .delivery_worker import DeliveryWorker, WorkerContext
from .event_reader import History
from .messages import Why, why_ended
from .sender import Sender
from .webhook_sender import Webhook

#: Minimum time between two writes of the file, and maximum delay for saving a cursor without
#: deliveries.
MIN_WRITE_GAP_SECS, LAZY_WRITE_SECS = 0.05, 30.0
#: Pause between attempts while the file cannot be written.
FULL_SECS = 2.0
#: Time limit for running deliveries and writes when the supervisor stops.
CLOSE_SECS = 3.0
#: Minimum lengths of header values and of their words that are always redacted.
_LONG, _WORD = 16, 8


class Notifications:
    """All targets and their workers. One per process."""

    def __init__(
        self,
        settings: Settings,
        root: RootDirectory,
        store: EventStore,
        log: Log,
        counters: Counters,
        redactor: Redactor,
        clock: Clock,
        why: Why = why_ended,
    ) -> None:
        self._file, self._store, self._log, self._counters, self._redactor = (
            settings.notify.file,
            store,
            log,
            counters,
            redactor,
        )
        self._clock, self._cursors = clock, CursorStore(root.path)
        self._kept: dict[str, SavedTarget] = {}
        self._context = WorkerContext(
            History(store), log, counters, redactor, clock, why, self._changed
        )
        self.workers: list[DeliveryWorker] = []
        self._dirty, self._moved = asyncio.Event(), False
        self._unwritten: str | None = None
        self._writer: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] = lambda: None

    def _sender(self, target: Target) -> Sender:
        if target.url is None:
            return Program(target, redactor=self._redactor)
        headers, secret = headers_of(target), secret_of(target)
        for value in (*_secrets(headers), *([secret] if secret is not None else [])):
            self._redactor.add(value)
        return Webhook(
            target, secret=secret, headers=headers, redactor=self._redactor, wall=self._clock.wall
        )

    # ---- lifecycle

    def start(self) -> None:
        """Start all workers. Raises Refusal if the file of targets or the saved state cannot be
        read.
        """
        if self._file is None:
            return
        targets, self._kept = load(self._file), self._cursors.read()
        senders = [self._sender(target) for target in targets]
        now, wall, head = self._clock.monotonic(), self._clock.wall(), self._store.head()
        for target, sender in zip(targets, senders, strict=True):
            queue = Queue(
                self._kept.get(target.name, SavedTarget(cursor=head)),
                now=now,
                wall=wall,
                give_up_secs=target.give_up_secs,
                parallel=target.max_parallel,
                jitter=random.random,
            )
            self.workers.append(DeliveryWorker(target, queue, sender, self._context))
        for name in self._kept.keys() - {t.name for t in targets}:
            self._log(
                "{} is not a target any more: its {} pending notifications are dropped",
                name,
                len(self._kept[name].waiting),
            )
        self._counters.measure(notify=self.sizes)
        self._unlisten = self._store.listen(self._wake_workers)
        for worker in self.workers:
            worker.start()
        self._writer = asyncio.get_running_loop().create_task(self._write_loop())
        # Save the start position of new targets.
        self._changed(True)

    async def close(self) -> None:
        """Stop. The next supervisor continues interrupted deliveries."""
        self._unlisten()
        tasks = [task for worker in self.workers for task in worker.stop()]
        if self._writer is not None:
            self._writer.cancel()
            tasks.append(self._writer)
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECS):
                    await self._write()

    def _wake_workers(self, events: Sequence[Stored]) -> None:
        for worker in self.workers:
            worker.wake()

    # ---- the file

    def _changed(self, now: bool) -> None:
        if now:
            self._dirty.set()
        self._moved = True

    async def _write_loop(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAZY_WRITE_SECS):
                    await self._dirty.wait()
            self._dirty.clear()
            if not self._moved and self._unwritten is None and self._kept:
                continue
            if await self._write():
                await asyncio.sleep(MIN_WRITE_GAP_SECS)
            else:
                self._dirty.set()
                await asyncio.sleep(FULL_SECS)

    async def _write(self) -> bool:
        self._moved = False
        kept = {
            c.target.name: c.queue.kept(self._clock.monotonic(), self._clock.wall())
            for c in self.workers
        }
        trouble = await in_thread(lambda: self._cursors.write(kept))
        if trouble is not None:
            if self._unwritten is None:
                self._counters.add("notify.book")
                self._log(
                    "{}; notifications continue, but a restart repeats those delivered until the file can be written",
                    trouble,
                )
            self._moved = True
        elif self._unwritten is not None:
            self._log("the state of notifications can be written again")
        if trouble is None:
            self._kept = kept
        self._unwritten = trouble
        return trouble is None

    # ---- requests of operators

    def standing(self) -> list[dict[str, Any]]:
        """Return name, waiting, failingSince (unix seconds) and lastError of each target."""
        return [worker.standing() for worker in self.workers]

    def status(self) -> dict[str, Any]:
        """Return the state of all targets. unwritten: why it cannot be saved now, or None."""
        return {
            "targets": [worker.row() for worker in self.workers],
            "unwritten": self._unwritten,
        }

    async def test(self, name: str) -> dict[str, Any]:
        """Send a test message. Raises Refusal("notFound")."""
        loop, worker = asyncio.get_running_loop(), self._worker(name)
        began = loop.time()
        outcome = await worker.test(secrets.token_hex(4))
        return {
            "name": name,
            "delivered": outcome.delivered,
            "said": outcome.sentence,
            "answer": outcome.answer,
            "secs": round(loop.time() - began, 3),
        }

    def retry(self, name: str) -> dict[str, Any]:
        """Retry pending notifications of a target now. Raises Refusal("notFound")."""
        return {"name": name, "waiting": self._worker(name).retry()}

    def sizes(self) -> dict[str, int]:
        return {
            "waiting": sum(len(c.queue.waiting) for c in self.workers),
            "flying": sum(c.queue.in_flight for c in self.workers),
        }

    def _worker(self, name: str) -> DeliveryWorker:
        found = next((c for c in self.workers if c.target.name == name), None)
        if found is None:
            there = (
                ", ".join(c.target.name for c in self.workers)
                or "none; set notify.file (see docs/notifications.md)"
            )
            raise Refusal(
                "notFound",
                f"unknown target {ascii(name)[:60]}; known targets: {there}",
                {"advice": "jobscribe notify list"},
            )
        return found


def _secrets(headers: dict[str, str]) -> Iterator[str]:
    """Return header values to redact: values of secret headers, and values as long as a secret with
    their long words.
    """
    for name, value in headers.items():
        if is_secret(name, value) or len(value) >= _LONG:
            yield value
            yield from (word for word in value.split() if len(word) >= _WORD)
