"""The watchdog signal for the service manager. It is sent only while the event loop runs and the
store's writer answers.

There is no repair here: without the signal the service manager restarts the supervisor. Jobs
continue meanwhile.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from ...db.store.contract import Appended, Batch, EventStore
from ...protocol.errors import Refusal
from ...service.systemd import Notifier

#: Interval of status reports without a watchdog.
STATUS_SECS = 10.0
#: Signals in one watchdog interval: one or two late signals must not end the process.
SIGNS = 4


class Watchdog:
    """Sends watchdog signals. standing: returns one status line for the operator."""

    def __init__(self, notifier: Notifier, store: EventStore, standing: Callable[[], str]) -> None:
        self._notifier, self._store, self._standing = notifier, store, standing
        self._task: asyncio.Task[None] | None = None
        #: Monotonic time of the last signal; None without a service manager.
        self.signed_at: float | None = None

    @property
    def secs(self) -> float:
        """Return the maximum time between two signals in normal operation."""
        return STATUS_SECS if self._notifier.watchdog_secs is None else self._notifier.watchdog_secs

    def start(self) -> None:
        if self._notifier.heard:
            self.signed_at = time.monotonic()
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Stop. From now on the service manager's stop timeout applies."""
        if self._task is not None:
            self._task.cancel()
        self._notifier.stopping()

    async def _run(self) -> None:
        secs = self._notifier.watchdog_secs
        while True:
            # No signal until the store answers: a slow disk has the watchdog's whole interval.
            await self._store_answers()
            self._notifier.alive()
            self.signed_at = time.monotonic()
            self._notifier.status(self._standing())
            await asyncio.sleep(STATUS_SECS if secs is None else secs / SIGNS)

    async def _store_answers(self) -> None:
        """Wait until the writer answers an empty batch, which changes nothing. A refusal is an
        answer too.
        """
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: Appended | Refusal) -> None:
            with contextlib.suppress(asyncio.InvalidStateError):
                answered.set_result(None)

        self._store.append(Batch(writes=()), done)
        await answered
