"""The log sink of the server processes: pykern's pkdebug, in a separate thread.

This module uses only public names of pkdebug: `init` (with our writer as `output`), `pkdlog` with
`pkdebug_frame` (which puts the place of the call in front of the line, as in every pykern program),
and `pkdc` with its control pattern for pykern's own modules. `PYKERN_PKDEBUG_CONTROL` works as
usual. `PYKERN_PKDEBUG_OUTPUT` and `_WANT_PID_TIME` do not, because time, pid and thread are those
of the call, not of the write.

Arguments are formatted in `runtime.log` at the time of the call: pkdebug redacts only by key, and
turns escaped line breaks into real ones. After five internal errors pkdebug stops output
permanently. The sink detects a missing line, writes the line without pkdebug, and restarts pkdebug
(`revived`).

The queue is bounded. Lines that do not fit are dropped, counted and reported in the log.

Under systemd the same thread sends records with their fields to the journal
(`runtime.log.journald`), instead of the lines that the journal would read from the stream: see
`log.journald`.
"""

import atexit
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, TextIO

from ...protocol.redaction import Redactor
from ...runtime.log.destinations import RotatingFile, Stream, plain_line
from ...runtime.log.journald import Journal, is_journal
from ...runtime.log.logger import (
    Form,
    Log,
    Output,
    Record,
    TracePattern,
    head_of,
    indented,
    json_of,
    one_line,
    shown_ids,
    text_of,
)
from ...runtime.log.session_folders import Following
from ..settings.pykern_import import pkdebug
from ..settings.settings import LogSettings
from .session_file import OwnSession, newest_session

MAX_QUEUED = 10_000
#: Time limit for a line to a slow reader of the stream. Only the log's thread waits for it.
STREAM_SECS = 1.0
#: Lines within TOGETHER_SECS are written together, up to TOGETHER lines and TOGETHER_CHARS
#: characters: pkdebug needs the same time for one line as for many, and most of the cost is waking
#: up. A traceback is written at once, with all lines before it.
TOGETHER_SECS, TOGETHER, TOGETHER_CHARS = 0.01, 64, 16 * 1024
#: The thread looks for lines every TOGETHER_SECS until none came so many times. Then a line wakes it,
#: for which its caller pays: the thread takes the interpreter's lock from it.
LOOKS = 5


class PkdebugSink:
    """Accepts records in any thread; one thread writes them in order. One per process, because
    pkdebug has one output.
    """

    def __init__(
        self,
        *outputs: Output,
        form: Form = "text",
        redactor: Redactor | None = None,
        max_queued: int = MAX_QUEUED,
        journal: Journal | None = None,
        kept: OwnSession | Following | None = None,
    ) -> None:
        """kept: the output that provides the session for JSON lines."""
        self._writer = _Writer(outputs, form, redactor or Redactor(), journal, kept)
        self._max_queued = max_queued
        self._queue: deque[Record] = deque()
        self._changed = threading.Condition()
        self._idle = True
        self._closed = False
        self.dropped = 0
        self._unreported = 0
        self.revived = 0
        self._start_pkdebug()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def write(self, record: Record) -> None:
        with self._changed:
            if self._closed or len(self._queue) >= self._max_queued:
                self.dropped += 1
                self._unreported += 1
                return
            self._queue.append(record)
            self._changed.notify()

    def flush(self, secs: float = 5.0) -> bool:
        """Wait until all accepted records are written. Return False after `secs`."""
        deadline = time.monotonic() + secs
        with self._changed:
            return self._changed.wait_for(
                lambda: self._idle and not self._queue, max(0.0, deadline - time.monotonic())
            )

    def close(self, secs: float = 5.0) -> None:
        """Write all accepted records, and accept no more."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._thread.join(secs)
        self._writer.close()
        atexit.unregister(self.close)

    def _run(self) -> None:
        self._writer.owner = threading.get_ident()
        looks = LOOKS
        while True:
            with self._changed:
                self._idle = True
                self._changed.notify_all()
                if looks < LOOKS and not self._queue and not self._closed:
                    looks += 1
                else:
                    self._changed.wait_for(lambda: self._queue or self._unreported or self._closed)
                    if not self._queue and not self._unreported:
                        return
                    looks = 0
                self._idle = False
                urgent = self._closed or any(record.traceback for record in self._queue)
            if not urgent:
                time.sleep(TOGETHER_SECS)
            with self._changed:
                records, self._queue = list(self._queue), deque()
                unreported, self._unreported = self._unreported, 0
            for batch in _batches(records):
                self._write_batch(batch)
            if unreported:
                self._write_batch(
                    [
                        _note(
                            f"{unreported} log lines were dropped here: they arrived faster than they could be written"
                        )
                    ]
                )

    def _write_batch(self, records: list[Record]) -> None:
        """Write these lines together."""
        first, writer = records[0], self._writer
        writer.current, writer.wrote = records, False
        try:
            # The message is part of the format: as an argument, its escapes would be undone.
            pkdebug.pkdlog(
                _literal(first.message) + "{nothing}", nothing="", pkdebug_frame=_Frame(first.where)
            )
        except Exception as e:  # an error of pkdebug must not end this thread
            writer.direct([_note(f"pkdebug failed: {type(e).__name__}: {e}")])
        finally:
            if not writer.wrote:
                self._start_pkdebug()
                self.revived += 1
                writer.direct(records)
            writer.current = None

    def _start_pkdebug(self) -> None:
        pkdebug.init(output=self._writer, want_pid_time=False, redirect_logging=False)


class _Writer:
    """The output of pkdebug: adds time, pid and thread, and writes the line. Never raises."""

    def __init__(
        self,
        outputs: tuple[Output, ...],
        form: Form,
        redactor: Redactor,
        journal: Journal | None,
        kept: OwnSession | Following | None,
    ) -> None:
        self._outputs = outputs
        self._journal, self._kept = journal, kept
        self._form = form
        self._redactor = redactor
        #: The writing thread, and the records in progress. pkdebug gets only the first one.
        self.owner: int | None = None
        self.current: list[Record] | None = None
        self.wrote = False

    def write(self, text: str) -> None:
        records = self.current
        if records is None or threading.get_ident() != self.owner:
            # A direct call of pkdebug, by pykern's modules.
            where, _, message = text.rstrip("\n").partition(" ")
            self.direct([_note(one_line(self._redactor.shown(message)), where)])
            return
        if text.startswith(
            records[0].where
        ):  # else an error message of pkdebug itself; the records are written without it
            self.wrote = True
            self._put(records, text)

    def flush(self) -> None:
        """Called by pkdebug after every line. Does nothing: the outputs flush themselves."""

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def direct(self, records: list[Record]) -> None:
        """Write records without pkdebug."""
        self._put(records, f"{records[0].where} {records[0].message}\n")

    def _put(self, records: list[Record], line: str) -> None:
        """line: pkdebug's line for the first record."""
        if self._form == "json":
            session = None if self._kept is None else self._kept.session
            text = "".join(json_of(record, session) for record in records)
        else:
            first = records[0]
            text = (
                head_of(first)
                + line.removesuffix("\n")
                + shown_ids(first)
                + "\n"
                + indented(first.traceback)
                + "".join(map(text_of, records[1:]))
            )
        for output in self._outputs:
            output.put(text)
        if self._journal is not None:
            for record in records:
                self._journal.put(record)


class _Frame:
    """A stand-in for a stack frame at a known place, with the attributes that pkdebug reads."""

    def __init__(self, where: str) -> None:
        path, line, name = [*where.split(":", 2), "0", "?"][:3]
        self.f_code = SimpleNamespace(co_filename=path, co_name=name)
        self.f_lineno = line
        self.f_globals: dict[str, Any] = {}

    def pkdebug_str(self) -> str:
        return ""


def open_log(
    component: str,
    settings: LogSettings,
    redactor: Redactor,
    *,
    stream: TextIO | None = None,
    file: str | None = None,
    root: str | None = None,
) -> tuple[Log, PkdebugSink]:
    """Open the log of a server process, with output to `stream` (default: stderr), to a rotating
    file if given, and to the journal.

    root: write to log sessions instead of a file. A supervisor begins a session, other processes
    write to the newest one. If the stream leads to the journal, records go there with their fields,
    and not a second time as lines.
    """
    stream = stream or sys.stderr
    format_note = _note_formatter(json_of if settings.format == "json" else text_of)
    line = format_note if settings.format == "json" else plain_line
    ours = settings.journald == "auto" and _is_journal_stream(stream)
    outputs: list[Output] = [] if ours else [Stream(stream, STREAM_SECS, line)]
    kept: OwnSession | Following | None = None
    if root is not None:
        own = component == "supervisor"
        kept = (
            OwnSession(component, settings, root, line, format_note)
            if own
            else newest_session(component, settings, root, line)
        )
        outputs.append(kept)
    elif file is not None:
        outputs.append(RotatingFile(file, settings.file_bytes, settings.files_kept, line))
    journal = (
        Journal(f"jobscribe-{component}", patience_secs=STREAM_SECS)
        if ours or settings.journald == "on"
        else None
    )
    sink = PkdebugSink(
        *outputs, form=settings.format, redactor=redactor, journal=journal, kept=kept
    )
    return Log(component, redactor, sink, trace=_trace_pattern(settings.trace)), sink


def _trace_pattern(trace: str | None) -> TracePattern | None:
    if trace is None:
        return None
    # imported here: only a set pattern needs it
    from ...diagnosis.safe_patterns import Pattern

    return Pattern(trace, ignore_case=True)


def _is_journal_stream(stream: TextIO) -> bool:
    try:
        return is_journal(stream.fileno(), os.environ.get("JOURNAL_STREAM"))
    except (OSError, ValueError, AttributeError):  # a stream without a file descriptor
        return False


def _batches(records: list[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    chars = 0
    for record in records:
        batch.append(record)
        chars += len(record.message) + len(record.traceback)
        if len(batch) == TOGETHER or chars >= TOGETHER_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _note(message: str, where: str = "service/log/sink.py:0:sink") -> Record:
    return Record(time.time(), os.getpid(), 0, "log", where, message, {}, level="warning")


def _note_formatter(render: Callable[[Record], str]) -> Callable[[str], str]:
    return lambda sentence: render(_note(sentence))
