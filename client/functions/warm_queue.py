"""The calls of a warm executor that have no outcome, shared by its thread and its callers."""

import threading
from collections import deque
from typing import Any

from .future import FunctionFuture
from .warm_worker import WarmCall

_CANCEL_SECS = 30.0


class CallQueue:
    """Calls without an outcome. Hold `changed` to use the fields; it wakes all who wait.

    waiting: calls that no worker has. live: all calls. cancels: None while a cancel has no answer.
    storing: somebody waits until all calls are durable. closed: no more calls. abandoned: nobody
    waits for outcomes.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: deque[WarmCall] = deque()
        self.live: dict[FunctionFuture[Any], WarmCall] = {}
        self.cancels: dict[FunctionFuture[Any], bool | None] = {}
        self.storing = self.closed = self.abandoned = False

    def cancel(self, future: FunctionFuture[Any]) -> bool:
        """Cancel a call that has not begun. Return whether it is canceled."""
        self._ask_cancel([future])
        return self._cancel_answer(future)

    def cancel_all(self, futures: list[FunctionFuture[Any]]) -> None:
        self._ask_cancel(futures)
        for future in futures:
            if self._cancel_answer(future):
                future.run_canceled()

    def _ask_cancel(self, futures: list[FunctionFuture[Any]]) -> None:
        with self.changed:
            wanted = {f for f in futures if f in self.live}
            local = [call for call in self.waiting if call.future in wanted]
            self.waiting = deque(call for call in self.waiting if call.future not in wanted)
            for call in local:
                del self.live[call.future]
                self.cancels[call.future] = True
            for future in wanted - {call.future for call in local}:
                self.cancels.setdefault(future, None)
            self.changed.notify_all()

    def _cancel_answer(self, future: FunctionFuture[Any]) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.cancels.get(future, False) is not None, _CANCEL_SECS)
            return bool(self.cancels.pop(future, False))

    def again(self, call: WarmCall) -> bool:
        """Queue a call again if the user permits that it runs twice."""
        with self.changed:
            if not call.retries or call.future not in self.live:
                return False
            call.retries -= 1
            call.stored = False
            self.waiting.appendleft(call)
            return True

    def canceled(self, call: WarmCall) -> None:
        with self.changed:
            self.live.pop(call.future, None)
            self.cancels[call.future] = True
        call.future.run_canceled()

    def fail(self, found: list[WarmCall], error: Exception) -> None:
        with self.changed:
            for call in found:
                self.live.pop(call.future, None)
                self.cancels.pop(call.future, None)
        for call in found:
            call.future.settle(None, error)

    def all_stored(self) -> bool:
        """Return whether all calls are durable in their workers. Hold `changed`."""
        self.storing = not all(call.stored for call in self.live.values())
        return not self.storing
