"""The sign of life for the watchdog of the service manager: given only while this loop turns and
the store's writer answers.

What does not answer is not mended here: the service manager ends the process and starts another
one, and jobs run on meanwhile.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from ...db.store.contract import Appended, Batch, EventStore
from ...protocol.errors import Refusal
from ...service.systemd import Notifier

#: How things stand is told so often where no watchdog waits.
STATUS_SECS = 10.0
#: Signs of life in one interval of the watchdog: one or two that come late are no reason to end
#: anything.
SIGNS = 4


class Watchdog:
    """standing: one line about how things stand, for the operator."""

    def __init__(self, notifier: Notifier, store: EventStore, standing: Callable[[], str]) -> None:
        self._notifier, self._store, self._standing = notifier, store, standing
        self._task: asyncio.Task[None] | None = None
        #: when the last sign was given, on the monotonic clock; None: nobody wants one
        self.signed_at: float | None = None

    @property
    def secs(self) -> float:
        """Signs come at least so often while all is well."""
        return STATUS_SECS if self._notifier.watchdog_secs is None else self._notifier.watchdog_secs

    def start(self) -> None:
        if self._notifier.heard:
            self.signed_at = time.monotonic()
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """From here on the time to stop counts, not the watchdog's."""
        if self._task is not None:
            self._task.cancel()
        self._notifier.stopping()

    async def _run(self) -> None:
        secs = self._notifier.watchdog_secs
        while True:
            # As long as it does not answer, nothing is said: a slow disk has the watchdog's whole
            # time, a stuck one not more.
            await self._store_answers()
            self._notifier.alive()
            self.signed_at = time.monotonic()
            self._notifier.status(self._standing())
            await asyncio.sleep(STATUS_SECS if secs is None else secs / SIGNS)

    async def _store_answers(self) -> None:
        """A batch without events takes the whole way through the writer and leaves nothing behind.
        That it refuses is an answer, too.
        """
        said: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: Appended | Refusal) -> None:
            with contextlib.suppress(asyncio.InvalidStateError):
                said.set_result(None)

        self._store.append(Batch(writes=()), done)
        await said
