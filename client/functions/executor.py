"""An executor whose calls are runs of one group, and the thread that watches the group."""

import concurrent.futures
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from ...protocol.api.requests import RunSpec
from ...protocol.ids import split_jid
from ..api import random_ids
from ..api.errors import ClientError, own
from ..api.notebook import table
from ..api.replies import GroupRun, GroupState, RunState
from . import calls
from .future import FunctionFuture
from .outcomes import CANCELED, COMPLETED, Ended, Outcome, of_run

T = TypeVar("T")
#: The app whose library keeps arguments that are not inline.
APP = "command"
#: Pauses between two looks at the group: the first, the longest.
_FIRST_SECS, _LONGEST_SECS = 0.03, 1.0
#: Size of the command lines in one request for many runs.
_BULK_BYTES = 3 * 1024 * 1024
_BULK_RUNS = 1000
#: Runs of a group that one second of pause allows: each look at ended runs lists the group.
_RUNS_PER_SEC = 5000


class Caller(Protocol):
    """The requests of `Client` that an executor needs."""

    def copy(self) -> Self: ...
    def close(self) -> None: ...
    def spec(self, command: Sequence[str], **options: Any) -> RunSpec: ...
    def run_many(self, specs: Sequence[RunSpec]) -> list[Any]: ...
    def group(self, sid: str, *, limit: int = 100) -> GroupState: ...
    def group_runs(self, sid: str) -> Iterator[GroupRun]: ...
    def status(self, jid: str, *, serial: int = 0) -> RunState: ...
    def cancel(self, jid: str, *, serial: int = 0, reason: str = "") -> RunState: ...
    def open_file(self, jid: str, name: str, *, serial: int = 0, offset: int = 0) -> Any: ...
    def put_data(
        self, jid: str, name: str, data: bytes, *, serial: int = 0, active: bool = False
    ) -> None: ...
    def why(self, jid: str) -> dict[str, Any]: ...
    def upload(
        self, simulation_type: str, name: str, pieces: Iterable[bytes], size: int
    ) -> dict[str, Any]: ...
    def delete_file(self, simulation_type: str, name: str) -> None: ...


class Executor(concurrent.futures.Executor):
    """Calls Python functions in jobs. Its runs are one group (`sid`), with a run directory each.

    resources: options of all runs (see `Client.run`), and `python`: the Python of the job.
    max_workers: largest number of concurrent runs. inline_bytes: larger arguments go into a file;
    0 keeps all arguments out of the event log. Use `with`, or call `shutdown`. Runs continue if
    this process ends.
    """

    def __init__(
        self,
        client: Caller,
        *,
        max_workers: int | None = None,
        resources: Mapping[str, Any] | None = None,
        inline_bytes: int = calls.INLINE_BYTES,
        max_bytes: int = calls.MAX_BYTES,
    ) -> None:
        if not 0 <= inline_bytes <= calls.MAX_INLINE_BYTES:
            raise ClientError(
                "badRequest",
                f"inline_bytes is from 0 to {calls.MAX_INLINE_BYTES}, not {inline_bytes}",
            )
        self._client = client.copy()
        self._max_workers, self._resources = max_workers, dict(resources or {})
        self._inline_bytes, self._max_bytes = inline_bytes, max_bytes
        self.sid = random_ids.simulation_id()
        self._numbers = itertools.count(1)
        self._live: dict[str, FunctionFuture[Any]] = {}
        #: computeModels of runs with a library file
        self._files: set[str] = set()
        self._ended = 0
        self._total = 0
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = self._abandoned = False

    # ---- calls

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> FunctionFuture[T]:
        """Submit a call. Returns when its run is durable. Raises ClientError."""
        return self.call(fn, args, kwargs)

    def call(
        self,
        function: Callable[..., T],
        args: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
        resources: Mapping[str, Any] | None = None,
    ) -> FunctionFuture[T]:
        """Submit a call with its own `resources` in addition to those of the executor."""
        packed = self._packed(function, [(args, options or {})], many=False)
        (future,) = self._submit([packed], resources)
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """Yield the results in order; raise the exception of the first call that failed.

        chunksize: number of calls in one run, which share a process. timeout: seconds from now.
        When the iterator is closed, waiting runs are canceled.
        """
        end = None if timeout is None else time.monotonic() + timeout
        return results(self.map_futures(fn, iterables, chunksize), self.outcomes, end)

    def map_futures(
        self, fn: Callable[..., Any], iterables: Sequence[Iterable[Any]], chunksize: int
    ) -> list[FunctionFuture[Any]]:
        """Submit the calls of a map, and return one future for each chunk. Raises ClientError."""
        if chunksize < 1:
            raise ValueError("chunksize must be at least 1")
        inputs = zip(*iterables, strict=False)
        packed = []
        while chunk := list(itertools.islice(inputs, chunksize)):
            packed.append(self._packed(fn, [(args, {}) for args in chunk], many=True))
        return self._submit(packed, None)

    @staticmethod
    def outcomes(future: FunctionFuture[Any]) -> list[Outcome]:
        """Return the outcomes of a future of `map_futures` that is done. Raises its exception."""
        found: list[Outcome] = future.result(0)
        return found

    def submit_pinned(
        self, pin: str, fn: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> FunctionFuture[T]:
        """Refuse a pinned call: each call here has a process of its own. Raises ClientError."""
        raise no_workers("pins")

    def store(self, timeout: float | None = None) -> bool:
        """Return True: each submitted call is durable."""
        return True

    def _repr_html_(self) -> str:
        with self._wake:
            rows = {"group": self.sid, "calls": self._total, "not ended": len(self._live)}
        return table("Executor", rows)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. wait: until all calls have ended. cancel_futures: cancel their runs
        first.
        """
        with self._wake:
            self._closed = True
            live = list(self._live.values())
        if cancel_futures:
            for future in live:
                future.cancel()
        if wait:
            concurrent.futures.wait(live)
            self._stop_watching()

    def abandon(self) -> None:
        """Stop watching. Unfinished futures fail with the ids of their runs, which continue."""
        with self._wake:
            self._closed = self._abandoned = True
            left, self._live = self._live, {}
            self._wake.notify_all()
        for jid, future in left.items():
            future.settle(
                None,
                own(
                    "callFailed",
                    f"the client was closed before the call ended; the run {jid} continues",
                ),
            )
        self._stop_watching()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown(wait=True)

    # ---- submission

    def _packed(
        self, function: Callable[..., Any], arguments: Sequence[Any], *, many: bool
    ) -> calls.Payload:
        return calls.payload(
            function,
            arguments,
            many=many,
            inline_bytes=self._inline_bytes,
            max_bytes=self._max_bytes,
        )

    def _submit(
        self, packed: Sequence[calls.Payload], resources: Mapping[str, Any] | None
    ) -> list[FunctionFuture[Any]]:
        """Submit one run for each payload. Raises ClientError if one is refused; then the others
        are canceled.
        """
        with self._wake:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
        options, pythons = calls.split_resources({**self._resources, **(resources or {})})
        futures: list[FunctionFuture[Any]] = []
        uploaded: list[str] = []
        try:
            for specs in _bulks(self._specs(packed, options, pythons, uploaded)):
                for job in self._client.run_many(specs):
                    if isinstance(job, ClientError):
                        raise job
                    futures.append(self._watched(job.jid, job.serial))
        except BaseException:
            for future in futures:
                with contextlib.suppress(ClientError):
                    future.cancel()
            started = {_model(future.jid) for future in futures}
            for model in uploaded:
                if model not in started:
                    self._remove_file(model)
            raise
        return futures

    def _specs(
        self,
        packed: Sequence[calls.Payload],
        options: dict[str, Any],
        pythons: Sequence[str],
        uploaded: list[str],
    ) -> Iterator[RunSpec]:
        """Yield the specs. uploaded: gets the computeModels of calls with a library file."""
        for each in packed:
            model = f"call{next(self._numbers):06d}"
            file = _file_name(self.sid, model)
            if not each.inline:
                self._files.add(model)
                uploaded.append(model)
                self._client.upload(APP, file, [each.data], len(each.data))
            yield self._client.spec(
                calls.command(each, file, pythons),
                simulation_id=self.sid,
                compute_model=model,
                at_once=self._max_workers,
                **calls.with_call(options, each),
            )

    def _watched(self, jid: str, serial: int) -> FunctionFuture[Any]:
        future = FunctionFuture[Any](self._cancel)
        future.jid, future.serial = jid, serial
        with self._wake:
            self._live[jid] = future
            self._total += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name=f"jobscribe-{self.sid}", daemon=True
                )
                self._thread.start()
            self._wake.notify_all()
        return future

    def _cancel(self, future: FunctionFuture[Any]) -> bool:
        state = self._client.cancel(future.jid, serial=future.serial, reason="future canceled")
        return state.state == CANCELED

    # ---- the watching thread

    def _watch(self) -> None:
        """Settle futures until none is left."""
        pause = _FIRST_SECS
        while True:
            with self._wake:
                if not self._live:
                    self._thread = None
                    return
                before = self._total
            try:
                progress = self._look()
            except ClientError as e:
                progress = False
                if not e.retry:
                    self._fail_all(e)
            except Exception as e:  # nobody would wake those who wait
                progress = False
                self._fail_all(e)
            with self._wake:
                new = progress or self._total != before
                pause = _FIRST_SECS if new else min(pause * 1.5, _LONGEST_SECS)
                if not self._abandoned:
                    self._wake.wait(max(pause, self._total / _RUNS_PER_SEC))

    def _look(self) -> bool:
        """Settle the futures of runs that are over. Return whether there were any."""
        with self._wake:
            live = dict(self._live)
        state = self._client.group(self.sid, limit=0)
        over = state.total - state.busy
        if over <= self._ended and state.busy:
            return False
        settled = delayed = 0
        for run in self._client.group_runs(self.sid):
            future = live.pop(run.compute_jid, None) if run.over else None
            if future is not None:
                try:
                    self._settle(run, future)
                    settled += 1
                except ClientError as e:
                    if not e.retry:
                        raise
                    delayed += 1  # such as an agent that is away; other results may be there
        if not state.busy:
            for jid, future in live.items():  # their runs were purged, or the log was lost
                self._forget(jid, future, own("callFailed", f"there is no run {jid} any more"))
        self._ended = -1 if delayed else over
        return settled > 0

    def _settle(self, run: GroupRun, future: FunctionFuture[Any]) -> None:
        ended = run_end(self._client, run, future.serial)
        many, outcomes, error = False, list[Outcome](), None
        if ended.user_canceled:
            future.run_canceled()
        elif not future.done():
            try:
                many, outcomes = of_run(self._client, ended)
            except ClientError as e:
                if e.retry:
                    raise
                error = e
        if error is None and not many and outcomes:
            future.settle(outcomes[0].value, outcomes[0].error)
        elif not future.done():
            future.settle(outcomes, error)
        self._forget(run.compute_jid, future, None)

    def _forget(self, jid: str, future: FunctionFuture[Any], error: ClientError | None) -> None:
        """Watch this future no longer. Remove its arguments."""
        if error is not None:
            future.settle(None, error)
        with self._wake:
            self._live.pop(jid, None)
        self._remove_file(_model(jid))

    def _remove_file(self, model: str) -> None:
        if model in self._files:
            self._files.discard(model)
            # the job removes it if the call succeeds
            with contextlib.suppress(ClientError):
                self._client.delete_file(APP, _file_name(self.sid, model))

    def _fail_all(self, error: Exception) -> None:
        with self._wake:
            left, self._live = self._live, {}
        for future in left.values():
            future.settle(None, error)

    def _stop_watching(self) -> None:
        with self._wake:
            thread = self._thread
            self._wake.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._client.close()


def run_end(client: Caller, run: GroupRun, serial: int) -> Ended:
    """Return how a run ended. The attempt matters only if a later attempt may have no result."""
    attempt, sentence = None, ""
    if run.state not in (COMPLETED, CANCELED):
        state = client.status(run.compute_jid, serial=serial)
        attempt, sentence = state.attempt, state.sentence()
    return Ended(
        run.compute_jid,
        serial,
        run.state,
        run.reason,
        attempt,
        sentence or run.error or f"{run.state}: {run.reason}",
    )


def _model(jid: str) -> str:
    return split_jid(jid)[2]


def _file_name(sid: str, model: str) -> str:
    return f"{sid}-{model}.bin"


def _bulks(specs: Iterable[RunSpec]) -> Iterator[list[RunSpec]]:
    """Group runs into requests within the limits of the supervisor."""
    bulk: list[RunSpec] = []
    size = 0
    for spec in specs:
        bulk.append(spec)
        size += sum(map(len, spec.command))
        if size > _BULK_BYTES or len(bulk) == _BULK_RUNS:
            yield bulk
            bulk, size = [], 0
    if bulk:
        yield bulk


def no_workers(what: str) -> ClientError:
    """Return the error of an option that only warm workers have."""
    return ClientError("badRequest", f"{what} need warm workers; give the executor `workers=N`")


def results(
    waiting: list[FunctionFuture[Any]],
    outcomes: Callable[[FunctionFuture[Any]], list[Outcome]],
    end: float | None,
) -> Iterator[Any]:
    """Yield the outcomes of futures of a map. Cancels the rest if the caller stops, or a call fails.

    waiting: this list is emptied. end: monotonic time.
    """
    waiting.reverse()
    try:
        while waiting:
            left = None if end is None else max(0.0, end - time.monotonic())
            concurrent.futures.wait([waiting[-1]], left)
            if not waiting[-1].done():
                raise TimeoutError
            found = outcomes(waiting.pop())[::-1]
            while found:  # without a reference to a value that the caller has
                yield found.pop().get()
    finally:
        for future in waiting:
            with contextlib.suppress(ClientError):
                future.cancel()
