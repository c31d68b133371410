"""One target: reads the log as far as there is room, sends what is due, and knows how it stands. It
holds up no other.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from ...db.events.events import JobFolded
from ...protocol.errors import Refusal
from ...protocol.ids import split_jid
from ...protocol.redaction import Redactor
from ...runtime.clock import Clock
from ...runtime.log.logger import Log
from ...service.site.notification_file import Target
from ..process.counters import Counters
from . import messages
from .delivery_queue import PendingDelivery, Queue
from .event_reader import History, Moment
from .sender import DeliveryResult, Notification, Sender

#: News come in bunches: so long is waited for the rest of one.
BUNCH_SECS = 0.02
#: The store could not be read: it is tried again after this time.
AGAIN_SECS = 5.0
_JOB = "job/"


class WorkerContext(NamedTuple):
    """What couriers share. changed: something is to be written down, now (True) or some day."""

    history: History
    log: Log
    counters: Counters
    redactor: Redactor
    clock: Clock
    why: messages.Why
    changed: Callable[[bool], None]


class DeliveryWorker:
    """One per target."""

    def __init__(self, target: Target, queue: Queue, sender: Sender, around: WorkerContext) -> None:
        self.target, self.queue = target, queue
        self._sender, self._around = sender, around
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._delivered = self._failed = self._given_up = 0
        self._last_delivered: float | None = None
        self._failing_since: float | None = None
        self._last_error: str | None = None

    # ---- life

    def start(self) -> None:
        self._settle()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> list[asyncio.Task[None]]:
        """Nothing more is sent; what was under way is sent again by the next supervisor. Returns
        whom to wait for.
        """
        tasks = [*self._under_way, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        self._sender.close()
        return tasks

    def wake(self) -> None:
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            secs: float | None = AGAIN_SECS
            try:
                await self._read_on()
                self._give_up_old()
                self._send_due()
                secs = self._idle_secs()
            except Refusal as e:
                self._around.log("notifications of {} wait: {}", self.target.name, e.sentence)
            except Exception as e:
                self._around.counters.add("internal")
                self._around.log.exception(
                    "notifications of {} wait: a fault of ours", self.target.name, error=e
                )
            with contextlib.suppress(TimeoutError):
                # not wait_for: who is told to stop in the moment when there is news would not hear
                # it
                async with asyncio.timeout(secs):
                    await self._wake.wait()
                await asyncio.sleep(BUNCH_SECS)

    def _idle_secs(self) -> float | None:
        at = self.queue.next_at()
        return None if at is None else max(0.0, at - self._around.clock.monotonic())

    # ---- in

    def _settle(self) -> None:
        """After a start: what waits may have been folded by a compaction since, or have been lost
        with the end of the log.
        """
        folded, lost = 0, 0
        for w in list(self.queue.waiting.values()):
            moment = self._around.history.moment(w.stream, w.version)
            if moment is not None and moment.at.position == w.position:
                folded += isinstance(moment.event, JobFolded)
                continue
            first = self._around.history.checkpoint(w.stream)
            if (
                first is not None
                and first.version >= w.version
                and isinstance(first.event, JobFolded)
            ):
                self.queue.moved(w, first.position, first.version)
                folded += 1
            else:
                self.queue.drop(w.position)
                lost += 1
        self.queue.cursor = min(self.queue.cursor, self._around.history.head())
        if folded:
            what = "{}: {} changes that it waits for were folded by a compaction; it is told how their runs ended"
            self._around.log(what, self.target.name, folded)
        if lost:
            what = "{}: {} changes that it waited for are not in the log any more; it is not told of them"
            self._around.log(what, self.target.name, lost)

    async def _read_on(self) -> None:
        """The log, until there is nothing new or no room."""
        before = self.queue.cursor
        if not self.queue.roomy:
            return
        while self.queue.room and (page := self._around.history.page(self.queue.cursor)):
            folded: list[int] = []
            for stored in page:
                if self.queue.room == 0:
                    break
                uid = (
                    split_jid(stored.stream.removeprefix(_JOB))[0]
                    if stored.stream.startswith(_JOB)
                    else None
                )
                if messages.may_want(self.target, stored.event, uid):
                    moment = self._around.history.moment(stored.stream, stored.version)
                    if moment is not None and messages.wanted(self.target, moment) is not None:
                        self.queue.take(
                            stored.position,
                            stored.stream,
                            stored.version,
                            self._around.clock.monotonic(),
                        )
                        self._around.changed(True)
                        if isinstance(stored.event, JobFolded):
                            folded.append(stored.event.events)
                self.queue.passed(stored.position)
            if folded:
                what = "{}: caught up: {} changes of {} jobs were folded by a compaction; it is told once of each job"
                self._around.log(what, self.target.name, sum(folded), len(folded))
            await asyncio.sleep(0)
        if self.queue.cursor != before:
            self._around.changed(False)

    # ---- out

    def _send_due(self) -> None:
        for w in self.queue.start(self._around.clock.monotonic()):
            task = asyncio.get_running_loop().create_task(self._send(w))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _send(self, w: PendingDelivery) -> None:
        try:
            letter = self._letter(w)
            outcome = (
                DeliveryResult(True, "there is nothing to be told any more")
                if letter is None
                else await self._sender.send(letter)
            )
        except asyncio.CancelledError:
            raise
        except Exception as e:
            self._around.counters.add("internal")
            self._around.log.exception(
                "a notification of {} could not be made", self.target.name, error=e
            )
            outcome = DeliveryResult(False, "a fault of ours; the supervisor's log has it")
        self._came_of(w, outcome)
        self._wake.set()

    def _letter(self, w: PendingDelivery) -> Notification | None:
        """None: there is nothing to be told any more."""
        moment = self._around.history.moment(w.stream, w.version)
        if moment is None or messages.wanted(self.target, moment) is None:
            return None
        return self._written(
            messages.message(self.target, moment, self._around.redactor, self._why_of(moment))
        )

    def _why_of(self, moment: Moment) -> messages.Why:
        """It explains the message and is no part of it: where it fails, the message goes without."""

        def why(job: Any) -> dict[str, Any] | None:
            try:
                return self._around.why(job)
            except Exception as e:
                self._around.counters.add("internal")
                self._around.log.exception(
                    "why {} is so could not be said", moment.at.stream, error=e
                )
                return None

        return why

    def _written(self, message: dict[str, Any]) -> Notification:
        names = {
            "ID": message["id"],
            "TARGET": message["target"],
            "EVENT": message["event"],
            "STATE": message["state"],
            "JID": message["computeJid"],
            "SERIAL": message["computeJobSerial"],
            "POSITION": message["position"],
        }
        named = {k: str(v) for k, v in names.items() if v is not None}
        return Notification(message["id"], message["event"], msgspec.json.encode(message), named)

    def _came_of(self, w: PendingDelivery, outcome: DeliveryResult) -> None:
        now = self._around.clock.monotonic()
        name, jid = self.target.name, w.stream.removeprefix(_JOB)
        ids = {"jid": jid} if jid != w.stream else {}
        said = outcome.said + (
            f"; it said: {outcome.answer.strip()}" if outcome.answer.strip() else ""
        )
        if outcome.delivered:
            self.queue.delivered(w.position)
            self._delivered += 1
            self._last_delivered = self._around.clock.wall()
            self._around.counters.add("notify.delivered")
            if self._failing_since is not None:
                self._around.log("{} takes notifications again", name)
            self._failing_since = self._last_error = None
            self._around.log("{} was told of {} at {}: {}", name, jid, w.position, said, **ids)
        else:
            self._failed += 1
            self._around.counters.add("notify.failed")
            self._last_error = outcome.said
            if self._failing_since is None:
                self._failing_since = self._around.clock.wall()
            gone = self.queue.failed(
                w.position, now, asked_secs=outcome.asked_secs, final=outcome.final
            )
            self._around.log(
                "{} was not told of {} at {} (try {}): {}",
                name,
                jid,
                w.position,
                w.attempts,
                said,
                **ids,
            )
            if gone:
                self._gave_up(w)
        self._around.changed(True)

    def _give_up_old(self) -> None:
        for w in self.queue.expired(self._around.clock.monotonic()):
            self._gave_up(w)
            self._around.changed(True)

    def _gave_up(self, w: PendingDelivery) -> None:
        self._given_up += 1
        self._around.counters.add("notify.given_up")
        what = "{} is not told of {} at {}: given up after {} tries; the last of this target ended so: {}"
        self._around.log(
            what,
            self.target.name,
            w.stream.removeprefix(_JOB),
            w.position,
            w.attempts,
            self._last_error,
        )

    # ---- for people

    async def test(self, number: str) -> DeliveryResult:
        """One message about nothing, now."""
        return await self._sender.send(
            self._written(messages.test_message(self.target, number, self._around.clock.wall()))
        )

    def retry(self) -> int:
        """Everything is tried at once; how many that are."""
        count = self.queue.hurry(self._around.clock.monotonic())
        self._wake.set()
        return count

    def standing(self) -> dict[str, Any]:
        return {
            "name": self.target.name,
            "waiting": len(self.queue.waiting),
            "failingSince": self._failing_since,
            "lastError": self._last_error,
        }

    def row(self) -> dict[str, Any]:
        """How it stands, whole. behind: events of the log that it has not looked at yet."""
        clock, at = self._around.clock, self.queue.next_at()
        return {
            **self.standing(),
            "kind": self.target.kind,
            "to": self.target.shown,
            "on": list(self.target.on),
            "delivered": self._delivered,
            "failed": self._failed,
            "givenUp": self._given_up,
            "lastDelivered": self._last_delivered,
            "nextTry": None if at is None else clock.wall() + max(0.0, at - clock.monotonic()),
            "behind": max(0, self._around.history.head() - self.queue.cursor),
        }
