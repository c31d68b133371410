"""A thread for a single blocking call. Nothing of it remains afterwards, while the threads of a
pool keep their last call.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Return the result of `work`. If it raises, RuntimeError has only the type of the error,
    because its text and frames may contain secrets.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def set_result(value: T | None, error: str | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)  # type: ignore[arg-type]
        else:
            result.set_exception(RuntimeError(error))

    def serve() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as e:
            error = type(e).__name__
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(set_result, value, error)

    threading.Thread(target=serve, name="once", daemon=True).start()
    return await result
