"""The worker process: keeps apps imported and forks a process for every call, so that no state leaks
from one call to the next.

    python -P -m jobscribe.agent.workers.worker_process --root ROOT PADDING             fd 0: a SOCK_SEQPACKET socket to the agent

Each packet is one msgpack object. The agent sends the Setting first, then orders: `fork`, `kill`
(the call with all its processes), `load` (import what a call has imported). Events report every
fork, with its descriptors, and every end. Calls and answers do not pass through this process: they
use the fork's own socket, each as 4 bytes of length and a msgpack object.

This process runs no thread and no event loop. It imports an app only after a fork has imported it
and finished, so an import that hangs or crashes costs one call. Each fork adopts the orphans below
it. So a child that this process did not fork belongs to an ended call and is killed. The process
ends with the agent and kills all its children.
"""

import faulthandler
import gc
import importlib
import io
import os
import resource
import select
import shutil
import signal
import socket
import stat
import sys
import tempfile
from typing import NoReturn

import msgspec

from ...protocol.wire.messages import Call
from ...runtime import processes
from .call_handler import Calls, Outcome

TITLE = "jobscribe worker"
_PACKET = 256 * 1024
#: These libraries start threads when they are imported, and a process with threads cannot be forked
#: safely. Calls see the variables too, as many calls run at once; the login environment overrides
#: them.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
#: Time limit of killing (seconds); processes that survive it are ignored. Limit of rounds.
_KILL_SECS, _LOOKS = 1.0, 100
_LENGTH_BYTES = 4
#: Maximum number of empty folders kept for later calls.
FOLDERS = 8
#: Made before the fork: a new decoder is slow, as it first analyses the message type.
_call = msgspec.msgpack.Decoder(Call)
_encoder = msgspec.msgpack.Encoder()


class Setting(msgspec.Struct):
    """Settings of the worker process. folder: for the empty working directory of each call. path:
    PYTHONPATH of the login environment. also: see apps.registry.
    """

    folder: str
    umask: int
    path: str | None
    also: tuple[str, ...]


class WorkerOrder(msgspec.Struct, omit_defaults=True):
    """An order. do: `fork`, `kill` (pid), `load` (app and modules)."""

    do: str
    pid: int = 0
    app: str = ""
    modules: tuple[str, ...] = ()


class WorkerEvent(msgspec.Struct, omit_defaults=True):
    """An event. said: `forked` (pid; the packet carries socket and output), `ended` (pid, wait
    status), `loaded` (app), `trouble` (sentence).
    """

    said: str
    pid: int = 0
    status: int = 0
    sentence: str = ""


class _Worker:
    def __init__(self, agent: socket.socket, setting: Setting) -> None:
        self._agent = agent
        self._setting = setting
        self._calls = Calls(setting.also)
        self._forks: dict[int, str] = {}
        #: empty folders for later calls
        self._folders: list[str] = []
        self._cleaners: set[int] = set()
        #: (pid, start time) of processes that cannot be killed: they run as another user or hang in
        #: the kernel
        self._unkillable: set[tuple[int, int]] = set()
        #: names of the modules that forks inherit
        self._inherited_modules = frozenset(sys.modules)
        self._made = 0
        self._orders = msgspec.msgpack.Decoder(WorkerOrder)
        self._poll = select.poll()
        self._wake, self._woken = socket.socketpair()
        for s in (self._wake, self._woken):
            s.setblocking(False)

    def serve(self) -> None:
        """Serve until the agent closes its socket."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._poll.register(self._agent, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        try:
            while self._step():
                pass
        except (BrokenPipeError, ConnectionResetError):  # the agent ended
            pass
        finally:
            self._end()

    def _step(self) -> bool:
        ready = {fd for fd, _ in self._poll.poll()}
        if self._woken.fileno() in ready:
            self._woken.recv(4096)
            self._reap()
        if self._agent.fileno() not in ready:
            return True
        packet = self._agent.recv(_PACKET)
        if packet:
            self._execute(self._orders.decode(packet))
        return bool(packet)

    def _execute(self, order: WorkerOrder) -> None:
        match order.do:
            case "fork":
                self._fork()
            case "kill":
                self._kill(order.pid)
                self._reap()
            case "load":
                self._load(order)
            case _:
                self._send_event(
                    WorkerEvent(
                        "trouble", sentence=f"unknown order to the worker process: {order.do!a}"
                    )
                )

    def _send_event(self, news: WorkerEvent, fds: tuple[int, ...] = ()) -> None:
        packet = msgspec.msgpack.encode(news)
        if fds:
            socket.send_fds(self._agent, [packet], list(fds))
        else:
            self._agent.send(packet)

    # ---- forks

    def _fork(self) -> None:
        fds: list[int] = []
        try:
            folder = self._folders.pop() if self._folders else self._new_folder()
            ours, theirs = (s.detach() for s in socket.socketpair())
            fds += ours, theirs
            read_end, write_end = os.pipe()
            fds += read_end, write_end
            pid = os.fork()
        except OSError as e:
            for fd in fds:
                os.close(fd)
            self._send_event(
                WorkerEvent("trouble", sentence=f"cannot create a process for a call: {e.strerror}")
            )
            return
        if pid == 0:
            _run_fork(theirs, write_end, folder, self._calls, self._inherited_modules)
        self._forks[pid] = folder
        try:
            self._send_event(WorkerEvent("forked", pid), (ours, read_end))
        finally:
            for fd in fds:
                os.close(fd)

    def _new_folder(self) -> str:
        self._made += 1
        folder = f"{self._setting.folder}/{self._made}"
        os.mkdir(folder, 0o700)
        return folder

    def _kill(self, pid: int) -> None:
        """Kill a fork; its descendants are killed when it is reaped. Its pid is not reused while it
        is in `_forks`: it has not been reaped.
        """
        if pid in self._forks:
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Reap ended forks, kill what ended calls left, then report the ends."""
        ended = self._reap_forks()
        folders = [self._forks.pop(pid) for pid, _ in ended]
        for folder in folders:
            self._clean(folder)
        for pid, status in ended:
            self._send_event(WorkerEvent("ended", pid, status))

    def _reap_forks(self) -> list[tuple[int, int]]:
        """Return ended forks with their status; all their processes are gone by then."""
        ended: list[tuple[int, int]] = []
        # reaping may have left us children that were not in the list yet
        for _ in range(_LOOKS):
            reaped = dict(iter(_wait_child, (0, 0)))
            self._cleaners -= reaped.keys()
            ended += [(pid, status) for pid, status in reaped.items() if pid in self._forks]
            if self._unknown_children():
                if processes.kill_until_gone(self._unknown_children, _KILL_SECS):
                    self._unkillable.update((p.pid, p.ticks) for p in self._unknown_children())
            elif not reaped:
                break
        return ended

    def _unknown_children(self) -> list[processes.Process]:
        """Return the children that this process did not fork."""
        strangers = [
            pid
            for pid in processes.children()
            if pid not in self._forks and pid not in self._cleaners
        ]
        found = [p for p in map(processes.find, strangers) if p is not None]
        return [p for p in found if not p.over and (p.pid, p.ticks) not in self._unkillable]

    def _clean(self, folder: str) -> None:
        """Keep a call's folder if the call left nothing there, because making a folder takes longer
        than most calls. Else remove it; use a child process if it is not empty, as that may take
        long.
        """
        try:
            if len(self._folders) < FOLDERS and _is_as_made(folder):
                self._folders.append(folder)
                return
            os.rmdir(folder)
            return
        except FileNotFoundError:
            return
        except OSError:
            pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                os.setsid()
                # the agent must see the socket close when the parent ends
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os._exit(0)
        self._cleaners.add(pid)

    # ---- imports

    def _load(self, order: WorkerOrder) -> None:
        """Import what a call imported. An import that fails here affects only that call."""
        # an import may hang: then end with the agent anyway
        processes.end_with_parent(signal.SIGKILL)
        failed: BaseException | None = None
        for name in order.modules:
            try:
                importlib.import_module(name)
            except BaseException as e:  # also SystemExit: some modules are programs
                failed = e
        try:
            if order.app:
                self._calls.load(order.app)
        except BaseException as e:
            failed = e
        self._inherited_modules = frozenset(sys.modules)
        gc.collect()
        gc.freeze()  # keeps pages shared with the forks: the collector would write to them
        processes.end_with_parent(0)
        self._send_event(
            WorkerEvent(
                "loaded",
                sentence="" if failed is None else f"{type(failed).__name__}: {failed}"[:500],
            )
        )

    # ---- the end

    def _end(self) -> None:
        signal.set_wakeup_fd(-1)
        for pid in self._forks:
            os.kill(pid, signal.SIGKILL)
        self._forks.clear()  # so that they are reaped without a report
        self._reap_forks()
        shutil.rmtree(self._setting.folder, ignore_errors=True)


def _is_as_made(folder: str) -> bool:
    status = os.lstat(folder)
    return (
        stat.S_ISDIR(status.st_mode)
        and stat.S_IMODE(status.st_mode) == 0o700
        and (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())
        and not os.listdir(folder)
        and not os.listxattr(folder, follow_symlinks=False)  # they include access control lists
    )


def _wait_child() -> tuple[int, int]:
    """Return pid and status of an ended child, or (0, 0)."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


# ---- inside a fork


def _run_fork(
    agent: int, output: int, folder: str, calls: Calls, inherited: frozenset[str]
) -> NoReturn:
    """Serve one call in the fork. Never returns to the parent's loop. If the parent has ended, the
    agent's socket is closed.
    """
    code = 1
    try:
        processes.end_with_parent(signal.SIGKILL)
        _drop_inherited(agent, output, folder)
        _serve_one(agent, calls, inherited)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _drop_inherited(agent: int, output: int, folder: str) -> None:
    """Drop all state of the worker process except its modules."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    processes.become_subreaper()
    for fd in (1, 2):
        os.dup2(output, fd)
    end = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, agent)
    os.closerange(agent + 1, end)
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None
    os.chdir(folder)
    # Python reseeds its own generator after a fork, numpy does not
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _serve_one(agent: int, calls: Calls, inherited: frozenset[str]) -> None:
    request = _request(agent)
    if request is None:
        return
    outcome = calls.outcome(_call.decode(request))
    outcome.imported = _imported(inherited)
    _flush()
    _send(agent, outcome)


def _imported(inherited: frozenset[str]) -> tuple[str, ...]:
    """Return the modules imported by this call, in order; none if threads run now, because a fork
    would not have them.
    """
    if len(sys.modules) == len(inherited) or len(os.listdir("/proc/self/task")) != 1:
        return ()
    try:
        return tuple(
            n
            for n, m in list(sys.modules.items())
            if n not in inherited and getattr(m, "__spec__", None) is not None
        )
    except Exception:  # sys.modules may hold anything
        return ()


def _request(agent: int) -> bytes | None:
    """Read the call; return None if the agent does not need this fork."""
    data = bytearray()
    size = _LENGTH_BYTES
    while len(data) < size:
        more = os.read(agent, 1 << 20)
        if not more:
            return None
        data += more
        if len(data) >= _LENGTH_BYTES:
            size = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES])
    return bytes(data[_LENGTH_BYTES:])


def _send(agent: int, outcome: Outcome) -> None:
    body = _encoder.encode(outcome)
    data = memoryview(len(body).to_bytes(_LENGTH_BYTES) + body)
    while data:
        data = data[os.write(agent, data) :]


def _flush() -> None:
    """Flush printed output. The app may have closed or replaced the streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue


def main() -> int:
    root = sys.argv[2] if len(sys.argv) in (3, 4) and sys.argv[1] == "--root" else None
    if root is None:
        sys.stderr.write(
            "usage: python -P -m jobscribe.agent.workers.worker_process --root ROOT PADDING, a socket as stdin\n"
        )
        return 2
    processes.set_title(TITLE, root)
    processes.become_subreaper()
    agent = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    packet = agent.recv(_PACKET)
    if not packet:
        return 0
    setting = msgspec.msgpack.decode(packet, type=Setting)
    _prepare(setting)
    _Worker(agent, setting).serve()
    return 0


def _prepare(setting: Setting) -> None:
    """Prepare this process, from which calls are forked."""
    if setting.path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = setting.path
    if processes.environment(os.getpid(), b"LC_CTYPE") == [None]:
        os.environ.pop("LC_CTYPE", None)  # set by the interpreter without a locale (PEP 538)
    for name in _ONE_THREAD:
        os.environ.setdefault(name, "1")
    # line buffering shows the output of a killed call; escapes avoid encoding errors
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    os.umask(setting.umask)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
