"""The server processes' log sink: pykern's pkdebug, in a thread of its own.

What is used of pkdebug, by its public names only: `init` (our writer is its `output`), `pkdlog`
with `pkdebug_frame` (the place of the call goes in front of the line as in every pykern program),
`pkdc` and its control pattern for what pykern's own modules want to say. `PYKERN_PKDEBUG_CONTROL`
works as usual; `PYKERN_PKDEBUG_OUTPUT` and `_WANT_PID_TIME` do not, since time, pid and thread are
those of the call, not of the writing.

What is not used, and why: its formatting of arguments happens in `runtime.log` at the time of the
call, since pkdebug redacts by key only, and turns an escaped line break back into a real one. It
also falls silent for good after five errors of its own: a line that did not come out is noticed
here, written without it, and pkdebug is started afresh (`revived`).

The queue is bounded. What does not fit is dropped, counted, and said in the log.

Under systemd the same thread gives the records to the journal with their fields
(`runtime.journal`), in place of the lines that the journal would have taken from the stream:
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
    head_of,
    indented,
    json_of,
    one_line,
    text_of,
)
from ...runtime.log.session_folders import Following
from ..settings.pykern_import import pkdebug
from ..settings.settings import LogSettings
from .session_file import OwnSession, newest_session

MAX_QUEUED = 10_000
#: The log has a thread of its own, so that a slow reader of the stream may have a moment for a
#: line.
STREAM_SECS = 1.0
#: Lines that come within so long are written together, so many (of so many characters) at most:
#: pkdebug takes as long for one as for many, and most of what a line costs is waking up for it. A
#: traceback is written at once, with what came before it.
TOGETHER_SECS, TOGETHER, TOGETHER_CHARS = 0.01, 64, 16 * 1024


class PkdebugSink:
    """Takes records in any thread; one thread writes them, in order. There is one per process,
    since pkdebug has one output.
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
        """kept: one of the outputs, whose session is told in lines of JSON."""
        self._writer = _Writer(outputs, form, redactor or Redactor(), journal, kept)
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
            return self._changed.wait_for(
                lambda: self._idle and not self._queue, max(0.0, deadline - time.monotonic())
            )

    def close(self, secs: float = 5.0) -> None:
        """Write what was taken, then take no more."""
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
        while True:
            with self._changed:
                self._idle = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._unsaid or self._closed)
                if not self._queue and not self._unsaid:
                    return
                self._idle = False
                urgent = self._closed or any(record.traceback for record in self._queue)
            if not urgent:
                time.sleep(TOGETHER_SECS)
            with self._changed:
                records, self._queue = list(self._queue), deque()
                unsaid, self._unsaid = self._unsaid, 0
            for together in _batches(records):
                self._say(together)
            if unsaid:
                self._say(
                    [
                        _note(
                            f"{unsaid} log lines were dropped here: they came faster than they could be written"
                        )
                    ]
                )

    def _say(self, records: list[Record]) -> None:
        """These lines together: pkdebug takes as long for one as for many."""
        first, writer = records[0], self._writer
        writer.current, writer.wrote = records, False
        try:
            # The message goes in as the format itself: as an argument its escapes would be undone.
            pkdebug.pkdlog(
                _literal(first.message) + "{nothing}", nothing="", pkdebug_frame=_Frame(first.where)
            )
        except Exception as e:  # whatever pkdebug may do, this thread goes on
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
    """pkdebug's output: puts time, pid and thread in front, and passes the line on. Never raises."""

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
        #: the thread that writes records, and those it is writing: pkdebug is given the first one
        self.owner: int | None = None
        self.current: list[Record] | None = None
        self.wrote = False

    def write(self, text: str) -> None:
        records = self.current
        if records is None or threading.get_ident() != self.owner:
            # somebody called pkdebug on his own: pykern's modules do
            where, _, message = text.rstrip("\n").partition(" ")
            self.direct([_note(one_line(self._redactor.shown(message)), where)])
            return
        if text.startswith(
            records[0].where
        ):  # else it is a complaint of pkdebug's own; the records are written without it
            self.wrote = True
            self._put(records, text)

    def flush(self) -> None:
        """pkdebug calls this after every line; the outputs flush on their own."""

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def direct(self, records: list[Record]) -> None:
        """Write records that pkdebug did not."""
        self._put(records, f"{records[0].where} {records[0].message}\n")

    def _put(self, records: list[Record], line: str) -> None:
        """line: what pkdebug made of the first."""
        if self._form == "json":
            session = None if self._kept is None else self._kept.session
            text = "".join(json_of(record, session) for record in records)
        else:
            first = records[0]
            text = (
                head_of(first)
                + line
                + indented(first.traceback)
                + "".join(map(text_of, records[1:]))
            )
        for output in self._outputs:
            output.put(text)
        if self._journal is not None:
            for record in records:
                self._journal.put(record)


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
    component: str,
    settings: LogSettings,
    redactor: Redactor,
    *,
    stream: TextIO | None = None,
    file: str | None = None,
    root: str | None = None,
) -> tuple[Log, PkdebugSink]:
    """The log of a server process: lines to `stream` (stderr unless given) and, where given, to a
    rotating file; and to the journal.

    root: in place of a file; a supervisor begins a session there, everybody else writes into the
    newest. Where the stream is the journal's, records go there with their fields, and not as lines
    a second time.
    """
    stream = stream or sys.stderr
    said = _said_by(json_of if settings.format == "json" else text_of)
    line = said if settings.format == "json" else plain_line
    ours = settings.journald == "auto" and _leads_to_journal(stream)
    outputs: list[Output] = [] if ours else [Stream(stream, STREAM_SECS, line)]
    kept: OwnSession | Following | None = None
    if root is not None:
        own = component == "supervisor"
        kept = (
            OwnSession(component, settings, root, line, said)
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
    return Log(component, redactor, sink, trace=settings.trace), sink


def _leads_to_journal(stream: TextIO) -> bool:
    try:
        return is_journal(stream.fileno(), os.environ.get("JOURNAL_STREAM"))
    except (OSError, ValueError, AttributeError):  # a stream of this process only
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


def _said_by(render: Callable[[Record], str]) -> Callable[[str], str]:
    return lambda sentence: render(_note(sentence))
