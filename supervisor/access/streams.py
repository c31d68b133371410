"""Appends events of access and audit to their streams, through the engine's pipeline."""

import asyncio

from ...db.events.events import AccessEvent, AuditEvent
from ...db.store.contract import Appended, Write
from ...protocol.errors import Refusal
from ..engine.decision_loop import Engine

#: Limit for a commit. It may become durable later.
ANSWER_SECS = 30.0


class StreamWriter:
    """The only writer of one stream. Concurrent appends share commits."""

    def __init__(self, engine: Engine, stream: str) -> None:
        self._engine, self._stream = engine, stream
        #: version after the last append; None: to be read from the store
        self._version: int | None = None

    async def append(self, *events: AccessEvent | AuditEvent) -> None:
        """Return when the events are durable, in one transaction. Raises Refusal if they are not."""
        if self._version is None:
            self._version = self._engine.store.version(self._stream)
        done: asyncio.Future[Appended | Refusal] = asyncio.get_running_loop().create_future()

        def finished(result: Appended | Refusal) -> None:
            if isinstance(result, Refusal):
                # the engine has dropped all later appends, too
                self._version = None
            if not done.done():
                done.set_result(result)

        version, self._version = self._version, self._version + len(events)
        self._engine.record(Write(self._stream, version, events), finished)
        try:
            async with asyncio.timeout(ANSWER_SECS):
                result = await done
        except TimeoutError:
            raise Refusal(
                "storageUnavailable",
                f"the store did not answer within {ANSWER_SECS:g} s; it is not known whether the request is on"
                " record, and it was not done; try again",
            ) from None
        if isinstance(result, Refusal):
            raise result
