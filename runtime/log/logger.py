"""Log records: their creation, text form and JSON form. The same for supervisor, agent and keeper.

A call creates a `Record` (formatted, redacted and truncated, so that it may pass to another
thread), and a sink writes it. One record is one line, `Feb 24 21:39:11 14458     0
supervisor/connections/hub.py:173:receive <message>`, whatever the message contains; only a
traceback follows on indented lines of its own. Times are UTC. Text shows no levels: a line is
permanent (`log(...)`, info), an exception (error), or a trace line (debug), which is written if the
trace pattern matches it.

Logging never raises and never stops the work: the destination that failed counts lost lines. Uses
the standard library and protocol.redaction only. Files and streams are in `destinations`; pykern's
sink is in `service.log`.
"""

import json
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any, Literal, NamedTuple, Protocol

from ...protocol.redaction import (
    AGENT_SHORT,
    LOG_TEXT_METHOD,
    MAX_STRING,
    OP_SHORT,
    REDACTED,
    SNIP,
    Redactor,
)

Form = Literal["text", "json"]
#: limit of a message in characters; a single argument has its own limit
MAX_MESSAGE = 32_000

#: reserved fields of a JSON line; ids must have other names
OWN_FIELDS = frozenset(
    ("ts", "level", "component", "session", "pid", "thread", "where", "msg", "traceback")
)

#: ids that a text line shows after its message; the message names the others where people need them
TEXT_IDS = ("cause",)

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_SHORT = {"op": OP_SHORT, "agent": AGENT_SHORT}
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_THREAD_NAME = re.compile(r"(\d+)")
#: Characters that could forge a line or upset a terminal: control characters, line separators,
#: direction marks and lone surrogates.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class Record(NamedTuple):
    """at: unix seconds. where: `path:line:function`, with the path relative to the package. ids:
    ids of the objects in question (jid, op, agent...).

    level: info, or a level name of the standard library's logging.
    """

    at: float
    pid: int
    thread: int
    component: str
    where: str
    message: str
    ids: dict[str, str]
    traceback: str = ""
    level: str = "info"


class Sink(Protocol):
    def write(self, record: Record) -> None:
        """Take a record. Never raises and does not wait."""


class Output(Protocol):
    def put(self, text: str) -> None:
        """Write whole lines. Never raises; counts lost lines."""


class TracePattern(Protocol):
    """Selects trace lines. A server passes one that matches in linear time."""

    def search(self, text: str, /) -> object:
        """Return a true value if some part of the text matches."""


class Direct:
    """A sink that writes at once, in the caller's thread."""

    def __init__(self, *outputs: Output, form: Form = "text") -> None:
        self._outputs = outputs
        self._render = text_of if form == "text" else json_of

    def write(self, record: Record) -> None:
        text = self._render(record)
        for output in self._outputs:
            output.put(text)


class Log:
    """Call it: `log("{} opName={}", driver, name, jid=..., op=..., agent=...)`.

    Positional arguments fill the message. One with `pkdebug_str()` formats itself, anything else is
    redacted and truncated. Keywords are ids for machines; op and agent are shortened.

    The ids of a connection, place or driver call are bound once, where it enters, by `bound`; its
    owner keeps that log. A call passes only the ids of the one line.
    """

    def __init__(
        self,
        component: str,
        redactor: Redactor,
        sink: Sink,
        *,
        trace: TracePattern | None = None,
        wall: Callable[[], float] = time.time,
        ids: dict[str, str] | None = None,
    ) -> None:
        self.component = component
        self.redactor = redactor
        self._sink = sink
        self._trace = trace
        self._wall = wall
        self._ids = ids or {}

    def __call__(self, fmt: str, /, *args: Any, **ids: Any) -> None:
        """Write a line, always."""
        frame = sys._getframe(1)
        self._write(_where(frame.f_code, frame.f_lineno), self._message(fmt, args), ids)

    def trace(self, fmt: str, /, *args: Any, **ids: Any) -> None:
        """Write a line if the trace pattern is found in `where message`."""
        if self._trace is None:
            return
        frame = sys._getframe(1)
        where, message = _where(frame.f_code, frame.f_lineno), self._message(fmt, args)
        if self._trace.search(f"{where} {message}"):
            self._write(where, message, ids, level="debug")

    def exception(
        self, fmt: str, /, *args: Any, error: BaseException | None = None, **ids: Any
    ) -> None:
        """Write a line and the traceback of `error`, by default of the exception being handled."""
        frame = sys._getframe(1)
        error = error or sys.exc_info()[1]
        where = _where(frame.f_code, frame.f_lineno)
        self._write(
            where, self._message(fmt, args), ids, self._traceback(error) if error else "", "error"
        )

    def bound(self, **ids: Any) -> "Log":
        """Return a copy of this log that adds these ids to every line."""
        copy = Log(
            self.component,
            self.redactor,
            self._sink,
            wall=self._wall,
            ids={**self._ids, **self._shown_ids(ids)},
        )
        copy._trace = self._trace
        return copy

    def adopt(self, record: logging.LogRecord) -> None:
        """Write a record of the standard library's logging (Tornado's, asyncio's) in our form."""
        where = f"{_relative(record.pathname)}:{record.lineno}:{record.funcName}"
        try:
            text = record.getMessage()
        except Exception as e:
            # a bug in a foreign caller's log call must not reach the caller
            text = f"{record.msg!r} (cannot be formatted: {e!r})"
        error = record.exc_info[1] if record.exc_info else None
        message = self._cut(f"{record.levelname}:{record.name}:{text}")
        self._write(
            where, message, {}, self._traceback(error) if error else "", record.levelname.lower()
        )

    def _write(
        self, where: str, message: str, ids: dict[str, Any], trace: str = "", level: str = "info"
    ) -> None:
        shown = {**self._ids, **self._shown_ids(ids)} if ids else self._ids
        self._sink.write(
            Record(
                self._wall(),
                os.getpid(),
                _thread_number(),
                self.component,
                where,
                message,
                shown,
                trace,
                level,
            )
        )

    def _message(self, fmt: str, args: tuple[Any, ...]) -> str:
        try:
            return self._cut(fmt.format(*map(self._shown, args)) if args else fmt)
        except Exception as e:
            # a wrong format, or an argument that cannot format itself
            return self._cut(
                f"{fmt} (cannot be formatted with {len(args)} arguments: {type(e).__name__}: {e})"
            )

    def _shown(self, arg: Any) -> Any:
        if isinstance(arg, int | float) and not isinstance(arg, bool):
            return arg
        if type(arg) is str and len(arg) <= MAX_STRING:
            return arg  # the whole message is redacted, see `_cut`
        if not isinstance(arg, type) and (show := getattr(arg, LOG_TEXT_METHOD, None)) is not None:
            return show()
        return shown_text(self.redactor.value(arg))

    def _cut(self, message: str) -> str:
        message = self.redactor.text(message)
        if len(message) > MAX_MESSAGE:
            message = message[:MAX_MESSAGE] + SNIP
        return one_line(message)

    def _traceback(self, error: BaseException) -> str:
        return self.redactor.shown("".join(traceback.format_exception(error)))

    def _shown_ids(self, ids: dict[str, Any]) -> dict[str, str]:
        cut = {k: str(v)[: _SHORT.get(k)] for k, v in ids.items() if v is not None}
        return {k: one_line(self.redactor.text(v)) for k, v in cut.items()}


def shown_text(plain: Any) -> str:
    """Return redacted data as a line shows it: a string as it is, anything else like `repr`, with
    redaction marks unquoted.
    """
    return plain if isinstance(plain, str) else _nested(plain)


def _nested(plain: Any) -> str:
    match plain:
        case str():
            return plain if plain in (REDACTED, SNIP) else repr(plain)
        case dict():
            return "{" + ", ".join(f"{_nested(k)}: {_nested(v)}" for k, v in plain.items()) + "}"
        case list():
            return "[" + ", ".join(map(_nested, plain)) + "]"
        case _:
            return repr(plain)


def one_line(text: str) -> str:
    """Return `text` with every character that could end the line or deceive its reader as an escape
    sequence.
    """
    return (
        text
        if text.isprintable()
        else _UNSAFE.sub(lambda m: m[0].encode("unicode_escape").decode(), text)
    )


def head_of(record: Record) -> str:
    """Return time, pid and thread, with a trailing blank."""
    return f"{_stamp(int(record.at))} {record.pid:5d} {record.thread:5d} "


def text_of(record: Record) -> str:
    """Return the record as lines for people."""
    return (
        f"{head_of(record)}{record.where} {record.message}{shown_ids(record)}\n"
        f"{indented(record.traceback)}"
    )


def shown_ids(record: Record) -> str:
    """Return the ids that a text line has after its message."""
    return "".join(f" {name}={record.ids[name]}" for name in TEXT_IDS if name in record.ids)


def indented(trace: str) -> str:
    """Return a traceback's lines, indented as part of the record above."""
    return "".join(f"  {one_line(line)}\n" for line in trace.split("\n") if line)


def json_of(record: Record, session: str | None = None) -> str:
    """Return the record as one line of JSON. session: session of the supervisor whose log it is
    written to.
    """
    seconds = int(record.at)
    data: dict[str, Any] = {
        "ts": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        + f".{int((record.at - seconds) * 1e9):09d}Z",
        "level": record.level,
        "component": record.component,
        "session": session,
        "pid": record.pid,
        "thread": record.thread,
        "where": record.where,
        "msg": record.message,
        **{k: v for k, v in record.ids.items() if k not in OWN_FIELDS},
    }
    if session is None:
        del data["session"]
    if record.traceback:
        data["traceback"] = record.traceback
    return json.dumps(data) + "\n"


def capture_logging(log: Log, level: int = logging.INFO) -> Callable[[], None]:
    """Send records of the standard library's logging to `log`. Return a function that undoes this."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    root.handlers[:] = [_Adopting(log, level)]
    root.setLevel(level)

    def undo() -> None:
        root.handlers[:] = before[0]
        root.setLevel(before[1])

    return undo


class _Adopting(logging.Handler):
    def __init__(self, log: Log, level: int) -> None:
        super().__init__(level)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.adopt(record)


def log_uncaught(log: Log) -> None:
    """Log exceptions that end a thread or the process, before Python prints them as usual."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            log.exception("uncaught: {}", error, error=error)
        before(kind, error, trace)

    def thread_hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            log.exception(
                "uncaught in thread {}: {}",
                args.thread.name if args.thread else "?",
                args.exc_value,
                error=args.exc_value,
            )

    sys.excepthook, threading.excepthook = hook, thread_hook


_relative_of: dict[str, str] = {}


def _relative(path: str) -> str:
    """Return the path within the package, or the last two parts of other paths."""
    known = _relative_of.get(path)
    if known is None:
        known = (
            path.removeprefix(_PACKAGE)
            if path.startswith(_PACKAGE)
            else "/".join(path.split(os.sep)[-2:])
        )
        if len(_relative_of) < 10_000:
            _relative_of[path] = known
    return known


def _where(code: CodeType, line: int) -> str:
    return f"{_relative(code.co_filename)}:{line}:{code.co_name}"


_stamped: tuple[int, str] = (0, "Jan 01 00:00:00")


def _stamp(second: int) -> str:
    global _stamped  # one entry: nearly all lines are of the same second as the previous one
    known, text = _stamped
    if known != second:
        t = time.gmtime(second)
        text = (
            f"{_MONTHS[t.tm_mon - 1]} {t.tm_mday:02d} {t.tm_hour:02d}:{t.tm_min:02d}:{t.tm_sec:02d}"
        )
        _stamped = second, text
    return text


def _thread_number() -> int:
    """Return 0 for the main thread, n for the n-th worker. Only tells lines apart."""
    if threading.get_ident() == threading.main_thread().ident:
        return 0
    current = threading.current_thread()
    numbers = _THREAD_NAME.findall(current.name)
    return int(numbers[-1]) % 100_000 if numbers else (current.ident or 0) % 100_000
