"""Forks the template, the front end and the supervisors of shards of a forked supervisor instead of
executing them.

Imports are nearly all of the processor time of their starts: 0.17 s, 0.3 s and 0.35 s. A spare
process of the supervisor, forked before the supervisor does anything, waits until the supervisor
starts such a child with `subprocess`, and becomes it. Like an executed child, it is a child of the supervisor and
gets the arguments, environment, directory, descriptors, session and limits of that call.

A child is executed after all if its spare was used (a second start), if the supervisor has moved to
another control group, or if the call has options that are not known here.
"""

import contextlib
import importlib
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from jobscribe.runtime import processes

#: Modules that are started with `python -P -m`, and their functions.
TEMPLATE, FRONT_END = "jobscribe.agent.fork_server", "jobscribe.web"
#: The supervisor of a shard, started by `up`, which ends it when it ends itself.
SHARD = "jobscribe.cli"
_SHARDS = "shards.count="
_FUNCTIONS = {TEMPLATE: ("", "main"), FRONT_END: (".__main__", "main")}
#: What they import when they start.
IMPORTED = (
    "jobscribe.agent.process",
    TEMPLATE,
    "jobscribe.web.__main__",
    "jobscribe.web.server.processes",
)
_PACKET = 1 << 17
#: Descriptors of a start: its standard streams, and those that it passes on.
_MOST_DESCRIPTORS = 16
#: Numbers from which received descriptors are kept until those of the child are free.
_ASIDE = 64
_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})

#: A function that runs the child in a spare.
Main = Callable[[], object]


def modules_of(arguments: Sequence[str]) -> list[str]:
    """Return the modules that a supervisor with these arguments starts as its children."""
    counts = [a.removeprefix(_SHARDS) for a in arguments if a.startswith(_SHARDS)]
    if "up" in arguments and counts and counts[-1].isdecimal():
        shards = int(counts[-1]) * [SHARD]
        return shards if "--no-web" in arguments else [*shards, FRONT_END]
    if "up" in arguments:
        return [TEMPLATE] if "--no-web" in arguments else [TEMPLATE, FRONT_END]
    return [TEMPLATE] if "supervisor" in arguments else []


def with_spares(modules: Sequence[str], follow_environment: Callable[[], None]) -> Main | None:
    """Fork a spare for each module. Return None in the supervisor, and what to run in a spare when
    it is needed.

    follow_environment: does what the interpreter does with variables when it starts.
    """
    spares: dict[str, list[_Spare]] = {}
    for module in modules:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            ours.close()
            for spare in itertools.chain(*spares.values()):
                spare.socket.close()
            return _wait(module, theirs, follow_environment)
        theirs.close()
        spares.setdefault(module, []).append(_Spare(pid, ours))
    if spares:
        _fork_instead_of_executing(spares)
    return None


def command(arguments: Sequence[str], follow_environment: Callable[[], None]) -> object:
    """Run a jobscribe command in this process, whose children are forked."""
    import jobscribe.cli.__main__

    child = with_spares(modules_of(arguments), follow_environment)
    if child is not None:
        return child()
    sys.argv = [jobscribe.cli.__main__.__file__, *arguments]
    return jobscribe.cli.main.main()


# ---- in the supervisor


class _Spare:
    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid, self.socket = pid, sock
        self._groups = _control_groups()

    def start(self, request: dict[str, Any], descriptors: Sequence[int]) -> bool:
        """Make it the child. Return False if it cannot be the child."""
        with self.socket:
            if self._groups != _control_groups():
                return False
            # before this returns: the supervisor may set other limits right after it
            for number in _LIMITS:
                limits = resource.getrlimit(number)
                if resource.prlimit(self.pid, number) != limits:
                    resource.prlimit(self.pid, number, limits)
            with contextlib.suppress(OSError):
                socket.send_fds(self.socket, [json.dumps(request).encode()], descriptors)
                return True
        return False


def _fork_instead_of_executing(spares: dict[str, list[_Spare]]) -> None:
    """Replace the system call of `subprocess.Popen`, so that all else of a start stays as it is."""
    execute = subprocess._fork_exec  # type: ignore[attr-defined]

    def start(*call: Any) -> int:
        words = [os.fsdecode(word) for word in call[0]]
        if words[:3] == [sys.executable, "-P", "-m"] and spares.get(words[3]):
            spare = spares[words[3]].pop()
            if spare.start(*_request(words[4:], *call[1:16])):
                return spare.pid
        pid: int = execute(*call)
        return pid

    subprocess._fork_exec = start  # type: ignore[attr-defined]


def _request(
    arguments: list[str],
    executables: Sequence[bytes],
    close_fds: bool,
    kept: Sequence[int],
    folder: Any,
    environment: Sequence[bytes] | None,
    stdin: int,
    _stdin_writer: int,
    _stdout_reader: int,
    stdout: int,
    _stderr_reader: int,
    stderr: int,
    _error_reader: int,
    error_writer: int,
    restore_signals: bool,
    new_session: bool,
) -> tuple[dict[str, Any], list[int]]:
    """Return a request to a spare, and the descriptors for it."""
    passed = [fd for fd in kept if fd != error_writer]
    variables = (
        dict(os.environ)
        if environment is None
        else dict(os.fsdecode(v).split("=", 1) for v in environment)
    )
    streams = [own if fd == -1 else fd for own, fd in enumerate((stdin, stdout, stderr))]
    return {
        "arguments": arguments,
        "environment": variables,
        "folder": os.getcwd() if folder is None else os.fspath(folder),
        "session": new_session,
        "umask": _umask(),
        "descriptors": [0, 1, 2, *passed],
    }, [*streams, *passed]


def _control_groups() -> str:
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        return file.read()


def _umask() -> int:
    """Return this process's umask without changing it."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith("Umask:"))


# ---- in a spare


def _wait(module: str, sock: socket.socket, follow_environment: Callable[[], None]) -> Main:
    """Wait for the supervisor's request and take over its descriptors. End with the supervisor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, for the supervisor's group
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)
    packet, fds, _, _ = socket.recv_fds(sock, _PACKET, _MOST_DESCRIPTORS)
    if not packet:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    request = json.loads(packet)
    sock.close()
    _take(fds, request["descriptors"])
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    follow_environment()
    if sys.path[0] == "/":  # -P
        del sys.path[0]
    if module == SHARD:
        processes.end_with_parent(signal.SIGTERM)
        return lambda: command(request["arguments"], follow_environment)
    part, function = _FUNCTIONS[module]
    main = importlib.import_module(module + part)
    sys.argv = [str(main.__file__), *request["arguments"]]
    run: Main = getattr(main, function)
    return run


def _take(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Give the descriptors these numbers, and close all others."""
    import fcntl

    first = max(_ASIDE, *fds, *numbers) + 1
    aside = [fcntl.fcntl(fd, fcntl.F_DUPFD, first) for fd in fds]
    for fd, number in zip(aside, numbers, strict=True):
        os.dup2(fd, number)
    end = os.sysconf("SC_OPEN_MAX")
    begin = 3
    for number in sorted(n for n in numbers if n > 2):
        os.closerange(begin, number)
        begin = number + 1
    os.closerange(begin, end)
