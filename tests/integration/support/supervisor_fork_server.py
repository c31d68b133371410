"""A process with all imports of the command line and of a supervisor done, the shipped exit table read
and the patterns of all routes compiled, which forks supervisors and commands for tests.

    python supervisor_fork_server.py FD PADDING              FD: a SOCK_SEQPACKET socket to the tests

Imports are most of the processor time of a start. A forked process has the arguments, environment,
directory, standard streams, process group, limits and umask of an executed one. It differs in its
parent (this process), in `/proc/PID/environ`, and in the hash seed, which all of one test process
share. PADDING reserves space for the title in `ps`.

Each packet is one JSON object: {"arguments", "environment", "limits", "umask", "folder", "who"} (a
unix user, or null for the same one) with the descriptors of stdin, stdout and stderr is answered with {"pid"}; {"wait": pid} with {"status"}, null
while it runs.

A forked supervisor's template, front end and shards are forked as well (see `forked_children`).

The client is in this module too; this process imports only that module of the tests.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, Any

_PACKET = 1 << 17
#: Variables that take effect when a program is loaded, and those of them that a fork can follow.
_AT_LOAD = ("LD_", "PYTHON", "MALLOC_")
_FOLLOWED = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
#: Names the variable with further modules for fork servers that start from now on, separated by spaces:
#: those that a driver imports when a supervisor starts.
MODULES = "TEST_FORK_SERVER_MODULES"
_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
#: What a supervisor imports when it starts.
_AT_START = ("jobscribe.cli.services.supervisor", "tornado.platform.asyncio")


def can_fork(python: str, added: dict[str, str], path: str) -> bool:
    """Return whether a supervisor with these variables added needs no start of its own. path: the
    fork server's PYTHONPATH; a supervisor may have folders after it.
    """
    return (
        python == sys.executable
        and not any(name.startswith(_AT_LOAD) and name not in _FOLLOWED for name in added)
        and f"{added.get('PYTHONPATH', path)}{os.pathsep}".startswith(f"{path}{os.pathsep}")
    )


class ForkServer:
    """The fork server of this process. It ends with this process."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(other.fileno()), "x" * 400],
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                pass_fds=(other.fileno(),),
            )
        atexit.register(self.end)

    def end(self) -> None:
        self._socket.close()
        self._process.wait()

    def fork(
        self,
        args: Sequence[str],
        environment: dict[str, str],
        errors: int,
        who: int | None = None,
    ) -> "ForkedProcess":
        """Start `python -m jobscribe.cli` with these arguments. errors: descriptor of its stderr. who:
        the unix user to become.
        """
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        with open(os.devnull, "rb") as null, os.fdopen(theirs, "wb"):
            pid = self._start(args, environment, "/", (null.fileno(), theirs, errors), who)
        return ForkedProcess(self, list(args), pid, os.fdopen(ours, "rb"))

    def run(
        self,
        args: Sequence[str],
        environment: dict[str, str],
        folder: str,
        given: str,
        timeout: float,
    ) -> "subprocess.CompletedProcess[str]":
        """Run `python -m jobscribe.cli` with these arguments to its end. given: its stdin."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(given.encode())
            files[0].seek(0)
            pid = self._start(args, environment, folder, [f.fileno() for f in files])
            process = ForkedProcess(self, list(args), pid, None)
            try:
                code = process.wait(timeout)
            finally:
                process.kill()
            out, err = (os.pread(f.fileno(), os.fstat(f.fileno()).st_size, 0) for f in files[1:])
        return subprocess.CompletedProcess(list(args), code, out.decode(), err.decode())

    def _start(
        self,
        args: Sequence[str],
        environment: dict[str, str],
        folder: str,
        files: Sequence[int],
        who: int | None = None,
    ) -> int:
        request = {
            "arguments": list(args),
            "environment": environment,
            "folder": folder,
            "limits": [(number, resource.getrlimit(number)) for number in _LIMITS],
            "umask": _umask(),
            "who": who,
        }
        pid: int = self.ask(request, files)["pid"]
        return pid

    def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> Any:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            return json.loads(self._socket.recv(_PACKET))


@functools.cache
def fork_server(path: str) -> ForkServer:
    """Return the fork server whose PYTHONPATH is `path`. The first call starts it."""
    return ForkServer(dict(os.environ) | {"PYTHONPATH": path})


class ForkedProcess:
    """A forked supervisor, with the methods of `subprocess.Popen`. It stays a zombie until it is
    polled, like a child.
    """

    def __init__(
        self, server: ForkServer, args: list[str], pid: int, stdout: IO[bytes] | None
    ) -> None:
        self.args, self.pid, self.stdout = args, pid, stdout
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        if self.returncode is None:
            status = self._server.ask({"wait": self.pid})["status"]
            self.returncode = None if status is None else os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            fd = os.pidfd_open(self.pid)
            try:
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                if not poll.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
            finally:
                os.close(fd)
        code = self.poll()
        assert code is not None, f"process {self.pid} has ended but has no status"
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[bytes, None]:
        """Return its stdout and None, as stderr is no pipe. Its stdout must fit into the pipe."""
        assert self.stdout is not None
        self.wait(timeout)
        with self.stdout:
            return self.stdout.read(), None

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _umask() -> int:
    """Return this process's umask without changing it."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith("Umask:"))


# ---- the server


def _serve(tests: socket.socket) -> list[str] | None:
    """Answer requests. Return the arguments in a forked process, None when the tests have ended."""
    while True:
        packet, fds, _, _ = socket.recv_fds(tests, _PACKET, 3)
        if not packet:
            return None
        request = json.loads(packet)
        if "wait" in request:
            pid, status = os.waitpid(request["wait"], os.WNOHANG)
            answer = {"status": status if pid else None}
        else:
            if any(word.startswith("store.url=") for word in request["arguments"]):
                _import_postgres()
            pid = os.fork()
            if pid == 0:
                tests.close()
                _become(request, *fds)
                return list(request["arguments"])
            for fd in fds:
                os.close(fd)
            answer = {"pid": pid}
        tests.send(json.dumps(answer).encode())


@functools.cache
def _import_postgres() -> None:
    """Import what supervisors and commands with a database need, for all that are forked later."""
    with contextlib.suppress(ImportError):  # they say so
        import jobscribe.db.postgres.store
        import jobscribe.router.app


def _become(request: dict[str, Any], *files: int) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, max(files) + 1)
    os.chdir(request["folder"])
    os.umask(request["umask"])
    for number, limits in request["limits"]:
        if resource.getrlimit(number) != tuple(limits):
            resource.setrlimit(number, limits)
    if (who := request["who"]) is not None:
        become(who)
    os.environ.clear()
    os.environ.update(request["environment"])
    follow_environment()


def become(who: int) -> None:
    """Become this unix user. The kernel gives root the files in /proc of a process that changed its
    user; give them back, as `exec` does.
    """
    from jobscribe.runtime import processes

    os.setgroups([])
    os.setgid(who)
    os.setuid(who)
    processes.set_dumpable(True)


def follow_environment() -> None:
    """Do what the interpreter and the product's modules do with variables when they start."""
    from jobscribe.runtime import failpoints

    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in path if folder and folder not in sys.path]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    failpoints.arm(os.environ.get(failpoints.VARIABLE))


def _main() -> None:
    gc.disable()
    import importlib

    import forked_children

    import jobscribe.cli.__main__
    import jobscribe.cli.job.status
    import jobscribe.cli.job.submit
    import jobscribe.cli.job.why
    import jobscribe.cli.services.up
    import jobscribe.client.sync_client
    import jobscribe.service.settings.loader
    import jobscribe.service.site.exit_table_file
    import jobscribe.service.systemd
    import jobscribe.supervisor.app
    from jobscribe.supervisor.api import routes

    jobscribe.service.site.exit_table_file.load(None)
    also = os.environ.get(MODULES, "").split()
    for module in (*forked_children.IMPORTED, *_AT_START, *also):
        importlib.import_module(module)
    for route in routes.ROUTES:
        routes._Matcher(route)  # `re` keeps the compiled pattern
    gc.freeze()
    gc.enable()
    sys.path[0] = "/"  # as with -m in this directory
    arguments = _serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is None:
        return
    sys.exit(forked_children.command(arguments, follow_environment))


if __name__ == "__main__":
    _main()
