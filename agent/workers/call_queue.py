"""Calls of apps, from message to answer: queue, fork, deadline, end.

Every call is answered exactly once, whatever the app, its process or the worker process does; a
canceled call is not answered. The processes are in `worker_process`, reached through
`worker_channel`; `call_handler` computes the answer there.
"""

import asyncio
import contextlib
import os
import shutil
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...protocol.ids import short_op
from ...protocol.wire.messages import Call, CallReply, OpError, message_log_ids
from ...runtime.log.logger import Log
from ..host.login_environment import LoginEnvironment
from .call_handler import Outcome, describe, invalid_answer, log_line, message, unanswered
from .worker_channel import Fork, WorkerLink
from .worker_process import WorkerEvent, WorkerOrder

#: Limit of waiting calls; more are refused with "tooManyRequests".
QUEUE_LIMIT = 64
#: Forks created in advance, so that a call need not wait for one.
SPARES = 2
#: A killed call is answered after at most this long (seconds), even if its end was not seen.
KILL_SECS = 1.0
#: Time limit of an import in the worker process (seconds). A call has already imported the same
#: modules.
LOAD_SECS = 60.0
#: A call's printed output: bytes kept for the log, and bytes after which the call is stopped.
PRINTED_KEPT, PRINTED_LIMIT = 8000, 64 * 1024 * 1024
_AT_ONCE = 1 << 20
_READ = 256 * 1024
_LENGTH_BYTES = 4
#: Size limit of an outcome without its reply (bytes): imported modules, sentence, traceback.
_BESIDES = 1024 * 1024

_outcome = msgspec.msgpack.Decoder(Outcome)
_encode = msgspec.msgpack.encode
#: The outcome of a canceled call, which is not sent.
_CANCELED = Outcome(sentence="canceled")


class _Work:
    """One call. verdict: the outcome of a call that is being stopped. is_retry: a second attempt."""

    __slots__ = (
        "backstop",
        "call",
        "deadline",
        "fork",
        "is_retry",
        "log",
        "printed",
        "printed_bytes",
        "received",
        "sending",
        "since",
        "verdict",
    )

    def __init__(self, call: Call, log: Log, since: float, deadline: asyncio.TimerHandle) -> None:
        self.call, self.log, self.since, self.deadline = call, log, since, deadline
        self.fork: Fork | None = None
        self.is_retry = False
        self.received = bytearray()
        self.printed = bytearray()
        self.printed_bytes = 0
        self.sending: asyncio.Task[None] | None = None
        self.verdict: Outcome | None = None
        self.backstop: asyncio.TimerHandle | None = None


class _AppTrace(Exception):
    """A traceback from another process, for the log."""


class CallQueue:
    """The calls of one agent. folder: for working directories of calls; emptied at each start.
    reply: sends the answers.
    """

    def __init__(
        self,
        log: Log,
        login: LoginEnvironment,
        root: str,
        folder: Path,
        also: tuple[str, ...],
        reply: Callable[[CallReply | OpError], None],
        *,
        at_once: int | None = None,
    ) -> None:
        self._log, self._login, self._root, self._folder, self._also, self._reply = (
            log,
            login,
            root,
            folder,
            also,
            reply,
        )
        self._at_once = at_once or max(2, len(os.sched_getaffinity(0)))
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Work] = deque()
        self._works: dict[str, _Work] = {}
        self._busy: dict[int, _Work] = {}
        self._spares: deque[Fork] = deque()
        self._ordered = 0
        self._stale = False
        self._link: WorkerLink | None = None
        self._starting: asyncio.Task[None] | None = None
        self._proven = False
        self._loading: asyncio.TimerHandle | None = None
        self._loads: set[str] = set()
        self._last_load: set[str] = set()
        self._fatal: set[str] = set()
        self._null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)

    # ---- public

    def call(self, call: Call) -> None:
        """Queue a call. A repeated call is answered once."""
        if call.op_id in self._works:
            return
        if len(self._queue) >= QUEUE_LIMIT:
            self._reply(
                OpError(
                    op_id=call.op_id,
                    code="tooManyRequests",
                    error=f"{QUEUE_LIMIT} calls wait for a worker already; try again later",
                )
            )
            return
        work = _Work(
            call,
            self._log.bound(**message_log_ids(call)),
            time.monotonic(),
            self._loop.call_later(call.deadline_secs, self._deadline_passed, call.op_id),
        )
        self._works[call.op_id] = work
        self._queue.append(work)
        self._advance()

    def cancel(self, op_id: str) -> None:
        """Stop a call without an answer; no-op if it is unknown or answered."""
        self._stop(op_id, _CANCELED)

    def reload_apps(self, also: tuple[str, ...]) -> None:
        """Restart the worker process with this app list when no call runs; waiting calls start
        afterwards.
        """
        self._also = also
        self._stale = self._stale or self._link is not None or self._starting is not None
        self._advance()

    def close(self) -> None:
        """End the worker process and every call without answers."""
        if self._starting is not None:
            self._starting.cancel()
        if self._link is not None:
            self._link.close()
            self._link = None
        for work in self._works.values():
            work.deadline.cancel()
            self._release(work)
        self._works.clear()
        self._queue.clear()
        self._drop_spares()

    @property
    def worker_pid(self) -> int | None:
        return None if self._link is None else self._link.pid

    # ---- queue and forks

    def _advance(self) -> None:
        """Start waiting calls on spare forks, and order the forks that will be needed."""
        if self._stale:
            if self._link is not None and not self._busy:
                self._link.kill()  # when it ends, the next worker process starts
            return
        while self._queue and self._spares and len(self._busy) < self._at_once:
            self._begin(self._queue.popleft(), self._spares.popleft())
        if self._link is not None:
            soon = min(len(self._queue), max(0, self._at_once - len(self._busy)))
            for _ in range(soon + SPARES - len(self._spares) - self._ordered):
                self._ordered += 1
                self._link.send(WorkerOrder("fork"))
        elif self._queue and self._starting is None:
            self._starting = self._loop.create_task(self._start())
            self._starting.add_done_callback(self._started)

    async def _start(self) -> None:
        await self._login.load()
        if self._login.sentence:
            self._log("login profile: {}", self._login.sentence)
        await asyncio.to_thread(_empty_folder, self._folder)
        link = WorkerLink(self._handle_event, self._ended)
        self._ordered, self._proven = 0, False
        link.start(
            self._root, self._login.known or {}, self._folder, int(self._login.umask, 8), self._also
        )
        self._link = link
        self._log("worker process {} starts", link.pid)

    def _started(self, task: asyncio.Task[None]) -> None:
        self._starting = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._log.exception("cannot start a worker process", error=error)
            self._give_up(f"cannot start a worker process: {error}")
        self._advance()

    def _handle_event(self, event: WorkerEvent, fork: Fork | None) -> None:
        match event.said:
            case "forked":
                self._ordered -= 1
                self._proven = True
                if fork is not None:
                    self._spares.append(fork)
            case "ended":
                self._fork_ended(event.pid, event.status)
            case "loaded":
                self._loaded(event.sentence)
            case _:
                self._log("worker process: {}", event.sentence)
                self._ordered = 0
                self._give_up(event.sentence)
                return  # the next call tries again
        self._advance()

    def _give_up(self, sentence: str) -> None:
        """Fail all waiting calls: none can start now."""
        for work in list(self._queue):
            self._finish(work, Outcome("agentUnavailable", sentence))

    def _ended(self, how: str) -> None:
        """Handle the end of the worker process, and of its forks with it."""
        self._log(
            "the worker process ended: {}",
            "restarted to load changed apps" if self._stale else how,
        )
        self._link, was_stale, self._stale = None, self._stale, False
        if was_stale:
            self._fatal.clear()
            self._last_load = set()
        if self._loading is not None:  # the import may have killed it: do not retry that
            self._loading.cancel()
            self._loading = None
            self._fatal |= self._last_load
        self._loads = set(self._fatal)
        self._drop_spares()
        for work in list(self._busy.values()):
            self._read_answer(work)
            if work.call.op_id in self._works:
                sentence = (
                    f"the worker process ended ({how}) before {describe(work.call)} was answered"
                )
                self._finish(work, work.verdict or Outcome("agentUnavailable", sentence))
        if not self._proven and not was_stale:
            self._give_up(
                f"the worker process ended ({how}) before it created a process for a call; see the agent's log"
            )
        self._advance()

    def _drop_spares(self) -> None:
        while self._spares:
            self._spares.popleft().close()

    # ---- a call

    def _begin(self, work: _Work, fork: Fork) -> None:
        work.fork = fork
        self._busy[fork.pid] = work
        self._loop.add_reader(fork.socket, self._read_answer, work)
        self._loop.add_reader(fork.output, self._read_printed, work)
        body = _encode(work.call)
        data = len(body).to_bytes(_LENGTH_BYTES) + body
        try:
            sent = fork.socket.send(data)
        except OSError:  # it has ended, which will be reported
            return
        if sent < len(data):
            work.sending = self._loop.create_task(_send_rest(fork, data[sent:]))

    def _read_answer(self, work: _Work) -> None:
        """Read from the fork's socket."""
        while work.fork is not None:
            try:
                data = work.fork.socket.recv(_READ)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:  # the worker process reports how it ended
                self._loop.remove_reader(work.fork.socket)
                return
            work.received += data
            size = int.from_bytes(work.received[:_LENGTH_BYTES])
            if len(work.received) >= _LENGTH_BYTES and size > work.call.reply_limit + _BESIDES:
                self._stop(work.call.op_id, invalid_answer(work.call))
                return
            if len(work.received) >= _LENGTH_BYTES + size:
                self._answered(
                    work, memoryview(work.received)[_LENGTH_BYTES : _LENGTH_BYTES + size]
                )
                return

    def _answered(self, work: _Work, body: memoryview) -> None:
        try:
            outcome = _outcome.decode(body)
        except msgspec.DecodeError:
            self._stop(work.call.op_id, invalid_answer(work.call))
            return
        if outcome.outdated and work.verdict is None and not work.is_retry:
            self._retry(work)
            return
        self._finish(work, work.verdict or outcome)
        if outcome.imported or outcome.loaded:
            self._load(work.call.simulation_type, outcome)
        self._advance()

    def _retry(self, work: _Work) -> None:
        """Retry a call whose app was changed on disk since the worker process imported it."""
        work.is_retry, work.received = True, bytearray()
        self._release(work)
        self._queue.appendleft(work)
        self.reload_apps(self._also)

    def _read_printed(self, work: _Work) -> None:
        """Read printed output: keep the first bytes, discard the rest, stop a call that exceeds the
        limit.
        """
        fork = work.fork
        if fork is None:
            return
        with contextlib.suppress(BlockingIOError):
            if len(work.printed) < PRINTED_KEPT:
                data = os.read(fork.output, PRINTED_KEPT - len(work.printed))
                work.printed += data
                got = len(data)
            else:
                got = os.splice(fork.output, self._null, _AT_ONCE, flags=os.SPLICE_F_NONBLOCK)
            work.printed_bytes += got
            if not got:
                self._loop.remove_reader(fork.output)
            elif work.printed_bytes > PRINTED_LIMIT and work.verdict is None:
                limit = PRINTED_LIMIT >> 20
                self._stop(
                    work.call.op_id,
                    Outcome(
                        "appFailed",
                        f"{describe(work.call)} printed more than {limit} MiB and was stopped",
                    ),
                )

    def _deadline_passed(self, op_id: str) -> None:
        work = self._works[op_id]
        secs = f"{work.call.deadline_secs:g} s"
        if work.fork is None:
            self._stop(
                op_id, Outcome("deadline", f"{describe(work.call)} waited {secs} for a free worker")
            )
        else:
            self._stop(
                op_id,
                Outcome(
                    "deadline",
                    f"{describe(work.call)} did not finish within {secs} and was stopped",
                ),
            )

    def _stop(self, op_id: str, verdict: Outcome) -> None:
        """Kill a call; it is answered with the first verdict when no process of it is left."""
        work = self._works.get(op_id)
        if work is None or work.verdict is not None:
            return
        if work.fork is None:
            self._finish(work, verdict)
            return
        work.verdict = verdict
        work.backstop = self._loop.call_later(KILL_SECS, self._kill_timed_out, op_id)
        if self._link is not None:
            self._link.send(WorkerOrder("kill", pid=work.fork.pid))

    def _kill_timed_out(self, op_id: str) -> None:
        work = self._works[op_id]
        assert work.verdict is not None
        work.log(
            "o={} was killed, but its end was not seen within {} s", short_op(op_id), KILL_SECS
        )
        self._finish(work, work.verdict)
        self._advance()

    def _fork_ended(self, pid: int, status: int) -> None:
        """Handle the end of a fork and all its processes."""
        work = self._busy.get(pid)
        if work is None:
            for fork in [f for f in self._spares if f.pid == pid]:
                self._spares.remove(fork)
                fork.close()
            return
        self._read_answer(work)  # the socket may still hold its answer
        if work.call.op_id in self._works:
            self._finish(work, work.verdict or unanswered(work.call, status))

    def _finish(self, work: _Work, outcome: Outcome) -> None:
        """Remove a call, log it and send its answer."""
        call = work.call
        work.deadline.cancel()
        self._works.pop(call.op_id, None)
        if work.fork is None:
            self._queue.remove(work)
        self._release(work)
        log_fields = log_line(call, outcome, time.monotonic() - work.since)
        if outcome.trace:
            work.log.exception(*log_fields, error=_AppTrace(outcome.trace))
        else:
            work.log(*log_fields)
        if work.printed:
            work.log(
                "o={} printed {} bytes: {}",
                short_op(call.op_id),
                work.printed_bytes,
                work.printed.decode("utf-8", "replace"),
            )
        if outcome is not _CANCELED:
            self._reply(message(call, outcome))

    def _release(self, work: _Work) -> None:
        if work.backstop is not None:
            work.backstop.cancel()
        if work.sending is not None:
            work.sending.cancel()
        fork, work.fork = work.fork, None
        if fork is None:
            return
        self._busy.pop(fork.pid, None)
        self._loop.remove_reader(fork.socket)
        self._loop.remove_reader(fork.output)
        with contextlib.suppress(BlockingIOError):  # read the last printed bytes
            if len(work.printed) < PRINTED_KEPT:
                data = os.read(fork.output, PRINTED_KEPT - len(work.printed))
                work.printed += data
                work.printed_bytes += len(data)
            work.printed_bytes += os.splice(
                fork.output, self._null, _AT_ONCE, flags=os.SPLICE_F_NONBLOCK
            )
        fork.close()

    # ---- imports for later calls

    def _load(self, app: str, outcome: Outcome) -> None:
        """Order the worker process to import the modules that a call imported. Order each name only
        once, because a failed import would fail again.
        """
        modules = tuple(m for m in outcome.imported if m not in self._loads)
        app_too = f"app {app}" not in self._loads
        if self._link is None or self._loading is not None or not (modules or app_too):
            return
        self._last_load = {*modules, f"app {app}"}
        self._loads |= self._last_load
        self._link.send(WorkerOrder("load", app=app if app_too else "", modules=modules))
        self._loading = self._loop.call_later(LOAD_SECS, self._link.kill)

    def _loaded(self, failure: str) -> None:
        """Replace the spare forks: those made earlier lack the new modules."""
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        if failure:
            self._log(
                "worker process: cannot import for later calls what a call has imported: {}",
                failure,
            )
        self._drop_spares()


async def _send_rest(fork: Fork, data: bytes) -> None:
    with contextlib.suppress(OSError):  # it has ended, which will be reported
        await asyncio.get_running_loop().sock_sendall(fork.socket, data)


def _empty_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
