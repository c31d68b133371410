"""From what is known of one end to a word of the table of causes: how sure, what shows it, what it is not. Pure, and cheap.

Facts come first (see `ladder`), then signals, then exit codes that are a convention, then what was written last, which is never more than
likely. The class of the end, by which it is tried again or not, is its diagnosis', whatever is found here.
"""

import signal

from . import last_words
from .causes import BY_REASON, BY_SIGNAL, BY_STOP
from .exits import ExitInfo, signal_name
from .ladder import Found, climb, facts_of, intent
from .status import CANCELED, COMPLETED, PURGED

#: A shell says 128+n; these n are what programs die of by themselves, so nobody says such a code for anything else.
_OWN_SIGNALS = frozenset((
    signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS, signal.SIGPIPE,
    signal.SIGXCPU, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT,
))
_NOT_EXECUTABLE, _NOT_FOUND, _LAUNCHER, _GENERAL = 126, 127, 255, 1
#: Which complaints say something about which codes; others about all.
_OF_CODE = {
    _NOT_EXECUTABLE: frozenset({"wrongArchitecture"}), _NOT_FOUND: frozenset({"libraryMissing", "notFound"}),
    _LAUNCHER: frozenset({"launcher"}),
}
_ANY = frozenset({"setupFailed", "quota", "diskFull", "fileSizeLimit", "cpuLimit", "wrongArchitecture", "libraryMissing", "brokenPipe"})
#: What the start says that failed, in words of the kernel.
_START = (
    ("Exec format error", "wrongArchitecture"), ("quota", "quota"), ("No space left", "diskFull"),
    ("executable file not found", "notFound"),
)


NO_CORE = "no core was written: a run has none unless it was submitted with --core (--core 1G), and 'ulimit -c' in it cannot raise that"


def refined(status: str, reason: str | None, exit_: ExitInfo | None, lines: list[str] | None = None) -> Found:
    """status, reason: the run's. lines: the newest of its output, where they are at hand already."""
    if status == PURGED:
        return Found("purged", "certain")
    if status == COMPLETED:
        return Found("completed", "certain")
    if reason == "lost" and exit_ is not None and exit_.source == "lost":
        return _lost(exit_)
    if reason in BY_REASON:
        noted = intent(exit_) if exit_ is not None else None
        return Found(BY_REASON[reason], "certain", noted.evidence if noted is not None else ())
    if exit_ is None:
        word = "startFailed" if reason == "startFailed" else "canceled" if status == CANCELED else "exit"
        return Found(word, "certain" if word != "exit" else "unknown")
    return of_exit(exit_, lines)


def of_exit(exit_: ExitInfo, lines: list[str] | None = None) -> Found:
    """Of one execution alone."""
    if exit_.code == 0 and exit_.stop_reason is None:
        return Found("completed", "certain")
    if exit_.source == "start" and exit_.stop_reason is None:
        return _start(exit_)
    if exit_.source == "lost" and exit_.stop_reason is None:
        return _lost(exit_)
    found = climb(exit_)
    if found is not None:
        # that a code is all there is does not keep its output from saying more
        return found if found.cause != "exit" else _by_words(exit_, lines, _ANY) or found
    if exit_.signal is not None:
        return _signal(exit_)
    return _code(exit_, lines)


def _lost(exit_: ExitInfo) -> Found:
    if exit_.stop_reason is not None:
        return Found(BY_STOP.get(exit_.stop_reason, "canceled"), "certain")
    if exit_.out_of_memory:
        return Found("outOfMemory", "possible", ("memory ran out in it before its end, which nobody saw",))
    return Found("lost", "unknown")


def _start(exit_: ExitInfo) -> Found:
    word = next((word for text, word in _START if text in (exit_.detail or "")), "startFailed")
    if exit_.fault == "diskFull" and word == "startFailed":
        word = "diskFull"
    return Found(word, "certain", ("its start said so: it never ran",) if word != "startFailed" else ())


def _signal(exit_: ExitInfo) -> Found:
    assert exit_.signal is not None
    word = BY_SIGNAL.get(exit_.signal, "signal")
    return Found(word, "certain", _core(exit_) if word == "crash" else ())


def _core(exit_: ExitInfo) -> tuple[str, ...]:
    if exit_.core_dumped:
        return ("a core was written: 'core*' in its run directory, or where kernel.core_pattern of its machine says ('coredumpctl list')",)
    return (NO_CORE,)


def _code(exit_: ExitInfo, lines: list[str] | None) -> Found:
    code = exit_.code or 0
    number, by_shell = code - 128, facts_of(exit_).via_shell
    if number in BY_SIGNAL and by_shell is not False and (by_shell or number in _OWN_SIGNALS):
        word = BY_SIGNAL[number]
        told = f"{code} is what a shell says whose command {signal_name(number)} ended"
        return Found(word, "certain" if by_shell else "likely", (told, *(_core(exit_) if word == "crash" else ())))
    said = _by_words(exit_, lines, _ANY | _OF_CODE.get(code, frozenset({"usage"}) if code != _GENERAL else frozenset()))
    if said is not None:
        return said
    match code:
        case 126:
            return Found("notExecutable", "likely", ("126 is what a shell says of what it found and may not execute",))
        case 127:
            return Found("notFound", "likely", ("127 is what a shell says of what it did not find",))
        case 255:
            return Found("launcher", "possible", ("255 is what ssh and MPI launchers say, and what exit(-1) becomes",))
        case _:
            own = number in (signal.SIGKILL, signal.SIGTERM)
            denied = (f"{signal_name(number)}: the program said {code} by itself, no signal ended it",) if own else ()
            return Found("exit", "certain" if exit_.code is not None else "unknown", excluded=denied)


def _by_words(exit_: ExitInfo, lines: list[str] | None, words: frozenset[str]) -> Found | None:
    """What its last lines say. Only ever likely: whoever can write a line can write this one."""
    if lines is None:
        lines = last_words.newest(exit_.last_lines, exit_.termination_message)
    if not lines:
        return None
    found = last_words.complaint(lines, words)
    if found is not None:
        return Found(found[0], "likely", (f"a line of its output: {found[1]}",))
    python = last_words.traceback_of(lines)
    if python is not None:
        return Found("traceback", "likely" if exit_.code == _GENERAL else "possible", (f"Python's last exception: {python['last']}",))
    return None

