"""The future of a call that runs in a job."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

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
        """Set the outcome, unless the call was canceled meanwhile."""
        try:
            if error is not None:
                self.set_exception(error)
            else:
                self.set_result(value)  # type: ignore[arg-type]
        except concurrent.futures.InvalidStateError:
            assert self.cancelled()

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self).__await__()
