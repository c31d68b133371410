"""An executor whose calls share warm workers."""

import concurrent.futures
import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..api import random_ids
from ..api.errors import ClientError, own
from ..api.notebook import table
from . import calls
from .executor import Caller, results
from .future import FunctionFuture
from .outcomes import Outcome
from .warm_passing import WarmPassing
from .warm_queue import CallQueue
from .warm_worker import WarmCall

T = TypeVar("T")


class WarmExecutor(concurrent.futures.Executor):
    """Calls Python functions in at most `workers` runs, each of which performs one call at a time.

    resources: options of the runs. retries: repetitions of a call that may have run when its worker
    ended; only for functions that may run twice. idle_secs: a worker ends after this time without
    calls. A call is durable when its worker has accepted it: see `store`.
    """

    def __init__(
        self,
        client: Caller,
        *,
        workers: int,
        resources: Mapping[str, Any] | None = None,
        retries: int = 0,
        idle_secs: float = 60.0,
        max_bytes: int = calls.MAX_BYTES,
    ) -> None:
        if workers < 1 or retries < 0 or not idle_secs > 0:
            raise ClientError(
                "badRequest", "workers is at least 1, retries at least 0, and idle_secs positive"
            )
        options, pythons = calls.split_resources(resources)
        # a worker that its machine lost is started again even if this process has ended
        options.setdefault("retry", {"count": 0, "platform": 3})
        self._client = client.copy()
        self._retries, self._max_bytes = retries, max_bytes
        self.sid = random_ids.simulation_id()
        self._calls = CallQueue()
        self._passing = WarmPassing(
            self._client,
            self._calls,
            self.sid,
            most=workers,
            options=options,
            pythons=pythons,
            idle_secs=idle_secs,
        )
        self._thread: threading.Thread | None = None

    # ---- calls

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> FunctionFuture[T]:
        """Queue a call and return at once. Raises ClientError (notSerializable, tooLarge)."""
        return self._add(*self._function(fn), fn, args, kwargs, None)

    def submit_pinned(
        self, pin: str, fn: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> FunctionFuture[T]:
        """Queue a call for the worker of this pin. Its calls run in their order, in one process
        while that lives, so that they find what earlier calls left in memory.
        """
        if not isinstance(pin, str):
            raise ClientError("badRequest", f"a pin is a text, not {type(pin).__name__}")
        return self._add(*self._function(fn), fn, args, kwargs, pin)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """Yield the results in order; raise the exception of the first call that failed.

        timeout: seconds from now. chunksize has no effect, because calls travel in batches. When
        the iterator is closed, waiting calls are canceled.
        """
        end = None if timeout is None else time.monotonic() + timeout
        return results(self.map_futures(fn, iterables, chunksize), self.outcomes, end)

    def map_futures(
        self, fn: Callable[..., Any], iterables: Sequence[Iterable[Any]], chunksize: int
    ) -> list[FunctionFuture[Any]]:
        """Queue the calls of a map, and return their futures. Raises ClientError."""
        if chunksize < 1:
            raise ValueError("chunksize must be at least 1")
        function = self._function(fn)
        return [self._add(*function, fn, args, {}, None) for args in zip(*iterables, strict=False)]

    @staticmethod
    def outcomes(future: FunctionFuture[Any]) -> list[Outcome]:
        """Return the outcome of a future of `map_futures` that is done. Raises its exception."""
        return [Outcome(future.result(0))]

    def _repr_html_(self) -> str:
        with self._calls.changed:
            rows = {"group": self.sid, "not ended": len(self._calls.live)}
        return table("Executor with warm workers", {**rows, "workers": self._passing.workers()})

    def store(self, timeout: float | None = None) -> bool:
        """Send all calls to workers, and wait until they are durable there. They run even if this
        process ends. Return False if that takes longer than `timeout` seconds.
        """
        with self._calls.changed:
            self._calls.storing = True
            self._calls.changed.notify_all()
            return self._calls.changed.wait_for(self._calls.all_stored, timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. wait: until all have ended. cancel_futures: cancel those that have
        not begun.
        """
        with self._calls.changed:
            self._calls.closed = True
            live = list(self._calls.live)
            self._calls.changed.notify_all()
        if cancel_futures:
            self._calls.cancel_all(live)
        if wait:
            concurrent.futures.wait(live)
            self._join()

    def abandon(self) -> None:
        """Stop watching. Unfinished futures fail; workers perform the calls that they accepted."""
        with self._calls.changed:
            self._calls.closed = self._calls.abandoned = True
            left, self._calls.live = self._calls.live, {}
            self._calls.waiting.clear()
            self._calls.changed.notify_all()
        for future in left:
            text = f"the run {future.jid} has it" if future.jid else "no worker has it"
            future.settle(
                None, own("callFailed", f"the client was closed before the call ended; {text}")
            )
        self._join()

    # ---- submission

    def _function(self, fn: Callable[..., Any]) -> tuple[bytes, str]:
        calls.check_function(fn)
        data = calls.pickled_call(fn, fn, self._max_bytes)
        return data, hashlib.sha256(data).hexdigest()

    def _add(
        self,
        data: bytes,
        digest: str,
        fn: Callable[..., Any],
        args: Any,
        options: Any,
        pin: str | None,
    ) -> FunctionFuture[Any]:
        arguments = calls.pickled_call((args, options), fn, self._max_bytes)
        future = FunctionFuture[Any](self._calls.cancel)
        call = WarmCall(data, digest, arguments, future, self._retries, pin)
        with self._calls.changed:
            if self._calls.closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._calls.live[future] = call
            self._calls.waiting.append(call)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._passing.run, name=f"jobscribe-{self.sid}", daemon=True
                )
                self._thread.start()
            self._calls.changed.notify_all()
        return future

    def _join(self) -> None:
        with self._calls.changed:
            thread = self._thread
            self._calls.changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._client.close()
