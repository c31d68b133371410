"""From what is known of one end to a word of the table of causes: how sure, what shows it, what it
is not. Pure, and cheap.

Facts come first (see `ladder`), then signals, then exit codes that are a convention, then what was
written last, which is never more than likely. `by_facts` leaves output out: its word decides the
class, by which a run is tried again or not (see `diagnosis`).
"""

import signal

from ..protocol.jobs.exit_info import ExitInfo, signal_name
from ..protocol.jobs.status import CANCELED, COMPLETED, PURGED
from . import output_patterns
from .causes import BY_REASON, BY_SIGNAL, BY_STOP, Confidence
from .kill_attribution import Classification, climb, facts_of, intent, ulimits

#: A shell says 128+n; these n are what programs die of by themselves, so hardly anybody says such a
#: code for anything else.
_OWN_SIGNALS = frozenset(
    (
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
        signal.SIGABRT,
        signal.SIGTRAP,
        signal.SIGSYS,
        signal.SIGXCPU,
        signal.SIGXFSZ,
    )
)
#: Programs that handle these exit with 128+n by themselves, and shells are silent about two of
#: them.
_ALSO_SAID = frozenset((signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE))
_NOT_EXECUTABLE, _NOT_FOUND, _LAUNCHER, _GENERAL = 126, 127, 255, 1
#: Which complaints say something about which codes; others about all.
_OF_CODE = {
    _NOT_EXECUTABLE: frozenset({"wrongArchitecture"}),
    _NOT_FOUND: frozenset({"libraryMissing", "notFound"}),
    _LAUNCHER: frozenset({"launcher"}),
}
_ANY = frozenset(
    {
        "setupFailed",
        "quota",
        "diskFull",
        "fileSizeLimit",
        "cpuLimit",
        "wrongArchitecture",
        "libraryMissing",
        "brokenPipe",
        "memoryRefused",
    }
)
#: Options of `ulimit` that may explain a cause.
_BY_ULIMIT = {"cpuLimit": "-t", "fileSizeLimit": "-f", "memoryRefused": "-v"}
#: What the start says that failed, in words of the kernel.
_START = (
    ("Exec format error", "wrongArchitecture"),
    ("quota", "quota"),
    ("No space left", "diskFull"),
    ("executable file not found", "notFound"),
)


NO_CORE = "no core was written: a run has none unless it was submitted with --core (--core 1G), and 'ulimit -c' in it cannot raise that"


def refined(
    status: str, reason: str | None, exit_: ExitInfo | None, lines: list[str] | None = None
) -> Classification:
    """status, reason: the run's. lines: the newest of its output, where they are at hand already."""
    if status == PURGED:
        return Classification("purged", "certain")
    if status == COMPLETED:
        return Classification("completed", "certain")
    if reason == "lost" and exit_ is not None and exit_.source == "lost":
        return _lost(exit_)
    if reason in BY_REASON:
        noted = intent(exit_) if exit_ is not None else None
        return Classification(
            BY_REASON[reason], "certain", noted.evidence if noted is not None else ()
        )
    if exit_ is None:
        word = (
            "startFailed"
            if reason == "startFailed"
            else "canceled"
            if status == CANCELED
            else "exit"
        )
        return Classification(word, "certain" if word != "exit" else "unknown")
    return of_exit(exit_, lines)


def by_facts(exit_: ExitInfo) -> Classification:
    """Of one execution alone, whatever it printed."""
    return of_exit(exit_, [])


def is_guess(cause: str, confidence: Confidence | str | None) -> bool:
    """Can it have been something else, or somebody whom nobody knows, so that whose it is may be
    otherwise as well?
    """
    return (
        confidence == "possible"
        or cause in _SENT
        or (cause in _BY_SOMEBODY and confidence == "unknown")
    )


#: Signals that say nothing of who sent them: with "unknown" that is what is not known; those that
#: are known to have ended it.
_BY_SOMEBODY, _SENT = frozenset({"killed", "terminated"}), frozenset({"interrupted", "hangup"})


def of_exit(exit_: ExitInfo, lines: list[str] | None = None) -> Classification:
    """Of one execution alone."""
    found = _of_exit(exit_, lines)
    limits = ulimits(exit_, _BY_ULIMIT[found.cause]) if found.cause in _BY_ULIMIT else ()
    return (
        found._replace(
            evidence=(*found.evidence, f"a limit that holds in the job: {', '.join(limits)}")
        )
        if limits
        else found
    )


def _of_exit(exit_: ExitInfo, lines: list[str] | None) -> Classification:
    if exit_.code == 0 and exit_.stop_reason is None:
        return Classification("completed", "certain")
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


def _lost(exit_: ExitInfo) -> Classification:
    if exit_.stop_reason is not None:
        return Classification(BY_STOP.get(exit_.stop_reason, "canceled"), "certain")
    if exit_.out_of_memory:
        return Classification(
            "outOfMemory", "possible", ("memory ran out in it before its end, which nobody saw",)
        )
    return Classification("lost", "unknown")


def _start(exit_: ExitInfo) -> Classification:
    named = exit_.fault in (
        None,
        "diskFull",
        "engineRefused",
    )  # any other fault says itself what was missing
    word = next(
        (word for text, word in _START if named and text in (exit_.detail or "")), "startFailed"
    )
    if exit_.fault == "diskFull" and word == "startFailed":
        word = "diskFull"
    return Classification(
        word, "certain", ("its start said so: it never ran",) if word != "startFailed" else ()
    )


def _signal(exit_: ExitInfo) -> Classification:
    assert exit_.signal is not None
    word = BY_SIGNAL.get(exit_.signal, "signal")
    return Classification(word, "certain", _core(exit_) if word == "crash" else ())


def _core(exit_: ExitInfo) -> tuple[str, ...]:
    if exit_.core_dumped:
        return (
            "a core was written: 'core*' in its run directory, or where kernel.core_pattern of its machine says ('coredumpctl list')",
        )
    return (NO_CORE,)


def _code(exit_: ExitInfo, lines: list[str] | None) -> Classification:
    code = exit_.code or 0
    number, by_shell = code - 128, facts_of(exit_).via_shell
    told = f"{code} is what a shell says whose command {signal_name(number)} ended"
    if number in BY_SIGNAL and by_shell is not False and (by_shell or number in _OWN_SIGNALS):
        word = BY_SIGNAL[number]
        return Classification(
            word,
            "certain" if by_shell else "likely",
            (told, *(_core(exit_) if word == "crash" else ())),
        )
    if number == signal.SIGINT and output_patterns.interrupted(_lines(exit_, lines)):
        return Classification(
            "interrupted",
            "likely",
            (told, "Python's last exception is KeyboardInterrupt, which SIGINT raises"),
        )
    said = _by_words(
        exit_,
        lines,
        _ANY | _OF_CODE.get(code, frozenset({"usage"}) if code != _GENERAL else frozenset()),
    )
    if said is not None:
        return said
    if number in _ALSO_SAID and by_shell is not False:
        return Classification(
            "exit", "possible", (f"{told}, and what a program may say by itself",)
        )
    match code:
        case 124:
            calls = facts_of(exit_).calls_timeout is True
            return Classification(
                "commandTimeout",
                "likely" if calls else "possible",
                (
                    "124 is what 'timeout' says of a command that took too long"
                    + (", and the job calls it" if calls else ""),
                ),
            )
        case 126:
            return Classification(
                "notExecutable",
                "likely",
                ("126 is what a shell says of what it found and may not execute",),
            )
        case 127:
            return Classification(
                "notFound", "likely", ("127 is what a shell says of what it did not find",)
            )
        case 255:
            return Classification(
                "launcher",
                "possible",
                ("255 is what ssh and MPI launchers say, and what exit(-1) becomes",),
            )
        case _:
            own = number in BY_SIGNAL
            denied = (
                (f"{signal_name(number)}: the program said {code} by itself, no signal ended it",)
                if own
                else ()
            )
            return Classification(
                "exit", "certain" if exit_.code is not None else "unknown", excluded=denied
            )


def _by_words(
    exit_: ExitInfo, lines: list[str] | None, words: frozenset[str]
) -> Classification | None:
    """What its last lines say. Only ever likely: whoever can write a line can write this one."""
    lines = _lines(exit_, lines)
    if not lines:
        return None
    found = output_patterns.complaint(lines, words)
    if found is not None:
        return Classification(
            found.word,
            "likely" if found.near else "possible",
            (f"a line of its output: {found.line}",),
        )
    python = output_patterns.traceback_of(lines)
    if python is not None:
        return Classification(
            "traceback",
            "likely" if exit_.code == _GENERAL else "possible",
            (f"Python's last exception: {python['last']}",),
        )
    return None


def _lines(exit_: ExitInfo, lines: list[str] | None) -> list[str]:
    return (
        output_patterns.newest(exit_.last_lines, exit_.termination_message)
        if lines is None
        else lines
    )
