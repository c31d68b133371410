"""All targets together: made from the operator's file, woken by the log, and written down in one
small file.

What is not written down yet is told again after a restart, with the same id. A disk that is full
stops nothing: it goes on in memory, and says so. Without a file of targets there are none, and
nothing here costs anything.
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

#: Between two writes of the file at least; how far somebody has read who was told nothing is
#: written after this time.
BETWEEN_SECS, SOME_DAY_SECS = 0.05, 30.0
#: While it cannot be written, it is tried again so often.
FULL_SECS = 2.0
#: Whoever stops the supervisor waits no longer for what is being sent and written.
CLOSE_SECS = 3.0
#: A header's value so long is taken for a secret whatever it is called; of one, words so long.
_LONG, _WORD = 16, 8


class Notifications:
    """One per process."""

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
        self._clock, self._book = clock, CursorStore(root.path)
        self._kept: dict[str, SavedTarget] = {}
        self._around = WorkerContext(
            History(store), log, counters, redactor, clock, why, self._changed
        )
        self.couriers: list[DeliveryWorker] = []
        self._dirty, self._moved = asyncio.Event(), False
        self._unwritten: str | None = None
        self._writer: asyncio.Task[None] | None = None
        self._deaf: Callable[[], None] = lambda: None

    def _sender(self, target: Target) -> Sender:
        if target.url is None:
            return Program(target, redactor=self._redactor)
        headers, secret = headers_of(target), secret_of(target)
        for value in (*_secrets(headers), *([secret] if secret is not None else [])):
            self._redactor.add(value)
        return Webhook(
            target, secret=secret, headers=headers, redactor=self._redactor, wall=self._clock.wall
        )

    # ---- life

    def start(self) -> None:
        """Raises Refusal where the file of targets, or what was kept of them, cannot be read."""
        if self._file is None:
            return
        targets, self._kept = load(self._file), self._book.read()
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
            self.couriers.append(DeliveryWorker(target, queue, sender, self._around))
        for name in self._kept.keys() - {t.name for t in targets}:
            self._log(
                "{} is no target any more: {} notifications that waited for it are dropped",
                name,
                len(self._kept[name].waiting),
            )
        self._counters.measure(notify=self.sizes)
        self._deaf = self._store.listen(self._heard)
        for courier in self.couriers:
            courier.start()
        self._writer = asyncio.get_running_loop().create_task(self._write_on())
        # where a new one begins is remembered from now on
        self._changed(True)

    async def close(self) -> None:
        """What is under way is left to the next supervisor."""
        self._deaf()
        tasks = [task for courier in self.couriers for task in courier.stop()]
        if self._writer is not None:
            self._writer.cancel()
            tasks.append(self._writer)
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECS):
                    await self._write()

    def _heard(self, events: Sequence[Stored]) -> None:
        for courier in self.couriers:
            courier.wake()

    # ---- the file

    def _changed(self, now: bool) -> None:
        if now:
            self._dirty.set()
        self._moved = True

    async def _write_on(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SOME_DAY_SECS):
                    await self._dirty.wait()
            self._dirty.clear()
            if not self._moved and self._unwritten is None and self._kept:
                continue
            if await self._write():
                await asyncio.sleep(BETWEEN_SECS)
            else:
                self._dirty.set()
                await asyncio.sleep(FULL_SECS)

    async def _write(self) -> bool:
        self._moved = False
        kept = {
            c.target.name: c.queue.kept(self._clock.monotonic(), self._clock.wall())
            for c in self.couriers
        }
        trouble = await in_thread(lambda: self._book.write(kept))
        if trouble is not None:
            if self._unwritten is None:
                self._counters.add("notify.book")
                self._log(
                    "{}; notifications go on, but what is told until it can be is told again after a restart",
                    trouble,
                )
            self._moved = True
        elif self._unwritten is not None:
            self._log("how far notifications are can be written again")
        if trouble is None:
            self._kept = kept
        self._unwritten = trouble
        return trouble is None

    # ---- for people

    def standing(self) -> list[dict[str, Any]]:
        """Of each target: name, waiting, failingSince (unix seconds), lastError."""
        return [courier.standing() for courier in self.couriers]

    def told(self) -> dict[str, Any]:
        """How all of them stand. unwritten: why that cannot be written down now."""
        return {
            "targets": [courier.row() for courier in self.couriers],
            "unwritten": self._unwritten,
        }

    async def test(self, name: str) -> dict[str, Any]:
        """Send it a message about nothing. Raises Refusal("notFound")."""
        loop, courier = asyncio.get_running_loop(), self._courier(name)
        began = loop.time()
        outcome = await courier.test(secrets.token_hex(4))
        return {
            "name": name,
            "delivered": outcome.delivered,
            "said": outcome.said,
            "answer": outcome.answer,
            "secs": round(loop.time() - began, 3),
        }

    def retry(self, name: str) -> dict[str, Any]:
        """Try at once what waits for it. Raises Refusal("notFound")."""
        return {"name": name, "waiting": self._courier(name).retry()}

    def sizes(self) -> dict[str, int]:
        return {
            "waiting": sum(len(c.queue.waiting) for c in self.couriers),
            "flying": sum(c.queue.flying for c in self.couriers),
        }

    def _courier(self, name: str) -> DeliveryWorker:
        found = next((c for c in self.couriers if c.target.name == name), None)
        if found is None:
            there = (
                ", ".join(c.target.name for c in self.couriers)
                or "none: name a file in notify.file (see docs/notifications.md)"
            )
            raise Refusal(
                "notFound",
                f"there is no target {ascii(name)[:60]}; there are: {there}",
                {"advice": "jobscribe notify list"},
            )
        return found


def _secrets(headers: dict[str, str]) -> Iterator[str]:
    """What of these must not be seen: the values of those that sound so, and whatever is as long as
    a secret, but no common word.
    """
    for name, value in headers.items():
        if is_secret(name, value) or len(value) >= _LONG:
            yield value
            yield from (word for word in value.split() if len(word) >= _WORD)
