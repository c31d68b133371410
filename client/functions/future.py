"""The future of a call that runs in a job."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from ..api.errors import ClientError
from ..api.notebook import table

T = TypeVar("T")


class FunctionFuture(concurrent.futures.Future[T]):
    """The future of one call, for `concurrent.futures.wait` and `as_completed`, and for `await`.

    jid, serial: of the run. `client.job(jid, serial).result()` returns the same result later, from
    any process of the user. call: None, or the number of the call in its warm worker; then
    `result(call=call)` does so. `cancel` cancels the run; it is final.
    """

    def __init__(self, cancel: Callable[["FunctionFuture[Any]"], bool]) -> None:
        super().__init__()
        self._cancel = cancel
        self._noting = threading.Lock()
        self.jid, self.serial = "", 0
        self.call: int | None = None

    def __repr__(self) -> str:
        call = "" if self.call is None else f" call={self.call}"
        return f"FunctionFuture({self.jid} serial={self.serial}{call})"

    def cancel(self) -> bool:
        """Cancel the run. Return False if its command has already ended. Raises ClientError."""
        if self.done():
            return self.cancelled()
        if self._cancel(self):
            self.run_canceled()
        return self.cancelled()

    def run_canceled(self) -> None:
        """Note that the run is canceled: from now on there is no result, even if its file exists."""
        with self._noting:
            if not self.done() and super().cancel():
                self.set_running_or_notify_cancel()  # also wakes `wait` and `as_completed`

    def settle(self, value: T | None, error: BaseException | None) -> None:
        """Set the outcome, unless the call was canceled or settled meanwhile: a client may be closed
        while its thread settles.
        """
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            if error is not None:
                self.set_exception(error)
            else:
                self.set_result(value)  # type: ignore[arg-type]

    def __await__(self) -> Generator[Any, None, T]:
        return self._awaited().__await__()

    async def _awaited(self) -> T:
        try:
            await settled(self, None)
        except asyncio.CancelledError:
            # as with other futures; in a thread, because it sends a request
            asyncio.get_running_loop().run_in_executor(None, self._canceled_later)
            raise
        if self.cancelled():
            raise asyncio.CancelledError(self.jid)
        return self.result(0)

    def _canceled_later(self) -> None:
        with contextlib.suppress(ClientError):
            self.cancel()

    def _repr_html_(self) -> str:
        rows = {"state": self._state_text(), "run": self.jid or None, "serial": self.serial or None}
        return table("Function call", {**rows, "call": self.call})

    def _state_text(self) -> str:
        """Return the state without the value, which may be large."""
        if not self.done():
            return "not ended"
        if self.cancelled():
            return "canceled"
        error = self.exception(0)
        if error is None:
            return f"returned a value of type {type(self.result(0)).__name__}"
        return f"{type(error).__name__}: {error}"


async def settled(future: concurrent.futures.Future[Any], timeout: float | None) -> None:
    """Wait until a future is done. A canceled wait does not cancel it. Raises TimeoutError."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(wake)
    await asyncio.wait_for(done.wait(), timeout)
