"""Passes on a job's output as it arrives, with one thread per stream, so that streams do not wait
for each other.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .screen import Screen

if TYPE_CHECKING:
    from ...client.api.replies import LogPart
    from ...client.sync_client import Client

Sink = Callable[["LogPart"], None]


class OutputStreamer:
    """Reads one stream in its own thread and with its own client. `failure` is the exception that
    ended it early, if any.
    """

    def __init__(
        self,
        client: "Client",
        parts: "Callable[[Client], Iterator[LogPart]]",
        sink: Sink,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._client, self._parts, self._sink, self._failed = client, parts, sink, failed
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._client:
                for part in self._parts(self._client):
                    self._sink(part)
        except BaseException as e:
            self.failure = e
            self._failed(e)

    def join(self) -> None:
        """Wait for the end of the stream. Raises the exception that ended it early."""
        self._thread.join()
        if self.failure is not None:
            raise self.failure


def raw_sink(screen: Screen, descriptor: int) -> Sink:
    """Return a sink that writes the bytes unchanged to a descriptor. It bypasses Python's buffers:
    a thread that outlives the exit must not hold their lock.
    """

    def sink(part: "LogPart") -> None:
        if part.dropped:
            screen.message(f"[jobscribe: {part.dropped} bytes of {part.stream} dropped]")
        data = memoryview(part.data)
        while data:
            data = data[os.write(descriptor, data) :]

    return sink


def json_sink(screen: Screen) -> Sink:
    """Return a sink that prints one JSON line per part, with `base64` if the bytes are not UTF-8,
    else `text`.
    """
    lock = threading.Lock()

    def sink(part: "LogPart") -> None:
        with lock:
            screen.record(part_as_data(part))

    return sink


def part_as_data(part: "LogPart") -> dict[str, Any]:
    value: dict[str, Any] = {
        "type": "output",
        "stream": part.stream,
        "offset": part.offset,
        "nextOffset": part.next_offset,
        "dropped": part.dropped,
        "attempt": part.attempt,
    }
    try:
        value["text"] = part.data.decode("utf-8")
    except UnicodeDecodeError:
        import base64

        value["base64"] = base64.b64encode(part.data).decode()
    return value


def sink_for(screen: Screen, stream: str) -> Sink:
    """Return the sink for a stream: standard output to standard output, standard error to standard
    error. With --json, both to standard output.
    """
    if screen.json:
        return json_sink(screen)
    file = sys.stdout if stream == "stdout" else sys.stderr
    file.flush()
    return raw_sink(screen, file.fileno())
