"""Functions whose calls run as jobs by decoration, and the executors that they share."""

import asyncio
import functools
import operator
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar

from .async_executor import AsyncExecutor
from .calls import check_function
from .executor import Executor
from .future import FunctionFuture
from .warm_executor import WarmExecutor

P = ParamSpec("P")
T = TypeVar("T")


class Executors:
    """The executors of one client, by their options. Equal options share one. make: creates one."""

    def __init__(self, make: Callable[..., Executor | WarmExecutor]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._made: list[tuple[dict[str, Any], Executor | WarmExecutor]] = []

    def of(self, options: dict[str, Any]) -> Executor | WarmExecutor:
        """Return the executor with these options. Raises ClientError."""
        with self._lock:
            for known, executor in self._made:
                if known == options:
                    return executor
            made = self._make(**options)
            self._made.append((options, made))
            return made

    def abandon(self) -> None:
        """Stop watching. Unfinished futures fail; their runs continue."""
        with self._lock:
            made, self._made = self._made, []
        for _, executor in made:
            executor.abandon()


class _Decorated(Generic[P, T]):
    """A decorated function. Calling it runs it here, in this process. It is sent to jobs without
    the decoration.
    """

    __wrapped__: Callable[P, T]

    def __init__(
        self, function: Callable[P, T], executor: Callable[[], Executor | WarmExecutor]
    ) -> None:
        functools.update_wrapper(self, function)
        self._executor = executor

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.__wrapped__(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # jobs may not have this module
        return operator.itemgetter(0), ((self.__wrapped__,),)


class JobFunction(_Decorated[P, T]):
    """A function of `Client.function`."""

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> FunctionFuture[T]:
        """Call it in a job. Raises ClientError."""
        return self._executor().submit(self.__wrapped__, *args, **kwargs)

    def submit_pinned(self, pin: str, *args: Any, **kwargs: Any) -> FunctionFuture[T]:
        """Call it in the warm worker of this pin: see `WarmExecutor`. Raises ClientError."""
        return self._executor().submit_pinned(pin, self.__wrapped__, *args, **kwargs)

    def map(
        self, *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[T]:
        """Yield the results of calls in jobs, in order: see `Executor.map`."""
        executor = self._executor()
        return executor.map(self.__wrapped__, *iterables, timeout=timeout, chunksize=chunksize)


class AsyncJobFunction(_Decorated[P, T]):
    """A function of `AsyncClient.function`."""

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> FunctionFuture[T]:
        """Call it in a job. The future may be awaited. Raises ClientError."""
        executor = await self._asynchronous()
        return await executor.submit(self.__wrapped__, *args, **kwargs)

    async def submit_pinned(self, pin: str, *args: Any, **kwargs: Any) -> FunctionFuture[T]:
        """Call it in the warm worker of this pin: see `WarmExecutor`. Raises ClientError."""
        executor = await self._asynchronous()
        return await executor.submit_pinned(pin, self.__wrapped__, *args, **kwargs)

    async def map(
        self, *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> AsyncIterator[T]:
        """Yield the results of calls in jobs, in order: see `Executor.map`."""
        executor = await self._asynchronous()
        results = executor.map(self.__wrapped__, *iterables, timeout=timeout, chunksize=chunksize)
        try:
            async for value in results:
                yield value
        finally:
            await results.aclose()  # type: ignore[attr-defined]

    async def _asynchronous(self) -> AsyncExecutor:
        return AsyncExecutor(await asyncio.to_thread(self._executor))


def decorated(kind: Any, function: Any, executor: Callable[[], Executor | WarmExecutor]) -> Any:
    """Return the decorated function; the decorator if there is no function yet."""
    if function is None:
        return lambda found: decorated(kind, found, executor)
    check_function(function)
    return kind(function, executor)
