"""The server processes' log sink: pykern's pkdebug, in a thread of its own.

What is used of pkdebug, by its public names only: `init` (our writer is its `output`), `pkdlog` with `pkdebug_frame` (the
place of the call goes in front of the line as in every pykern program), `pkdc` and its control pattern for what pykern's
own modules want to say. `PYKERN_PKDEBUG_CONTROL` works as usual; `PYKERN_PKDEBUG_OUTPUT` and `_WANT_PID_TIME` do not,
since time, pid and thread are those of the call, not of the writing.

What is not used, and why: its formatting of arguments happens in `runtime.log` at the time of the call, since pkdebug
redacts by key only, and turns an escaped line break back into a real one. It also falls silent for good after five errors
of its own: a line that did not come out is noticed here, written without it, and pkdebug is started afresh (`revived`).

The queue is bounded. What does not fit is dropped, counted, and said in the log.
"""

import atexit
import os
import sys
import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import Any, TextIO

from pykern import pkdebug

from ..protocol.redaction import Redactor
from ..runtime.log import Form, Log, Output, Record, head_of, indented, json_of, one_line
from ..runtime.outputs import RotatingFile, Stream
from .settings import LogSettings

MAX_QUEUED = 10_000
#: The log has a thread of its own, so that a slow reader of the stream may have a moment for a line.
STREAM_SECS = 1.0


class PkdebugSink:
    """Takes records in any thread; one thread writes them, in order. There is one per process, since pkdebug has one output."""

    def __init__(self, *outputs: Output, form: Form = "text", redactor: Redactor | None = None, max_queued: int = MAX_QUEUED) -> None:
        self._writer = _Writer(outputs, form, redactor or Redactor())
        self._max_queued = max_queued
        self._queue: deque[Record] = deque()
        self._changed = threading.Condition()
        self._idle = True
        self._closed = False
        self.dropped = 0
        self._unsaid = 0
        self.revived = 0
        self._start_pkdebug()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def write(self, record: Record) -> None:
        with self._changed:
            if self._closed or len(self._queue) >= self._max_queued:
                self.dropped += 1
                self._unsaid += 1
                return
            self._queue.append(record)
            self._changed.notify()

    def flush(self, secs: float = 5.0) -> bool:
        """Wait until everything taken so far is written; False after `secs`."""
        deadline = time.monotonic() + secs
        with self._changed:
            return self._changed.wait_for(lambda: self._idle and not self._queue, max(0.0, deadline - time.monotonic()))

    def close(self, secs: float = 5.0) -> None:
        """Write what was taken, then take no more."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._thread.join(secs)
        atexit.unregister(self.close)

    def _run(self) -> None:
        self._writer.owner = threading.get_ident()
        while True:
            with self._changed:
                self._idle = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._unsaid or self._closed)
                if not self._queue and not self._unsaid:
                    return
                self._idle = False
                records, self._queue = self._queue, deque()
                unsaid, self._unsaid = self._unsaid, 0
            for record in records:
                self._say(record)
            if unsaid:
                self._say(_note(f"{unsaid} log lines were dropped here: they came faster than they could be written"))

    def _say(self, record: Record) -> None:
        self._writer.current, self._writer.wrote = record, False
        try:
            # The message goes in as the format itself: as an argument its escapes would be undone.
            pkdebug.pkdlog(_literal(record.message) + "{nothing}", nothing="", pkdebug_frame=_Frame(record.where))
        except Exception as e:  # whatever pkdebug may do, this thread goes on
            self._writer.direct(_note(f"pkdebug failed: {type(e).__name__}: {e}"))
        finally:
            if not self._writer.wrote:
                self._start_pkdebug()
                self.revived += 1
                self._writer.direct(record)
            self._writer.current = None

    def _start_pkdebug(self) -> None:
        pkdebug.init(output=self._writer, want_pid_time=False, redirect_logging=False)


class _Writer:
    """pkdebug's output: puts time, pid and thread in front, and passes the line on. Never raises."""

    def __init__(self, outputs: tuple[Output, ...], form: Form, redactor: Redactor) -> None:
        self._outputs = outputs
        self._form = form
        self._redactor = redactor
        #: the thread that writes records, and the one it is writing
        self.owner: int | None = None
        self.current: Record | None = None
        self.wrote = False

    def write(self, text: str) -> None:
        record = self.current
        if record is None or threading.get_ident() != self.owner:
            # somebody called pkdebug on his own: pykern's modules do
            where, _, message = text.rstrip("\n").partition(" ")
            self.direct(_note(one_line(self._redactor.shown(message)), where))
            return
        if text.startswith(record.where):  # else it is a complaint of pkdebug's own; the record is written without it
            self.wrote = True
            self._put(record, text)

    def flush(self) -> None:
        """pkdebug calls this after every line; the outputs flush on their own."""

    def direct(self, record: Record) -> None:
        """Write a record that pkdebug did not."""
        self._put(record, f"{record.where} {record.message}\n")

    def _put(self, record: Record, line: str) -> None:
        text = json_of(record) if self._form == "json" else head_of(record) + line + indented(record.traceback)
        for output in self._outputs:
            output.put(text)


class _Frame:
    """As much of a stack frame as pkdebug looks at, for a place that is known already."""

    def __init__(self, where: str) -> None:
        path, line, name = [*where.split(":", 2), "0", "?"][:3]
        self.f_code = SimpleNamespace(co_filename=path, co_name=name)
        self.f_lineno = line
        self.f_globals: dict[str, Any] = {}

    def pkdebug_str(self) -> str:
        return ""


def open_log(
    component: str, settings: LogSettings, redactor: Redactor, *, stream: TextIO | None = None, file: str | None = None
) -> tuple[Log, PkdebugSink]:
    """The log of a server process: lines to `stream` (stderr unless given) and, where given, to a rotating file."""
    outputs: list[Output] = [Stream(stream or sys.stderr, STREAM_SECS)]
    if file is not None:
        outputs.append(RotatingFile(file, settings.file_bytes, settings.files_kept))
    sink = PkdebugSink(*outputs, form=settings.format, redactor=redactor)
    return Log(component, redactor, sink, trace=settings.trace), sink


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _note(message: str, where: str = "service/log.py:0:sink") -> Record:
    return Record(time.time(), os.getpid(), 0, "log", where, message, {})
