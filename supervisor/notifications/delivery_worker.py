"""The delivery worker of one target: reads the log, sends due notifications, and reports its state.
Workers do not block each other.
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

#: Changes come in bursts: time to wait for the rest of one.
BUNCH_SECS = 0.02
#: Time to wait after a failed read of the store.
AGAIN_SECS = 5.0
_JOB = "job/"


class WorkerContext(NamedTuple):
    """Values that the workers share. changed: requests a save of the cursors, now (True) or later (False)."""

    history: History
    log: Log
    counters: Counters
    redactor: Redactor
    clock: Clock
    why: messages.Why
    changed: Callable[[bool], None]


class DeliveryWorker:
    """Delivers the notifications of one target."""

    def __init__(
        self, target: Target, queue: Queue, sender: Sender, context: WorkerContext
    ) -> None:
        self.target, self.queue = target, queue
        self._sender, self._context = sender, context
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._in_progress: set[asyncio.Task[None]] = set()
        self._delivered = self._failed = self._given_up = 0
        self._last_delivered: float | None = None
        self._failing_since: float | None = None
        self._last_error: str | None = None

    # ---- lifecycle

    def start(self) -> None:
        self._reconcile()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop sending. The next supervisor repeats interrupted deliveries. Return the tasks to
        wait for.
        """
        tasks = [*self._in_progress, *([self._task] if self._task is not None else [])]
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
                await self._read_log()
                self._give_up_expired()
                self._send_due()
                secs = self._idle_secs()
            except Refusal as e:
                self._context.log("notifications of {} wait: {}", self.target.name, e.sentence)
            except Exception as e:
                self._context.counters.add("internal")
                self._context.log.exception(
                    "notifications of {} wait: internal error", self.target.name, error=e
                )
            with contextlib.suppress(TimeoutError):
                # Not wait_for: it could swallow a cancellation that comes together with the event.
                async with asyncio.timeout(secs):
                    await self._wake.wait()
                await asyncio.sleep(BUNCH_SECS)

    def _idle_secs(self) -> float | None:
        at = self.queue.next_at()
        return None if at is None else max(0.0, at - self._context.clock.monotonic())

    # ---- reading

    def _reconcile(self) -> None:
        """Check pending deliveries after a start: a compaction may have folded their events, or the
        end of the log may be lost.
        """
        folded, lost = 0, 0
        for w in list(self.queue.waiting.values()):
            moment = self._context.history.moment(w.stream, w.version)
            if moment is not None and moment.at.position == w.position:
                folded += isinstance(moment.event, JobFolded)
                continue
            first = self._context.history.checkpoint(w.stream)
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
        self.queue.cursor = min(self.queue.cursor, self._context.history.head())
        if folded:
            what = "{}: a compaction folded {} pending changes; their notifications contain only the final state of their runs"
            self._context.log(what, self.target.name, folded)
        if lost:
            what = "{}: {} pending changes are not in the log any more; their notifications are dropped"
            self._context.log(what, self.target.name, lost)

    async def _read_log(self) -> None:
        """Read the log until its end, or until the queue is full."""
        before = self.queue.cursor
        if not self.queue.has_room:
            return
        while self.queue.room and (page := self._context.history.page(self.queue.cursor)):
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
                    moment = self._context.history.moment(stored.stream, stored.version)
                    if moment is not None and messages.wanted(self.target, moment) is not None:
                        self.queue.take(
                            stored.position,
                            stored.stream,
                            stored.version,
                            self._context.clock.monotonic(),
                        )
                        self._context.changed(True)
                        if isinstance(stored.event, JobFolded):
                            folded.append(stored.event.events)
                self.queue.passed(stored.position)
            if folded:
                what = "{}: a compaction folded {} changes of {} jobs; there is one notification for each job"
                self._context.log(what, self.target.name, sum(folded), len(folded))
            await asyncio.sleep(0)
        if self.queue.cursor != before:
            self._context.changed(False)

    # ---- sending

    def _send_due(self) -> None:
        for w in self.queue.start(self._context.clock.monotonic()):
            task = asyncio.get_running_loop().create_task(self._send(w))
            self._in_progress.add(task)
            task.add_done_callback(self._in_progress.discard)

    async def _send(self, w: PendingDelivery) -> None:
        try:
            notification = self._notification(w)
            outcome = (
                DeliveryResult(True, "the change is obsolete and was not sent")
                if notification is None
                else await self._sender.send(notification)
            )
        except asyncio.CancelledError:
            raise
        except Exception as e:
            self._context.counters.add("internal")
            self._context.log.exception(
                "a notification of {} could not be created", self.target.name, error=e
            )
            outcome = DeliveryResult(False, "internal error; see the supervisor's log")
        self._record_outcome(w, outcome)
        self._wake.set()

    def _notification(self, w: PendingDelivery) -> Notification | None:
        """Return the notification, or None if the event no longer needs one."""
        moment = self._context.history.moment(w.stream, w.version)
        if moment is None or messages.wanted(self.target, moment) is None:
            return None
        return self._encode(
            messages.message(self.target, moment, self._context.redactor, self._why_of(moment))
        )

    def _why_of(self, moment: Moment) -> messages.Why:
        """Return a `why` function that never fails: without an explanation, the message is sent
        without one.
        """

        def why(job: Any) -> dict[str, Any] | None:
            try:
                return self._context.why(job)
            except Exception as e:
                self._context.counters.add("internal")
                self._context.log.exception(
                    "no explanation for the notification about {}", moment.at.stream, error=e
                )
                return None

        return why

    def _encode(self, message: dict[str, Any]) -> Notification:
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

    def _record_outcome(self, w: PendingDelivery, outcome: DeliveryResult) -> None:
        now = self._context.clock.monotonic()
        name, jid = self.target.name, w.stream.removeprefix(_JOB)
        log = self._context.log.bound(jid=jid if jid != w.stream else None)
        said = outcome.sentence + (
            f"; output: {outcome.answer.strip()}" if outcome.answer.strip() else ""
        )
        if outcome.delivered:
            self.queue.delivered(w.position)
            self._delivered += 1
            self._last_delivered = self._context.clock.wall()
            self._context.counters.add("notify.delivered")
            if self._failing_since is not None:
                self._context.log("{} accepts notifications again", name)
            self._failing_since = self._last_error = None
            log("{}: delivered the notification of {} at {}: {}", name, jid, w.position, said)
        else:
            self._failed += 1
            self._context.counters.add("notify.failed")
            self._last_error = outcome.sentence
            if self._failing_since is None:
                self._failing_since = self._context.clock.wall()
            gone = self.queue.failed(
                w.position, now, asked_secs=outcome.asked_secs, final=outcome.final
            )
            log(
                "{}: the notification of {} at {} was not delivered (attempt {}): {}",
                name,
                jid,
                w.position,
                w.attempts,
                said,
            )
            if gone:
                self._record_given_up(w)
        self._context.changed(True)

    def _give_up_expired(self) -> None:
        for w in self.queue.expired(self._context.clock.monotonic()):
            self._record_given_up(w)
            self._context.changed(True)

    def _record_given_up(self, w: PendingDelivery) -> None:
        self._given_up += 1
        self._context.counters.add("notify.given_up")
        what = "{}: the notification of {} at {} is given up after {} attempts; last error of this target: {}"
        self._context.log(
            what,
            self.target.name,
            w.stream.removeprefix(_JOB),
            w.position,
            w.attempts,
            self._last_error,
        )

    # ---- requests of operators

    async def test(self, number: str) -> DeliveryResult:
        """Send a test message now."""
        return await self._sender.send(
            self._encode(messages.test_message(self.target, number, self._context.clock.wall()))
        )

    def retry(self) -> int:
        """Retry all pending notifications now. Return their number."""
        count = self.queue.retry_now(self._context.clock.monotonic())
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
        """Return the full state. behind: events of the log that are not read yet."""
        clock, at = self._context.clock, self.queue.next_at()
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
            "behind": max(0, self._context.history.head() - self.queue.cursor),
        }
