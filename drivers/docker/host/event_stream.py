"""Streams of a Docker host: JSON lines of an endless response, and container events. No decision
about containers is made here.

A stream blocks its thread and can be closed from any other thread.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import docker.errors
import docker.types

from ....protocol.clusters.container_pool import PoolHost
from .errors import FOREIGN, EngineError, engine_error

#: An event stream that is silent for this time (seconds) is opened again: the connection may be
#: dead without a sign.
IDLE_SECS = 60.0


class Stream:
    """A stream of JSON lines. Iterate over it in one thread. `close` may be called from any thread,
    also before the answer arrives.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handle: Any = None
        self.closed = False

    def lines(self, response: Any) -> Iterator[dict[str, Any]]:
        """Yield the objects of this answer. Raises docker's APIError if the daemon refused, and the
        exceptions of requests.
        """
        with self._lock:
            self._handle = docker.types.CancellableStream(iter(()), response)
            if self.closed:
                _shut(self._handle)
                return
        if response.status_code >= 400:
            raise api_error(response)
        rest = b""
        # Read each chunk as it arrives, so that no event waits for the next one.
        raw = response.raw
        for chunk in (
            raw.read_chunked(decode_content=True)
            if raw.chunked
            else raw.stream(1, decode_content=True)
        ):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                if line.strip():
                    yield json.loads(line)

    def close(self) -> None:
        """End the iteration in its thread."""
        with self._lock:
            if not self.closed:
                self.closed = True
                if self._handle is not None:
                    _shut(self._handle)


def api_error(response: Any) -> docker.errors.APIError:
    """Return the daemon's refusal as an exception."""
    try:
        message = str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        message = response.text.strip()
    return docker.errors.APIError(f"{response.status_code}", response=response, explanation=message)


def _shut(handle: Any) -> None:
    try:
        handle.close()
    except (OSError, AttributeError, UnboundLocalError):
        return  # the stream has already ended


class Events:
    """One event stream of one host, in its own thread. All three callbacks are called in that
    thread.

    on_open: the daemon sends events from now on. on_end: the stream has ended, with None after
    `close`. since: the first event time (nanoseconds of the daemon's clock).
    """

    def __init__(
        self,
        host: PoolHost,
        client: Callable[[], Any],
        deployment: str,
        since: int,
        *,
        on_open: Callable[[], None],
        on_event: Callable[[dict[str, Any]], None],
        on_end: Callable[[EngineError | None], None],
    ) -> None:
        self._host, self._client, self._deployment, self._since = host, client, deployment, since
        self._on_open, self._on_event, self._on_end = on_open, on_event, on_end
        self._stream = Stream()
        self._thread = threading.Thread(
            target=self._follow, name=f"docker-events-{host.name}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._stream.close()

    def join(self, secs: float) -> None:
        """Wait for the thread, which ends soon after `close`."""
        self._thread.join(secs)

    def _follow(self) -> None:
        error: EngineError | None = None
        client = None
        try:
            client = self._client()
            self._read(client)
        except (*FOREIGN, EngineError, ValueError) as e:
            error = engine_error(self._host, "its events", e)
        finally:
            if client is not None:
                client.close()
            if self._stream.closed:
                self._on_end(None)
            else:
                self._on_end(
                    error
                    or EngineError(
                        "unreachable", f"host {self._host.name} ended its stream of events"
                    )
                )

    def _read(self, client: Any) -> None:
        filters = {"type": ["container"], "label": [f"jobscribe.deployment={self._deployment}"]}
        params = {
            "filters": json.dumps(filters),
            "since": f"{self._since // 10**9}.{self._since % 10**9:09d}",
        }
        with client.get(
            f"{client.base_url}/v{client.api_version}/events",
            params=params,
            stream=True,
            timeout=(client.timeout, IDLE_SECS),
        ) as response:
            lines = self._stream.lines(response)
            if response.status_code < 400:
                self._on_open()
            for event in lines:
                self._on_event(event)


class Position:
    """The position in the events of a host. It survives reconnections and detects repeated events
    of the same instant.
    """

    def __init__(self) -> None:
        self._at = 0
        self._seen: set[tuple[str, str]] = set()

    def since(self, daemons_clock: float) -> int:
        """Return where to continue, given the daemon's time. If its clock was set back, the stream
        must not wait for the future.
        """
        now = int(daemons_clock) * 10**9
        return min(self._at, now) if self._at else now

    def is_new(self, event: dict[str, Any]) -> bool:
        """Return whether this event was not delivered before."""
        at = int(event.get("timeNano") or 0)
        key = (str(event.get("Actor", {}).get("ID", "")), str(event.get("Action", "")))
        if at == self._at and key in self._seen:
            return False
        if at != self._at:
            self._at, self._seen = at, set()
        self._seen.add(key)
        return True


def server_clock(date: str | None) -> float:
    """Return the daemon's time from a Date header, or our own if the header is missing."""
    try:
        return parsedate_to_datetime(date or "").timestamp()
    except (ValueError, TypeError):
        return time.time()
