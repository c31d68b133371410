"""Classification of a run's end: finds its cause, confidence, evidence and excluded causes. Pure
and cheap.

The order: facts (see `kill_attribution`), signals, conventional exit codes, and last the output,
which is never more than likely. `classify_by_facts` ignores output: its cause decides the type, and
so whether a run is retried (see `exit_table`).
"""

import signal

from ..protocol.jobs.core_report import CoreReport
from ..protocol.jobs.exit_info import ExitInfo, signal_name
from ..protocol.jobs.status import CANCELED, COMPLETED, PURGED
from . import output_patterns
from .causes import BY_REASON, BY_SIGNAL, BY_STOP, Confidence
from .kill_attribution import Classification, attribute_kill, facts_of, own_stop, ulimits

#: Signals that a program raises by its own error. An exit code of 128+n for these rarely has
#: another meaning.
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
#: Programs that handle these signals also exit with 128+n, and shells print no message for two of
#: them.
_ALSO_SAID = frozenset((signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE))
_NOT_EXECUTABLE, _NOT_FOUND, _LAUNCHER, _GENERAL = 126, 127, 255, 1
#: Causes by error line that can explain only these exit codes; the others can explain any code.
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
#: Option of `ulimit` that may explain a cause.
_BY_ULIMIT = {"cpuLimit": "-t", "fileSizeLimit": "-f", "memoryRefused": "-v"}
#: Texts of the kernel and the engine in a failed start, and their causes.
_START = (
    ("Exec format error", "wrongArchitecture"),
    ("quota", "quota"),
    ("No space left", "diskFull"),
    ("executable file not found", "notFound"),
)


NO_CORE = "no core was written: a run has none unless it was submitted with --core (--core 1G), and 'ulimit -c' in it cannot raise that"


def classify_run(
    status: str, reason: str | None, exit_: ExitInfo | None, lines: list[str] | None = None
) -> Classification:
    """Classify the end of a run. status, reason: of the run. lines: its newest output if the caller
    has it already.
    """
    if status == PURGED:
        return Classification("purged", "certain")
    if status == COMPLETED:
        return Classification("completed", "certain")
    if reason == "lost" and exit_ is not None and exit_.source == "lost":
        return _lost(exit_)
    if reason in BY_REASON:
        noted = own_stop(exit_) if exit_ is not None else None
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
    return classify_exit(exit_, lines)


def classify_by_facts(exit_: ExitInfo) -> Classification:
    """Classify one execution without its output."""
    return classify_exit(exit_, [])


def is_guess(cause: str, confidence: Confidence | str | None) -> bool:
    """Return whether another cause or an unknown sender is possible, so that the responsible side
    may differ.
    """
    return (
        confidence == "possible"
        or cause in _SENT
        or (cause in _BY_SOMEBODY and confidence == "unknown")
    )


#: Signals of unknown sender: with confidence "unknown" the sender is unknown; the second set are
#: signals that certainly ended the run.
_BY_SOMEBODY, _SENT = frozenset({"killed", "terminated"}), frozenset({"interrupted", "hangup"})


def classify_exit(exit_: ExitInfo, lines: list[str] | None = None) -> Classification:
    """Classify one execution."""
    found = _classify(exit_, lines)
    limits = ulimits(exit_, _BY_ULIMIT[found.cause]) if found.cause in _BY_ULIMIT else ()
    return (
        found._replace(evidence=(*found.evidence, f"limit set in the job: {', '.join(limits)}"))
        if limits
        else found
    )


def _classify(exit_: ExitInfo, lines: list[str] | None) -> Classification:
    if exit_.code == 0 and exit_.stop_reason is None:
        return Classification("completed", "certain")
    if exit_.source == "start" and exit_.stop_reason is None:
        return _start(exit_)
    if exit_.source == "lost" and exit_.stop_reason is None:
        return _lost(exit_)
    found = attribute_kill(exit_)
    if found is not None:
        # if only the exit code is known, the output may tell more
        return found if found.cause != "exit" else _by_output(exit_, lines, _ANY) or found
    if exit_.signal is not None:
        return _signal(exit_)
    return _code(exit_, lines)


def _lost(exit_: ExitInfo) -> Classification:
    if exit_.stop_reason is not None:
        return Classification(BY_STOP.get(exit_.stop_reason, "canceled"), "certain")
    if exit_.out_of_memory:
        return Classification(
            "outOfMemory", "possible", ("memory ran out before its end, which was not observed",)
        )
    return Classification("lost", "unknown")


def _start(exit_: ExitInfo) -> Classification:
    named = exit_.fault in (
        None,
        "diskFull",
        "engineRefused",
    )  # any other fault names the missing resource itself
    word = next(
        (word for text, word in _START if named and text in (exit_.detail or "")), "startFailed"
    )
    if exit_.fault == "diskFull" and word == "startFailed":
        word = "diskFull"
    return Classification(
        word, "certain", ("the error of its start; it never ran",) if word != "startFailed" else ()
    )


def _signal(exit_: ExitInfo) -> Classification:
    assert exit_.signal is not None
    word = BY_SIGNAL.get(exit_.signal, "signal")
    return Classification(word, "certain", _core(exit_) if word == "crash" else ())


def _core(exit_: ExitInfo) -> tuple[str, ...]:
    if isinstance(exit_.core, CoreReport):
        return ()  # `supervisor.diagnosis.core_files` has better lines
    if exit_.core_dumped:
        return (
            "a core was written: 'core*' in its run directory, or at kernel.core_pattern of its machine ('coredumpctl list')",
        )
    return (NO_CORE,)


def _code(exit_: ExitInfo, lines: list[str] | None) -> Classification:
    code = exit_.code or 0
    number, by_shell = code - 128, facts_of(exit_).via_shell
    by_convention = f"a shell returns {code} if {signal_name(number)} ended its command"
    if number in BY_SIGNAL and by_shell is not False and (by_shell or number in _OWN_SIGNALS):
        word = BY_SIGNAL[number]
        return Classification(
            word,
            "certain" if by_shell else "likely",
            (by_convention, *(_core(exit_) if word == "crash" else ())),
        )
    if number == signal.SIGINT and output_patterns.interrupted(_lines(exit_, lines)):
        return Classification(
            "interrupted",
            "likely",
            (by_convention, "Python's last exception is KeyboardInterrupt, which SIGINT raises"),
        )
    by_output = _by_output(
        exit_,
        lines,
        _ANY | _OF_CODE.get(code, frozenset({"usage"}) if code != _GENERAL else frozenset()),
    )
    if by_output is not None:
        return by_output
    if number in _ALSO_SAID and by_shell is not False:
        return Classification(
            "exit", "possible", (f"{by_convention}; a program may also return it by itself",)
        )
    match code:
        case 124:
            calls = facts_of(exit_).calls_timeout is True
            return Classification(
                "commandTimeout",
                "likely" if calls else "possible",
                (
                    "'timeout' returns 124 if its command takes too long"
                    + (", and the job calls it" if calls else ""),
                ),
            )
        case 126:
            return Classification(
                "notExecutable",
                "likely",
                ("a shell returns 126 for a command that it cannot execute",),
            )
        case 127:
            return Classification(
                "notFound", "likely", ("a shell returns 127 for a command that it does not find",)
            )
        case 255:
            return Classification(
                "launcher",
                "possible",
                ("ssh and MPI launchers return 255, and exit(-1) becomes 255",),
            )
        case _:
            own = number in BY_SIGNAL
            denied = (
                (f"{signal_name(number)}: the program itself returned {code}, no signal ended it",)
                if own
                else ()
            )
            return Classification(
                "exit", "certain" if exit_.code is not None else "unknown", excluded=denied
            )


def _by_output(
    exit_: ExitInfo, lines: list[str] | None, words: frozenset[str]
) -> Classification | None:
    """Classify by the last lines of output. At most likely, because any program can print such a
    line.
    """
    lines = _lines(exit_, lines)
    if not lines:
        return None
    found = output_patterns.known_error_line(lines, words)
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
