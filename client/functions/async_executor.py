"""The asynchronous twin of both executors."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, TypeVar

from ..api.errors import ClientError
from .executor import Executor
from .future import FunctionFuture, settled
from .warm_executor import WarmExecutor

T = TypeVar("T")


class AsyncExecutor:
    """Calls Python functions in jobs without blocking the event loop. Use `async with`.

    blocking: the `concurrent.futures.Executor` that it uses, such as for `loop.run_in_executor`.
    sid: the group of its runs.
    """

    def __init__(self, blocking: Executor | WarmExecutor) -> None:
        self.blocking, self.sid = blocking, blocking.sid

    def _repr_html_(self) -> str:
        return self.blocking._repr_html_()

    async def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> FunctionFuture[T]:
        """Submit a call. Its future may be awaited. Raises ClientError."""
        return await asyncio.to_thread(self.blocking.submit, fn, *args, **kwargs)

    async def submit_pinned(
        self, pin: str, fn: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> FunctionFuture[T]:
        """Submit a call for the worker of this pin: see `WarmExecutor`. Raises ClientError."""
        return await asyncio.to_thread(self.blocking.submit_pinned, pin, fn, *args, **kwargs)

    async def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> AsyncIterator[T]:
        """Yield the results in order; raise the exception of the first call that failed.

        timeout: seconds from now. When the iterator is closed, waiting calls are canceled.
        """
        end = None if timeout is None else time.monotonic() + timeout
        waiting = await asyncio.to_thread(self.blocking.map_futures, fn, iterables, chunksize)
        waiting.reverse()
        try:
            while waiting:
                await settled(waiting[-1], None if end is None else end - time.monotonic())
                found = self.blocking.outcomes(waiting.pop())[::-1]
                while found:  # without a reference to a value that the caller has
                    yield found.pop().get()
        finally:
            await asyncio.to_thread(_cancel, waiting)

    async def store(self, timeout: float | None = None) -> bool:
        """Wait until all calls are durable: see `WarmExecutor.store`."""
        return await asyncio.to_thread(self.blocking.store, timeout)

    async def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. wait: until all have ended. cancel_futures: cancel those first."""
        await asyncio.to_thread(self.blocking.shutdown, wait, cancel_futures=cancel_futures)

    async def __aenter__(self) -> "AsyncExecutor":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()


def _cancel(futures: list[FunctionFuture[Any]]) -> None:
    for future in futures:
        with contextlib.suppress(ClientError):
            future.cancel()
