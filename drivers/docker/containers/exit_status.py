"""How a container ended: what its engine says, what was seen while it ran, and what the job wrote
itself, put together. Pure.

None of them is enough alone. An engine reports signal n as 128+n, as a program may exit by itself;
it says "OOMKilled" though only a child was killed and the job succeeded, and may not say it where
it was not there itself when it happened.
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
NEVER_STARTED = "its container was made, but never started"
NO_SHELL = "its image has no shell: /bin/sh cannot be executed there"
NOT_FROM_HERE = "the kernel log of its host cannot be seen from here"
ENGINE_LOST_IT = "its engine or host went down while it ran, and nobody saw its end"
#: What an engine gives to a container that was not there any more when it came back.
_LOST_CODE = 255
_SIGTERM, _SIGKILL = 15, 9
#: Signals that can end the first process of a container. The kernel drops others, so a code of
#: 128+n says nothing of them.
_END_THE_FIRST = frozenset((4, 5, 6, 7, 8, _SIGKILL, 11, _SIGTERM, 31))
#: Of a container whose command cannot be executed, or is not there.
_NO_PROGRAM = (126, 127)
#: Of an engine's words, which can be long.
_SAID_CHARS = 400
_KEEPERS_WORDS = {
    0: "its keeper ended by itself",
    2: "its keeper was given no configuration that it understands",
    3: "another keeper has its folder",
    4: "its keeper could not get an agent going",
    5: "its keeper could not use its folder",
}


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What a task's own wrapper wrote about the end of the command: a code, or the signal that its
    shell told of.
    """

    code: int | None = None
    signal: int | None = None
    core_dumped: bool = False


def running(state: State) -> bool:
    """Is there still something in it? One that is being made or removed has nothing."""
    return bool(state.get("Running") or state.get("Paused") or state.get("Restarting"))


def never_started(state: State) -> bool:
    return state.get("Status") == "created"


def runtime_failed(state: State) -> bool:
    """Did what makes containers fail before there was a process in it, and not for what it was to
    execute? It may have been killed.
    """
    return "OCI runtime" in str(state.get("Error")) and state.get("ExitCode") not in _NO_PROGRAM


def started_at(state: State) -> float | None:
    """Unix seconds, by its host's clock; None: it never was."""
    return _unix(state.get("StartedAt"))


def signal_of(state: State) -> int | None:
    """The signal that its main process died of."""
    return _signal(int(state.get("ExitCode") or 0))


def _there(state: State | None) -> State | None:
    """One that is being removed is as good as gone: how far its engine has come with that decides
    nothing.
    """
    return None if state is not None and state.get("Status") == "removing" else state


def of_task(
    state: State | None,
    *,
    ooms: int = 0,
    written: Written | None = None,
    stop_reason: str | None = None,
) -> ExitInfo:
    """state: `State` of inspect, None where the container is gone. ooms: events of memory that ran
    out in it, counted while it ran.
    """
    if state is not None and running(state):
        raise ValueError("it has not ended")
    state = _there(state)
    memory = None if state is None and not ooms else bool(ooms or (state or {}).get("OOMKilled"))
    began, ended = (_unix((state or {}).get(name)) for name in ("StartedAt", "FinishedAt"))
    known = ExitInfo(
        stop_reason=stop_reason, out_of_memory=memory, started_at=began, ended_at=ended
    )
    if (
        written is not None
    ):  # the shell is still there when its command has ended: whatever hit it then does not matter
        return as_written(known, written)
    if state is None:
        return _replace(known, source="lost", detail=REMOVED)
    if never_started(state):
        return _not_started(state, known)
    code = int(state.get("ExitCode") or 0)
    if state.get("Status") == "dead":
        return _replace(known, source="lost", detail=_dead(state))
    if code == _LOST_CODE and stop_reason is None:
        return _replace(known, source="lost", detail=_with(ENGINE_LOST_IT, state))
    number = _signal(code)
    if number is None or number not in _END_THE_FIRST:
        return _replace(known, source="engine", code=code, detail=_said(state) or None)
    outside = None if memory or stop_reason is not None else _killed(number)
    return _replace(known, source="engine", signal=number, detail=outside)


def as_written(known: ExitInfo, written: Written) -> ExitInfo:
    return _replace(
        known,
        source="script",
        code=written.code,
        signal=written.signal,
        core_dumped=written.core_dumped,
    )


def facts_of(
    exit_: ExitInfo,
    *,
    peak: int | None,
    limit: int | None,
    ooms: int,
    said: Mapping[str, Any],
) -> ExitFacts | msgspec.UnsetType:
    """What was seen around this end: the most memory in its samples, its container's limit, events
    of memory that ran out in it.

    said: what its own files tell, in the words of ExitFacts.
    """
    if exit_.code == 0 or exit_.source == "start":
        return msgspec.UNSET
    # that it was none can be believed of an engine that was asked and watched; that there were some
    # it may say without having counted
    kills = ooms or (0 if exit_.out_of_memory is False else None)
    asked = exit_.stop_reason is None and signal_number(exit_.code, exit_.signal) in KERNEL_SIGNALS
    return ExitFacts(
        memory_peak_bytes=peak,
        memory_limit_bytes=limit,
        memory_kills=kills,
        kernel_unread=NOT_FROM_HERE if asked else None,
        via_shell=said.get("viaShell"),
        ulimits=tuple(said["ulimits"]) if "ulimits" in said else msgspec.UNSET,
        calls_timeout=said.get("callsTimeout", msgspec.UNSET),
    )


def of_agent(
    state: State | None, *, ooms: int = 0, stopped: bool = False, last_line: str = ""
) -> str:
    """One sentence: why this agent's container is not running. stopped: by us."""
    memory = bool(ooms or (state or {}).get("OOMKilled"))
    state = _there(state)
    sentence = _why(state, memory, stopped)
    if memory and OUT_OF_MEMORY not in sentence:
        sentence += f"; {OUT_OF_MEMORY}"
    # who was killed had no time to say why
    killed = (
        state is not None and not memory and _signal(int(state.get("ExitCode") or 0)) is not None
    )
    return (
        f"{sentence}; its last line: {_cut(last_line)}"
        if last_line and not stopped and not killed
        else sentence
    )


def _why(state: State | None, memory: bool, stopped: bool) -> str:
    if state is None:
        return "its container was stopped and removed" if stopped else REMOVED
    if running(state):
        raise ValueError("it has not ended")
    if never_started(state):
        return (
            f"its container could not be started: {_said(state)}"
            if state.get("Error")
            else NEVER_STARTED
        )
    if state.get("Status") == "dead":
        return _dead(state)
    code = int(state.get("ExitCode") or 0)
    number = _signal(code)
    if stopped:
        return "it was stopped" + (
            f", by signal {number} ({signal_name(number)})" if number else ""
        )
    if number == _SIGKILL and memory:
        return OUT_OF_MEMORY + ": its keeper was hit"
    if code == _LOST_CODE:
        return _with(ENGINE_LOST_IT, state)
    if number is not None:
        return _killed(number)
    return _with(_KEEPERS_WORDS.get(code, "its keeper ended") + f" (exit code {code})", state)


def _not_started(state: State, known: ExitInfo) -> ExitInfo:
    if not state.get("Error"):
        return _replace(known, source="start", detail=NEVER_STARTED, out_of_memory=None)
    no_shell = state.get("ExitCode") in _NO_PROGRAM
    detail = (
        f"{NO_SHELL} ({_said(state)})"
        if no_shell
        else f"its container could not be started: {_said(state)}"
    )
    return _replace(
        known,
        source="start",
        detail=detail,
        fault="noShell" if no_shell else None,
        out_of_memory=None,
    )


def _killed(number: int) -> str:
    by = " (docker kill, docker stop or an administrator)" if number in (_SIGTERM, _SIGKILL) else ""
    return f"its container was ended from outside by signal {number} ({signal_name(number)}){by}"


def _dead(state: State) -> str:
    return _with("its engine could not take its container down in order", state)


def _with(sentence: str, state: State) -> str:
    return f"{sentence}: {_said(state)}" if state.get("Error") else sentence


def _said(state: State) -> str:
    return _cut(str(state.get("Error") or ""))


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SAID_CHARS else line[:_SAID_CHARS] + "..."


def _signal(code: int) -> int | None:
    """PID 1 that died of a signal is reported so; the wrapper and the keeper never exit with such a
    code themselves.
    """
    return code - 128 if 128 < code <= 128 + 64 else None


def _unix(text: object) -> float | None:
    """Of an engine's time, which has nine digits after the second; None for the year 1, which it
    says instead of nothing.
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


def _replace(known: ExitInfo, **said: Any) -> ExitInfo:
    return msgspec.structs.replace(known, **said)
