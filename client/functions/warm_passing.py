"""The thread of a warm executor: it starts workers, assigns calls, and passes outcomes."""

import contextlib
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..api.errors import ClientError, own
from . import calls
from .executor import Caller, run_end
from .outcomes import Ended, failed, outcome_of
from .warm_queue import CallQueue
from .warm_worker import WarmCall, WarmWorker

#: Pauses of the thread: the first, the longest with calls; with many calls.
_FIRST_SECS, _LONGEST_SECS, _BUSY_SECS = 0.002, 0.1, 0.012
_BUSY_CALLS = 16
#: Seconds between two looks at the states of the runs.
_OBSERVE_SECS = 0.5
#: Bytes of arguments in one batch.
_BATCH_BYTES = 4 * 1024 * 1024
#: Runs in a row that may end without an outcome before all calls fail.
_FRUITLESS = 3


class WarmPassing:
    """Passes the calls of a queue to at most `most` workers, which are runs of the group `sid`.

    options: of each run. pythons: to try in order. idle_secs: a worker ends after this time without
    calls.
    """

    def __init__(
        self,
        client: Caller,
        queue: CallQueue,
        sid: str,
        *,
        most: int,
        options: Mapping[str, Any],
        pythons: Sequence[str],
        idle_secs: float,
    ) -> None:
        self._client, self._calls, self._sid = client, queue, sid
        self._most, self._options = most, options
        self._command = calls.worker_command(pythons, idle_secs)
        self._numbers = itertools.count(1)
        self._workers: list[WarmWorker] = []
        self._pins: dict[str, WarmWorker] = {}
        self._observed = 0.0
        self._fruitless = 0

    def workers(self) -> str:
        """Return the runs of the workers, for a person."""
        return ", ".join(worker.jid for worker in list(self._workers))

    def run(self) -> None:
        """Pass calls and outcomes until the executor is closed and has no calls."""
        pause = _FIRST_SECS
        while True:
            with self._calls.changed:
                if not self._calls.live:
                    self._calls.changed.wait_for(lambda: self._calls.live or self._calls.closed)
                    pause = _FIRST_SECS
                if not self._calls.live:
                    break
            try:
                progress = self._step()
            except ClientError as e:
                progress = False
                if not e.retry:
                    self._fail_all(e)
            except Exception as e:  # nobody would wake those who wait
                progress = False
                self._fail_all(e)
            pause = _FIRST_SECS if progress else min(pause * 1.5, _LONGEST_SECS)
            with self._calls.changed:
                many = len(self._calls.live) >= _BUSY_CALLS
                self._calls.changed.notify_all()  # those who wait in `store`
                if not many and not self._calls.abandoned and not self._calls.waiting:
                    self._calls.changed.wait(pause)
            if many:  # submissions do not end this pause, so that they travel together
                time.sleep(max(pause, _BUSY_SECS))
        for worker in self._workers:
            with contextlib.suppress(ClientError):
                worker.finish()

    def _step(self) -> bool:
        """Read outcomes, look at runs, and send calls. Return whether there was progress."""
        now = time.monotonic()
        progress = False
        for worker in list(self._workers):
            if worker.calls or not worker.ready:
                progress |= self._receive(worker, now)
        if now - self._observed > _OBSERVE_SECS:
            self._observe()
            self._observed = now
        for worker in [w for w in self._workers if w.over]:
            self._bury(worker)
        self._start_workers()
        return self._send(now) or progress

    def _receive(self, worker: WarmWorker, now: float) -> bool:
        try:
            frames = worker.read()
        except ValueError as e:
            self._remove(worker)
            self._calls.fail(list(worker.calls.values()), own("badResult", f"{worker.jid}: {e}"))
            return True
        count = 0
        for header, body in frames:
            if "batch" in header and header["kind"] == "refused":
                self._calls.fail(
                    worker.refused(header["batch"]), own("callRefused", header["text"])
                )
            elif header["kind"] == "refused" and "call" not in header:
                self._fail_all(own("callRefused", header["text"]))
            elif header["kind"] == "late":
                with self._calls.changed:
                    call = worker.calls.get(header["call"])
                    if call is not None and call.future in self._calls.cancels:
                        self._calls.cancels[call.future] = False
            elif "call" in header and (call := worker.calls.pop(header["call"], None)):
                self._settle(worker, call, header, body)
                count += 1
        if count:
            worker.settled += count
            self._fruitless = 0
        worker.adapt(count, now)
        return bool(frames)

    def _settle(self, worker: WarmWorker, call: WarmCall, header: Any, body: bytes) -> None:
        if header["kind"] in ("lost", "crashed") and self._calls.again(call):
            return
        if header["kind"] == "canceled":
            self._calls.canceled(call)
            return
        outcome = outcome_of(header, body)
        with self._calls.changed:
            self._calls.live.pop(call.future, None)
            if call.future in self._calls.cancels:
                self._calls.cancels[call.future] = False
        call.future.settle(outcome.value, outcome.error)

    def _fail_all(self, error: Exception) -> None:
        with self._calls.changed:
            left, self._calls.live = list(self._calls.live.values()), {}
            self._calls.waiting.clear()
        for worker in self._workers:
            worker.calls.clear()
        self._calls.fail(left, error)

    def _observe(self) -> None:
        """Note which workers are over."""
        if not self._workers:
            return
        known = {worker.jid: worker for worker in self._workers}
        for run in self._client.group_runs(self._sid):
            if run.over and (worker := known.get(run.compute_jid)):
                worker.end, worker.over = run, True

    def _bury(self, worker: WarmWorker) -> None:
        """Settle the calls of a worker that is over: those that have not begun get another one."""
        assert worker.end is not None
        self._receive(worker, time.monotonic())
        if worker not in self._workers:
            return
        ended = run_end(self._client, worker.end, worker.serial)
        known = worker.end.exit is not None
        left = list(worker.calls.values())
        with self._calls.changed:
            for call in left:
                call.stored = False
        begun = [c for c in left if worker.may_have_begun(c.number, exit_known=known)]
        self._remove(worker)
        if ended.user_canceled:
            for call in left:
                self._calls.canceled(call)
            return
        self._fruitless += not worker.settled
        error = failed(self._client, ended) if left or not worker.ready else None
        self._calls.fail([c for c in begun if not self._calls.again(c)], error or _no_error(ended))
        with self._calls.changed:
            self._calls.waiting.extendleft(c for c in reversed(left) if c not in begun)
        if error is not None and (not worker.ready or self._fruitless >= _FRUITLESS):
            self._fail_all(error)

    def _remove(self, worker: WarmWorker) -> None:
        self._workers.remove(worker)
        self._pins = {pin: w for pin, w in self._pins.items() if w is not worker}

    def _start_workers(self) -> None:
        with self._calls.changed:
            missing = min(self._most, len(self._calls.live)) - len(self._workers)
        if missing <= 0:
            return
        specs = [
            self._client.spec(
                self._command,
                simulation_id=self._sid,
                compute_model=f"worker{next(self._numbers):04d}",
                **self._options,
            )
            for _ in range(missing)
        ]
        for job in self._client.run_many(specs):
            if isinstance(job, ClientError):
                raise job
            self._workers.append(WarmWorker(self._client, job.jid, job.serial))

    def _send(self, now: float) -> bool:
        """Send cancels and calls. Return whether there were any."""
        sent = False
        ready = [w for w in self._workers if w.ready and not w.over]
        for worker in ready:
            worker.resend()
            with self._calls.changed:
                numbers = [
                    c.number
                    for c in worker.calls.values()
                    if self._calls.cancels.get(c.future, True) is None
                    and c.number not in worker.asked
                ]
            if numbers:
                worker.asked.update(numbers)
                worker.cancel(numbers)
        for worker in sorted(ready, key=lambda w: len(w.calls)):
            if batch := self._batch(worker, ready):
                worker.add(batch, now)
                sent = True
        return sent

    def _batch(self, worker: WarmWorker, ready: list[WarmWorker]) -> list[WarmCall]:
        """Take calls from the queue for a worker."""
        batch: list[WarmCall] = []
        size = 0
        with self._calls.changed:
            share = -(-len(self._calls.waiting) // len(ready))
            room = share if self._calls.storing else min(share, worker.limit - len(worker.calls))
            others: list[WarmCall] = []
            while self._calls.waiting and len(batch) < room and size < _BATCH_BYTES:
                call = self._calls.waiting.popleft()
                if call.pin is not None and self._pins.setdefault(call.pin, worker) is not worker:
                    others.append(call)
                    continue
                batch.append(call)
                size += len(call.arguments)
            self._calls.waiting.extendleft(reversed(others))
        return batch


def _no_error(ended: Ended) -> ClientError:
    return own("callFailed", ended.sentence)
