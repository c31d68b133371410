"""The variables of a run that turn remote debugging on, and the stops that its jobs report. Pure.

A run has no field for this: as variables, the option reaches jobs of all kinds, is part of the hash
of a run, and is ignored by agents of earlier versions.
"""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Literal

import msgspec

from ..errors import Refusal
from ..ids import Token

#: Variables of a run's `env`.
VARIABLE, SECS_VARIABLE = "JOBSCRIBE_DEBUG", "JOBSCRIBE_DEBUG_SECS"
OPTIONS = frozenset((VARIABLE, SECS_VARIABLE))
#: Variables of a job for `agent/breakpoints/staged`.
HOOK, FOLDER = "PYTHONBREAKPOINT", "JOBSCRIBE_DEBUG_DIR"
MODES = ("breakpoint", "on-error", "debugpy")
#: A debugger that listens at an address: an IDE.
_DIRECT = re.compile(r"(?:debugpy|pydevd):[A-Za-z0-9][A-Za-z0-9.-]{0,254}:([1-9][0-9]{0,4})\Z")
FORMS = (*MODES, "debugpy:HOST:PORT", "pydevd:HOST:PORT")
#: In the evidence: the folder of the sockets of stopped processes; and that of copied modules, for a
#: machine or a container that shares the evidence only, with the module that relays bytes there.
SOCKETS, COPY, RELAY = "debug", "debugger", "jobscribe_debugger.py"
NOT_WAITING = "it does not wait for a debugger any more; 'jobscribe debug list' shows what does"
#: Runs the relay with the job's Python, or else with one on the PATH.
_RELAY = (
    'for p in "$1" python3; do command -v "$p" >/dev/null 2>&1 && exec "$p" -I "$2" "$3" "$4"; done; '
    "echo 'there is no Python where the process runs' >&2; exit 127"
)
#: How long a stopped job waits by default.
DEFAULT_SECS = 1800.0


class DebugOption(msgspec.Struct, frozen=True):
    """mode: `on-error` stops at uncaught exceptions, too; `debugpy` waits for an IDE; with an
    address, debugpy or pydevd connects to it. secs: how long a stopped job waits.
    """

    mode: str
    secs: float


class Stop(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A process of a job that waits for a debugger, as it describes itself.

    id: what users type. name: of its socket. kind: `breakpoint` or `error`. since, until: unix
    seconds. attached: a user is there. rank: of a process of MPI or srun.
    """

    id: str
    name: str
    kind: Literal["breakpoint", "error"]
    file: str
    line: int
    function: str
    error: str = ""
    host: str
    pid: int
    since: float
    until: float
    attached: bool
    rank: int | msgspec.UnsetType = msgspec.UNSET


def option(env: Mapping[str, str]) -> DebugOption | None:
    """Return the debugging option of a run; None without one, or with an invalid one."""
    mode = env.get(VARIABLE)
    try:
        secs = float(env.get(SECS_VARIABLE, DEFAULT_SECS))
    except ValueError:
        return None
    valid = mode is not None and is_mode(mode) and 0 < secs < 10**9
    return DebugOption(mode, secs) if valid and mode is not None else None


def is_mode(text: str) -> bool:
    """Return whether this is a value of `VARIABLE`."""
    direct = _DIRECT.match(text)
    return text in MODES or (direct is not None and int(direct[1]) < 2**16)


def of_envs(envs: Iterable[Mapping[str, str]]) -> DebugOption | None:
    """Return the option of a run. envs: of the run and of its roles."""
    return next(filter(None, map(option, envs)), None)


def warning(found: DebugOption) -> str:
    """Return what everybody who looks at the run is told."""
    tool, _, address = found.mode.partition(":")
    if address:
        return f"remote debugging is on: at breakpoints, {tool} connects to {address}"
    where = "breakpoints and uncaught exceptions" if found.mode == "on-error" else "breakpoints"
    return (
        f"remote debugging is on: processes stop at {where}, up to {found.secs:g} s each, while its"
        " time limit goes on ('jobscribe debug list')"
    )


def check(env: Mapping[str, str], *, allowed: bool, most_secs: float) -> None:
    """Check the debugging option of a run. Raises Refusal (badRequest, forbidden)."""
    if VARIABLE not in env:
        return
    found = option(env)
    if found is None:
        raise Refusal(
            "badRequest",
            f"{VARIABLE} is one of: {', '.join(FORMS)}; {SECS_VARIABLE} is a number of seconds",
        )
    if not allowed:
        raise Refusal(
            "forbidden",
            "remote debugging is turned off at this site (debugger.allowed); submit the run without --debug",
        )
    if found.secs > most_secs:
        raise Refusal(
            "badRequest",
            f"a stopped job may wait for {most_secs:g} s at most at this site, not {found.secs:g} s; give a shorter --debug-ttl",
        )


def stop_id(token: Token, name: str) -> str:
    """Return the id of a stop. The process computes the same one."""
    return sha256(f"{token} {name}".encode()).hexdigest()[:8]


def relay_command(evidence: object, python: str, folder: str, name: str) -> tuple[str, ...]:
    """Return the command that connects its input and output with the socket of a stopped process.

    python: the interpreter of the process. folder, name: of the socket.
    """
    return ("/bin/sh", "-c", _RELAY, "sh", python, f"{evidence}/{COPY}/{RELAY}", folder, name)
