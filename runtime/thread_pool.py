"""Threads for blocking calls: limited in number, each call with a deadline. They do not delay the
end of the process.

The standard executor is not used: Python waits for its threads at exit, so a call into a hanging
daemon would keep a supervisor alive.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(Exception):
    """The call did not begin: all threads are busy with calls without an answer. since: age of the
    oldest call in seconds; calls: their number.
    """

    def __init__(self, calls: int, since: float) -> None:
        super().__init__(f"{calls} calls without an answer, the first for {since:.0f} s")
        self.calls, self.since = calls, since


class Closed(Exception):
    """The pool is closed."""


class _Job:
    __slots__ = ("begun", "deadline", "future", "given_up", "work")

    def __init__(
        self, work: Callable[[], Any], future: asyncio.Future[Any], deadline: float
    ) -> None:
        self.work, self.future, self.deadline = work, future, deadline
        self.begun: float | None = None
        self.given_up = False


class Threads:
    """A pool that starts threads on demand, up to `limit`. All methods run on the loop; only the
    work runs in a thread.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name, self._limit = name, limit
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._jobs: set[_Job] = set()
        self._closed = False

    async def run(self, work: Callable[[], T], secs: float) -> T:
        """Return or raise the result of `work`. Raise TimeoutError after `secs`, including the wait
        for a thread, and Stuck.

        Work that has not begun by then never begins. Work that has begun continues, and its result
        is dropped.
        """
        now = time.monotonic()
        with self._lock:
            if self._closed:
                raise Closed
            late = [j.begun for j in self._jobs if j.begun is not None and j.deadline < now]
            if len(late) >= self._limit:
                raise Stuck(len(late), now - min(late))
            job = _Job(work, asyncio.get_running_loop().create_future(), now + secs)
            self._jobs.add(job)
            if len(self._threads) < min(self._limit, len(self._jobs)):
                thread = threading.Thread(
                    target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
        self._queue.put(job)
        try:
            async with asyncio.timeout(secs):
                return await job.future  # type: ignore[no-any-return]
        except TimeoutError:
            if job.begun is None:
                busy = self.waiting()
                raise Stuck(len(busy), time.monotonic() - min(busy, default=now)) from None
            raise
        finally:
            with self._lock:
                job.given_up = True
                if job.begun is None:
                    self._jobs.discard(job)

    def waiting(self) -> list[float]:
        """Return the start times (monotonic) of the calls that are in a thread now."""
        with self._lock:
            return [j.begun for j in self._jobs if j.begun is not None]

    async def close(self, secs: float) -> None:
        """Stop the threads that end within this time. A hanging one is left behind and ends with
        the process.
        """
        with self._lock:
            self._closed = True
            jobs = list(self._jobs)
        for job in jobs:
            if not job.future.done():
                job.future.set_exception(Closed())
        for _ in self._threads:
            self._queue.put(None)
        until = time.monotonic() + secs
        for thread in self._threads:
            while thread.is_alive():
                if time.monotonic() > until:
                    return
                await asyncio.sleep(0.01)

    def _serve(self) -> None:
        while (job := self._queue.get()) is not None:
            with self._lock:
                if job.given_up or self._closed:
                    self._jobs.discard(job)
                    continue
                job.begun = time.monotonic()
            result, error = None, None
            try:
                result = job.work()
            except BaseException as e:
                error = e
            with self._lock:
                self._jobs.discard(job)
            _set_result(job.future, result, error)


def _set_result(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    def tell() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    try:
        future.get_loop().call_soon_threadsafe(tell)
    except RuntimeError:
        return  # the loop is closed
