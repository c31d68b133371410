"""One Docker host: all calls to it, in a few threads and with deadlines, and the monitoring of its
state.

Nothing here knows containers; callers pass their calls as functions of the client.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ....protocol.clusters.container_pool import PoolHost
from ....runtime.latency_histogram import LatencyHistogram
from ....runtime.log.logger import Log
from ....runtime.thread_pool import Closed, Stuck, Threads
from .client import (
    certificate_problems,
    connect_once,
    missing_files,
    new_client,
    parse_address,
    probe,
)
from .errors import FOREIGN, LEAST_API, EngineError, engine_error, timed_out, too_old
from .event_stream import Events, Position, api_error, server_clock

__all__ = ["EngineError", "HostEngine"]

T = TypeVar("T")

#: concurrent calls; long calls such as pulls, and the watch with the events, have their own threads
CALLS, LONG_CALLS, WATCHES = 8, 32, 2
#: interval of pings to a host that is up, and their timeout
PING_SECS, PING_TIMEOUT_SECS = 3.0, 5.0
#: first and last pause before the next try to reach a host that is down; the pause doubles
FIRST_RETRY_SECS, LAST_RETRY_SECS = 0.5, 10.0
#: interval of reconciliations, even if no event was missed
RECONCILE_SECS = 30.0
#: age of an idle connection that is not used again, because a firewall may have dropped it silently
IDLE_SECS = 60.0
CLOSE_SECS = 3.0


class HostEngine:
    """Access to one host. Everything but the functions passed to `call` runs on the event loop.
    on_state is called on changes only; on_sync whenever events may have been missed.

    on_event: the daemon's events in order, each once. The first stream also contains the events of
    the second before it.
    """

    def __init__(
        self,
        host: PoolHost,
        *,
        deployment: str,
        log: Log,
        call_secs: float,
        on_state: Callable[[str, bool, str], None],
        on_event: Callable[[str, dict[str, Any]], None],
        on_sync: Callable[[str], None],
    ) -> None:
        self.host, self.name = host, host.name
        self.up, self.detail = False, "not asked yet"
        #: wall time of the last change between up and down; version of the daemon, once known
        self.since: float | None = None
        self.version: str | None = None
        self.timings = LatencyHistogram()
        #: set when the host has answered, or has not answered, for the first time
        self.known = asyncio.Event()
        self._deployment, self._log, self._call_secs = deployment, log, call_secs
        self._on_state, self._on_event, self._on_sync = on_state, on_event, on_sync
        self._api = LEAST_API
        #: per thread: API version, client, and last use (monotonic)
        self._clients: dict[int, tuple[str, Any, float]] = {}
        self._calls = Threads(f"docker-{host.name}", CALLS)
        self._long = Threads(f"docker-long-{host.name}", LONG_CALLS)
        self._own = Threads(f"docker-watch-{host.name}", WATCHES)
        self._position = Position()
        self._events: Events | None = None
        self._followed = self._synced = 0.0
        self._wake = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to monitor the host. Never raises; problems are reported by on_state."""
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(
                self._monitor(), name=f"docker-watch-{self.name}"
            )

    async def is_up(self) -> bool:
        """Return whether the host answers. After the start, wait until that is known."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.known.wait(), self._call_secs)
        return self.up

    async def call(self, action: str, work: Callable[[Any], T], secs: float | None = None) -> T:
        """Run `work` with a client in a thread and return its result. Raises EngineError. what: the
        action for its sentence, e.g. "start srj-p-joe".

        A call that ended in `timeout` or `unreachable` may have been carried out.
        """
        return await self._run(self._calls, action, work, self._call_secs if secs is None else secs)

    async def long_call(self, action: str, work: Callable[[Any], T], secs: float) -> T:
        """Like `call`, for actions that take minutes. They do not delay short calls."""
        return await self._run(self._long, action, work, secs)

    async def check(self) -> list[str]:
        """Return a sentence for each problem of this host, with its solution; empty if the host is
        usable.
        """
        problems: list[str] = []
        try:
            parse_address(self.host)
            problems = await self._own.run(lambda: missing_files(self.host), PING_TIMEOUT_SECS)
            if problems:
                return problems
            problems = await self._own.run(
                lambda: certificate_problems(self.host, time.time()), PING_TIMEOUT_SECS
            )
            wrong = await self._own.run(
                lambda: probe(self.host, PING_TIMEOUT_SECS), 2 * PING_TIMEOUT_SECS
            )
            if wrong is not None:
                return [*problems, wrong.sentence]
            await self._ask_version()
        except (TimeoutError, Stuck):
            return [timed_out(self.host, "connecting").sentence]
        except EngineError as e:
            return [*problems, e.sentence]
        except OSError as e:  # a file that disappears during the check
            return [*problems, engine_error(self.host, "looking at its certificates", e).sentence]
        return problems

    async def close(self) -> None:
        """Stop the monitoring and all threads that can be stopped. Takes at most 3 s, even if the
        daemon hangs.
        """
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch], timeout=1)
        events, self._events = self._events, None
        if events is not None:
            events.close()
        await asyncio.gather(
            *(t.close(CLOSE_SECS / 2) for t in (self._calls, self._long, self._own))
        )
        if events is not None:
            events.join(0.2)
        # also for hanging threads: closing a session takes none of their locks
        for _, client, _ in list(self._clients.values()):
            client.close()
        self._clients.clear()

    # ---- calls

    async def _run(self, threads: Threads, action: str, work: Callable[[Any], T], secs: float) -> T:
        began, error = time.monotonic(), "canceled"
        try:
            # The timeout of requests comes first and has a better message; the one of asyncio is
            # for answers that trickle.
            result = await threads.run(lambda: self._with_client(action, work, secs), secs + 0.5)
            error = ""
            return result
        except TimeoutError:
            self._wake.set()
            error = "timeout"
            raise timed_out(self.host, action) from None
        except Stuck as e:
            error = "stuck"
            raise EngineError(
                "timeout",
                f"all {e.calls} calls to host {self.name} have been waiting for an answer for {e.since:.0f} s; "
                f"not sent: {action}; check whether its dockerd hangs",
            ) from None
        except Closed:
            raise EngineError(
                "unreachable", f"the connection to host {self.name} is closed: {action}"
            ) from None
        except EngineError as e:
            error = e.code
            if e.code in ("timeout", "unreachable", "badTls"):
                self._wake.set()
            raise
        finally:
            self.timings.record(time.monotonic() - began, error or None)

    def _with_client(self, action: str, work: Callable[[Any], T], secs: float) -> T:
        """Call `work` in a thread with its own client: each call has its own deadline and shares no
        connection.
        """
        me = threading.get_ident()
        try:
            client = self._client(me, secs)
            connect_once(self.host, secs)
            return work(client)
        except FOREIGN as e:
            error = engine_error(self.host, action, e)
            if error.code not in ("notFound", "conflict", "refused"):
                self._forget_client(me)
                error = self._diagnose(error)
            raise error from e

    def _client(self, thread: int, secs: float) -> Any:
        api, client, used = self._clients.get(thread, ("", None, 0.0))
        now = time.monotonic()
        if api != self._api or now - used > IDLE_SECS:
            self._forget_client(thread)
            api, client = self._api, new_client(self.host, self._api, secs)
        self._clients[thread] = api, client, now
        client.timeout = secs
        return client

    def _forget_client(self, thread: int) -> None:
        if (known := self._clients.pop(thread, None)) is not None:
            known[1].close()

    def _diagnose(self, error: EngineError) -> EngineError:
        """Return the reason for a failed connection, found by a probe: a daemon that refuses our
        certificate often just closes the connection.
        """
        if error.code == "unreachable" and self.host.tls is not None and "broke" in error.sentence:
            return probe(self.host, 2.0) or error
        return error

    # ---- the watch

    async def _monitor(self) -> None:
        retry = FIRST_RETRY_SECS
        while True:
            self._wake.clear()
            try:
                date = await self._ping()
            except EngineError as e:
                self._is_down(e.sentence)
                await asyncio.sleep(retry * random.uniform(0.5, 1.0))
                retry = min(2 * retry, LAST_RETRY_SECS)
                continue
            except Exception as e:  # a bug: the host counts as down until it is fixed
                self._log.exception("docker host {} cannot be monitored: {}", self.name, e)
                self._is_down(
                    f"host {self.name} cannot be monitored; see the stack trace in the log"
                )
                await asyncio.sleep(LAST_RETRY_SECS)
                continue
            retry = FIRST_RETRY_SECS
            self._is_up()
            if self._events is None:
                self._open_stream(server_clock(date))
            elif time.monotonic() - self._synced > RECONCILE_SECS:
                self._sync()
            await self._next_ping()

    async def _next_ping(self) -> None:
        try:
            async with asyncio.timeout(PING_SECS):
                await self._wake.wait()
        except TimeoutError:
            return
        # Many failing calls must not cause as many pings.
        await asyncio.sleep(0.05)

    async def _ping(self) -> str | None:
        """Return the daemon's own date."""
        if not self.up:
            return await self._ask_version()
        return await self._run(
            self._own,
            "a ping",
            lambda c: _answer(c, "/_ping").headers.get("Date"),
            PING_TIMEOUT_SECS,
        )

    async def _ask_version(self) -> str | None:
        """Choose an API version that both sides support. Raises EngineError("tooOld")."""
        date, version = await self._run(self._own, "its version", _version, PING_TIMEOUT_SECS)
        api, least = (
            str(version.get("ApiVersion", "0")),
            str(version.get("MinAPIVersion") or LEAST_API),
        )
        if _numbers(api) < _numbers(LEAST_API):
            raise too_old(self.host, str(version.get("Version", "?")), api)
        self._api, self.version = (
            max(LEAST_API, least, key=_numbers),
            str(version.get("Version", "?")),
        )
        return date

    def _is_up(self) -> None:
        self.known.set()
        if not self.up:
            self.up, self.detail, self.since = True, f"host {self.name} answers", time.time()
            self._log("docker host {} answers", self.name)
            self._notify(self._on_state, self.name, True, self.detail)

    def _is_down(self, sentence: str) -> None:
        was, known = self.up, self.known.is_set()
        self.known.set()
        self.up, self.detail = False, sentence
        events, self._events = self._events, None
        if events is not None:
            events.close()
        if was or not known:
            self.since = time.time()
            self._log("docker host {} is down: {}", self.name, sentence)
            self._notify(self._on_state, self.name, False, sentence)

    # ---- events

    def _open_stream(self, daemons_clock: float) -> None:
        loop, self._followed = asyncio.get_running_loop(), time.monotonic()
        events: Events

        def on_loop(act: Callable[..., None], *args: Any) -> None:
            try:
                loop.call_soon_threadsafe(lambda: act(*args) if self._events is events else None)
            except RuntimeError:
                return  # the loop is closed

        events = self._events = Events(
            self.host,
            self._events_client,
            self._deployment,
            self._position.since(daemons_clock),
            on_open=lambda: on_loop(self._sync),
            on_event=lambda e: on_loop(self._on_daemon_event, e),
            on_end=lambda e: on_loop(self._on_stream_end, e),
        )

    def _events_client(self) -> Any:
        connect_once(self.host, PING_TIMEOUT_SECS)
        return new_client(self.host, self._api, PING_TIMEOUT_SECS)

    def _on_daemon_event(self, event: dict[str, Any]) -> None:
        if self._position.is_new(event):
            self._notify(self._on_event, self.name, event)

    def _on_stream_end(self, error: EngineError | None) -> None:
        self._events = None
        if time.monotonic() - self._followed > PING_SECS:
            # Otherwise wait for the next ping, so that a daemon that always ends the stream is not
            # asked in a loop.
            self._wake.set()
        self._log.trace("docker host {}: events ended: {}", self.name, error)

    def _sync(self) -> None:
        self._synced = time.monotonic()
        self._notify(self._on_sync, self.name)

    def _notify(self, callback: Callable[..., None], *args: Any) -> None:
        """Call a callback. Its bugs must not end the monitoring."""
        try:
            callback(*args)
        except Exception as e:
            self._log.exception("docker host {}: the handler of an event failed: {}", self.name, e)


def _answer(client: Any, path: str) -> Any:
    response = client.get(f"{client.base_url}{path}", timeout=client.timeout)
    if response.status_code >= 400:
        raise api_error(response)
    return response


def _version(client: Any) -> tuple[str | None, dict[str, Any]]:
    response = _answer(client, "/version")
    return response.headers.get("Date"), dict(response.json())


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) if n.isdigit() else 0 for n in version.split("."))
