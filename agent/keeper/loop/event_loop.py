"""The keeper's event loop: readable and writable descriptors, signals, and monotonic timers.

An error in a callback does not stop the loop: it is logged, and the callback of a signal or timer
is retried a little later. A keeper that lacks descriptors or memory must still report the end of
its jobs later.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import time
import traceback

from .log import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


_AGAIN_SECS = 0.2
#: A repeated identical failure is logged the first time, and then once per this number of times.
_SAY_EVERY = 300
#: Number of distinct failures that are counted.
_FAILURES_KEPT = 100


class Loop:
    """A single-threaded event loop. Setting a timer again under the same key moves it."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._signals: dict[int, Callable[[], None]] = {}
        self._failures: dict[str, int] = {}
        self._exit_code: int | None = None
        #: monotonic start of the previous turn: every event noticed in this turn happened after it
        self.since = self._turn_started = time.monotonic()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self.watch(self._woken.fileno(), selectors.EVENT_READ, self._on_signals)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call `callback(events)` when `fd` is ready for any of `events`; replaces an earlier watch."""
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, callback)
        else:
            self._selector.register(fd, events, callback)

    def unwatch(self, fd: int) -> None:
        self._selector.unregister(fd)

    def call_at(self, key: Hashable, when: float, callback: Callable[[], None]) -> None:
        """Call `callback` once at monotonic time `when`."""
        self._timers[key] = (when, callback)

    def cancel(self, key: Hashable) -> None:
        self._timers.pop(key, None)

    def has_timer(self, key: Hashable) -> bool:
        return key in self._timers

    def on_signal(self, number: int, callback: Callable[[], None]) -> None:
        """Call `callback` from the loop after this signal; several pending signals count as one."""
        self._signals[number] = callback
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)

    def run(self) -> int:
        """Run until `stop`; return its code."""
        while self._exit_code is None:
            self.since, self._turn_started = self._turn_started, time.monotonic()
            timeout = None
            if self._timers:
                timeout = max(
                    0.0, min(when for when, _ in self._timers.values()) - time.monotonic()
                )
            for key, events in self._selector.select(timeout):
                self._call(key.data, events)
            self._run_timers()
        return self._exit_code

    def stop(self, code: int) -> None:
        self._exit_code = code

    def close(self) -> None:
        """Release all descriptors; no callback runs afterwards."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def _on_signals(self, _: int) -> None:
        came = set(self._woken.recv(4096))
        for number in self._signals.keys() & came:
            self._call_with_retry(("signal", number), self._signals[number])

    def _call_with_retry(self, key: Hashable, callback: Callable[[], None]) -> None:
        if not self._call(callback):
            self._timers.setdefault(key, (time.monotonic() + _AGAIN_SECS, callback))

    def _call(self, callback: Callable[..., None], *args: int) -> bool:
        try:
            callback(*args)
        except Exception as error:
            with contextlib.suppress(Exception):  # logging may fail for lack of memory too
                self._log_failure(error)
            return False
        return True

    def _log_failure(self, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        times = self._failures.get(text, 0)
        if times == 0 and len(self._failures) >= _FAILURES_KEPT:
            self._failures.clear()
        self._failures[text] = times + 1
        if times % _SAY_EVERY == 0:
            log(text if times == 0 else f"seen {times + 1} times: {text}")

    def _run_timers(self) -> None:
        now = time.monotonic()
        for key in [k for k, (when, _) in self._timers.items() if when <= now]:
            timer = self._timers.get(key)
            # an earlier callback may have moved or canceled it
            if timer is not None and timer[0] <= now:
                del self._timers[key]
                self._call_with_retry(key, timer[1])
