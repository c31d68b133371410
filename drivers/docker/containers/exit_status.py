"""The exit status of a container, from three sources: the engine's report, OOM events, and the
files of the job. Pure.

No source is sufficient alone. An engine reports signal n as 128+n, and a program may exit with the
same code. The engine reports "OOMKilled" even if only a child process was killed and the job
succeeded, and may miss an OOM kill while the daemon is down.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from ....protocol.jobs.exit_info import (
    KERNEL_SIGNALS,
    OUT_OF_MEMORY,
    ExitFacts,
    ExitInfo,
    signal_name,
    signal_number,
)

State = Mapping[str, Any]

REMOVED = "its container was removed from outside"
NEVER_STARTED = "its container was created, but never started"
NO_SHELL = "its image has no shell: /bin/sh cannot be executed there"
KERNEL_LOG_UNREADABLE = "the kernel log of its host cannot be read from here"
ENGINE_LOST_IT = "its engine or host went down while it ran, so its exit was not recorded"
#: The exit code that an engine reports for a container that vanished while the daemon was down.
_LOST_CODE = 255
_SIGTERM, _SIGKILL = 15, 9
#: Signals that can kill the first process of a container. The kernel drops all others, so their
#: code of 128+n is an ordinary exit.
_FATAL_TO_PID_1 = frozenset((4, 5, 6, 7, 8, _SIGKILL, 11, _SIGTERM, 31))
#: Exit codes of a container whose command is missing or not executable.
_NO_PROGRAM = (126, 127)
#: Maximum length of an engine's message, in characters.
_ERROR_CHARS = 400
_KEEPER_EXITS = {
    0: "its keeper ended by itself",
    2: "its keeper received an invalid configuration",
    3: "another keeper uses its folder",
    4: "its keeper could not start an agent",
    5: "its keeper could not use its folder",
}


class RecordedExit(msgspec.Struct, frozen=True, kw_only=True):
    """The exit of the command as the task's init script recorded it: a code, or the signal that the
    shell reported.
    """

    code: int | None = None
    signal: int | None = None
    core_dumped: bool = False


def running(state: State) -> bool:
    """Return whether the container has processes. A container that is being created or removed has
    none.
    """
    return bool(state.get("Running") or state.get("Paused") or state.get("Restarting"))


def never_started(state: State) -> bool:
    return state.get("Status") == "created"


def runtime_failed(state: State) -> bool:
    """Return whether the OCI runtime failed before the first process started, and the command was
    not at fault. A killed runtime counts, too.
    """
    return "OCI runtime" in str(state.get("Error")) and state.get("ExitCode") not in _NO_PROGRAM


def started_at(state: State) -> float | None:
    """Return the start time in unix seconds of the host's clock, or None if the container never
    started.
    """
    return _unix_time(state.get("StartedAt"))


def exit_signal(state: State) -> int | None:
    """Return the signal that killed the main process."""
    return _signal(int(state.get("ExitCode") or 0))


def _ignore_removing(state: State | None) -> State | None:
    """Treat a container that is being removed as gone, so that the result does not depend on the
    progress of the removal.
    """
    return None if state is not None and state.get("Status") == "removing" else state


def task_exit(
    state: State | None,
    *,
    ooms: int = 0,
    recorded: RecordedExit | None = None,
    stop_reason: str | None = None,
) -> ExitInfo:
    """Return the exit of a task. state: `State` of inspect, or None if the container is gone. ooms:
    number of OOM events while it ran.
    """
    if state is not None and running(state):
        raise ValueError("it has not ended")
    state = _ignore_removing(state)
    memory = None if state is None and not ooms else bool(ooms or (state or {}).get("OOMKilled"))
    began, ended = (_unix_time((state or {}).get(name)) for name in ("StartedAt", "FinishedAt"))
    known = ExitInfo(
        stop_reason=stop_reason, out_of_memory=memory, started_at=began, ended_at=ended
    )
    # The shell outlives its command; signals that hit the shell afterwards do not matter.
    if recorded is not None:
        return script_exit(known, recorded)
    if state is None:
        return _replace(known, source="lost", detail=REMOVED)
    if never_started(state):
        return _not_started(state, known)
    code = int(state.get("ExitCode") or 0)
    if state.get("Status") == "dead":
        return _replace(known, source="lost", detail=_dead_reason(state))
    if code == _LOST_CODE and stop_reason is None:
        return _replace(known, source="lost", detail=_with_error(ENGINE_LOST_IT, state))
    number = _signal(code)
    if number is None or number not in _FATAL_TO_PID_1:
        return _replace(known, source="engine", code=code, detail=_engine_error(state) or None)
    outside = None if memory or stop_reason is not None else _killed_reason(number)
    return _replace(known, source="engine", signal=number, detail=outside)


def script_exit(known: ExitInfo, recorded: RecordedExit) -> ExitInfo:
    return _replace(
        known,
        source="script",
        code=recorded.code,
        signal=recorded.signal,
        core_dumped=recorded.core_dumped,
    )


def exit_facts(
    exit_: ExitInfo,
    *,
    peak: int | None,
    limit: int | None,
    ooms: int,
    reported: Mapping[str, Any],
) -> ExitFacts | msgspec.UnsetType:
    """Return the observations around an exit: the highest memory sample, the container's memory
    limit, the number of OOM events.

    reported: the facts from the task's own files, with the field names of ExitFacts.
    """
    if exit_.code == 0 or exit_.source == "start":
        return msgspec.UNSET
    # A count of 0 is reliable only if the engine was watched. A reported OOM kill has no count.
    kills = ooms or (0 if exit_.out_of_memory is False else None)
    asked = exit_.stop_reason is None and signal_number(exit_.code, exit_.signal) in KERNEL_SIGNALS
    return ExitFacts(
        memory_peak_bytes=peak,
        memory_limit_bytes=limit,
        memory_kills=kills,
        kernel_unread=KERNEL_LOG_UNREADABLE if asked else None,
        via_shell=reported.get("viaShell"),
        ulimits=tuple(reported["ulimits"]) if "ulimits" in reported else msgspec.UNSET,
        calls_timeout=reported.get("callsTimeout", msgspec.UNSET),
    )


def agent_exit_reason(
    state: State | None, *, ooms: int = 0, stopped: bool = False, last_line: str = ""
) -> str:
    """Return a sentence that says why the agent's container is not running. stopped: by the
    driver.
    """
    memory = bool(ooms or (state or {}).get("OOMKilled"))
    state = _ignore_removing(state)
    sentence = _agent_reason(state, memory, stopped)
    if memory and OUT_OF_MEMORY not in sentence:
        sentence += f"; {OUT_OF_MEMORY}"
    # a killed process had no time to print a reason
    killed = (
        state is not None and not memory and _signal(int(state.get("ExitCode") or 0)) is not None
    )
    return (
        f"{sentence}; its last line: {_shorten(last_line)}"
        if last_line and not stopped and not killed
        else sentence
    )


def _agent_reason(state: State | None, memory: bool, stopped: bool) -> str:
    if state is None:
        return "its container was stopped and removed" if stopped else REMOVED
    if running(state):
        raise ValueError("it has not ended")
    if never_started(state):
        return (
            f"its container could not be started: {_engine_error(state)}"
            if state.get("Error")
            else NEVER_STARTED
        )
    if state.get("Status") == "dead":
        return _dead_reason(state)
    code = int(state.get("ExitCode") or 0)
    number = _signal(code)
    if stopped:
        return "it was stopped" + (
            f", by signal {number} ({signal_name(number)})" if number else ""
        )
    if number == _SIGKILL and memory:
        return OUT_OF_MEMORY + ": the keeper"
    if code == _LOST_CODE:
        return _with_error(ENGINE_LOST_IT, state)
    if number is not None:
        return _killed_reason(number)
    return _with_error(_KEEPER_EXITS.get(code, "its keeper ended") + f" (exit code {code})", state)


def _not_started(state: State, known: ExitInfo) -> ExitInfo:
    if not state.get("Error"):
        return _replace(known, source="start", detail=NEVER_STARTED, out_of_memory=None)
    no_shell = state.get("ExitCode") in _NO_PROGRAM
    detail = (
        f"{NO_SHELL} ({_engine_error(state)})"
        if no_shell
        else f"its container could not be started: {_engine_error(state)}"
    )
    return _replace(
        known,
        source="start",
        detail=detail,
        fault="noShell" if no_shell else None,
        out_of_memory=None,
    )


def _killed_reason(number: int) -> str:
    by = " (docker kill, docker stop or an administrator)" if number in (_SIGTERM, _SIGKILL) else ""
    return f"its container was killed from outside by signal {number} ({signal_name(number)}){by}"


def _dead_reason(state: State) -> str:
    return _with_error("its engine could not remove its container cleanly", state)


def _with_error(sentence: str, state: State) -> str:
    return f"{sentence}: {_engine_error(state)}" if state.get("Error") else sentence


def _engine_error(state: State) -> str:
    return _shorten(str(state.get("Error") or ""))


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _ERROR_CHARS else line[:_ERROR_CHARS] + "..."


def _signal(code: int) -> int | None:
    """Return the signal that killed PID 1, which the engine reports as 128+n. The init script and
    the keeper never exit with such a code themselves.
    """
    return code - 128 if 128 < code <= 128 + 64 else None


def _unix_time(text: object) -> float | None:
    """Convert an engine's time, which has nine decimal places, to unix seconds. Return None for the
    year 1, which means "never".
    """
    if not isinstance(text, str) or text.startswith("0001-"):
        return None
    head, _, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :] if rest else ""
    try:
        return datetime.fromisoformat(
            f"{head}.{(digits + '000000')[:6]}{zone}" if rest else head
        ).timestamp()
    except ValueError:
        return None


def _replace(known: ExitInfo, **changes: Any) -> ExitInfo:
    return msgspec.structs.replace(known, **changes)
