"""The Pdb of `jobscribe_debugger`, which imports this module when a job stops for the first time.

Python 3.8 or later, standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import pdb
import queue
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

FOLDER, SECS = "JOBSCRIBE_DEBUG_DIR", "JOBSCRIBE_DEBUG_SECS"
DEFAULT_SECS = 1800.0
#: Characters of output between two prompts; more is dropped with a note.
OUTPUT_CHARS = 1 << 20
#: Characters of output in one message.
MESSAGE_CHARS = 64 * 1024
#: Bytes of a line from the user; characters of output without a newline that are kept.
LINE_BYTES, REST_CHARS = 64 * 1024, 4096
#: Lines of the user that wait for the prompt; more stay in the socket.
WAITING_LINES = 16
#: Seconds that a program which runs waits for a user who reads nothing.
_SEND_SECS = 5.0
_debuggers: dict[tuple[int, int], Debugger] = {}
_numbers: dict[int, int] = {}


def current() -> Debugger:
    """Return the debugger of this thread of this process. A forked child gets its own."""
    key = (os.getpid(), threading.get_ident())
    if key not in _debuggers:
        for old in [k for k in _debuggers if k[0] != key[0]]:
            del _debuggers[old]
        _debuggers[key] = Debugger()
    return _debuggers[key]


def note(text: str) -> None:
    """Write a line to the job's stderr, if it has one."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"jobscribe debugger: {text}\n")
        sys.stderr.flush()


def notice(code: str, text: str) -> None:
    """Write a line to stderr, and another for the events of the job (runtime/execution/notices.py)."""
    note(f"{text}; the job continues")
    with contextlib.suppress(Exception):
        path = os.path.join(os.path.dirname(os.environ[FOLDER]), "notices.jsonl")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        line = json.dumps({"code": code, "text": text[:300]}) + "\n"
        file = os.open(path, flags, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)


def folder() -> str:
    """Return the folder of this job's sockets and records, which only its unix user can enter."""
    path = os.environ[FOLDER]
    os.makedirs(path, 0o700, exist_ok=True)
    if os.stat(path).st_mode & 0o077:
        os.chmod(path, 0o700)
    return path


def accept(listener: socket.socket, until: float) -> socket.socket | None:
    """Return the connection of a process of the same unix user; None at the monotonic time `until`."""
    while True:
        left = until - time.monotonic()
        if left <= 0:
            return None
        if not select.select([listener], [], [], min(left, 3600.0))[0]:
            continue
        peer = listener.accept()[0]
        creds = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", creds)[1] == os.geteuid():
            return peer
        peer.close()


class Gone(Exception):
    """The connection is lost."""


class Place:
    """The socket and the record of one process and thread at which an agent finds it."""

    def __init__(self) -> None:
        self.name = _next_name()
        self._claimed = False
        self.folder = folder()
        self.sockets = self.folder
        self._own: str | None = None
        self.record: dict[str, Any] = {}

    def listen(self) -> socket.socket:
        """Return a listening socket. Its path is short, whatever the folder's is."""
        self._claim()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            try:
                self._bind(listener)
            except OSError:  # a file system without sockets
                self.sockets = self._own = tempfile.mkdtemp(prefix="jobscribe-")
                self._bind(listener)
            listener.listen(1)
        except BaseException:
            listener.close()
            raise
        return listener

    def _bind(self, listener: socket.socket) -> None:
        folder = os.open(self.sockets, os.O_RDONLY | os.O_DIRECTORY)
        try:
            path = f"/proc/self/fd/{folder}/{self.name}.sock"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener.bind(path)
            os.chmod(path, 0o600)
        finally:
            os.close(folder)

    def write(self, **changes: object) -> None:
        """Write the record. Its name is complete at once."""
        self._claim()
        self.record.update(changes, folder=self.sockets)
        path = os.path.join(self.folder, self.name)
        with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            json.dump(self.record, f)
        os.rename(path + ".new", path + ".json")

    def paths(self) -> list[str]:
        """Return the files of this place. The name is free without the last one."""
        names = [self.name + ".json", self.name + ".taken"]
        socket_ = os.path.join(self.sockets, self.name + ".sock")
        return [socket_, *(os.path.join(self.folder, name) for name in names)]

    def _claim(self) -> None:
        """Take a name that no process has, also on the other nodes of a cluster, which share the
        folder and may have the same pids.
        """
        while not self._claimed:
            path = self.paths()[-1]
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                self._claimed = True
            except FileExistsError:
                self.name = _next_name()

    def close(self) -> None:
        """Remove socket and record."""
        for path in self.paths() if self._claimed else ():
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._claimed = False
        if self._own is not None:
            with contextlib.suppress(OSError):
                os.rmdir(self._own)
            self.sockets, self._own = self.folder, None


def _next_name() -> str:
    number = _numbers[os.getpid()] = _numbers.get(os.getpid(), 0) + 1
    return f"{os.getpid()}-{number}"


class Connection:
    """One attached user. A thread receives lines, so that an interrupt arrives at any time."""

    def __init__(self, peer: socket.socket, on_interrupt: Any) -> None:
        self._peer, self._on_interrupt = peer, on_interrupt
        self.lines: queue.Queue[dict[str, Any] | None] = queue.Queue(WAITING_LINES)
        self.lost = False
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def send(self, message: dict[str, Any], until: float) -> None:
        """Send a line. Raises Gone if the connection is lost or `until` is over."""
        data = memoryview((json.dumps(message) + "\n").encode())
        while data:
            left = until - time.monotonic()
            if self.lost or left <= 0 or not select.select([], [self._peer], [], min(left, 1.0))[1]:
                if self.lost or left <= 0:
                    raise Gone
                continue
            try:
                data = data[self._peer.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                continue
            except OSError:
                raise Gone from None

    def close(self) -> None:
        self.lost = True
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)
        self._peer.close()

    def _receive(self) -> None:
        kept, ignored = b"", False
        while True:
            try:
                data = self._peer.recv(4096)
            except OSError:
                data = b""
            if not data:
                self.lost = True
                with contextlib.suppress(queue.Full):
                    self.lines.put_nowait(None)
                return
            *lines, kept = (kept + data).split(b"\n")
            for line in lines:
                self._take(b'{"ignored": true}' if ignored else line)
                ignored = False
            ignored = ignored or len(kept) > LINE_BYTES
            kept = b"" if ignored else kept

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line.decode("utf-8", "replace"))
        except ValueError:
            return
        if isinstance(message, dict) and "interrupt" in message:
            self._on_interrupt()
        elif isinstance(message, dict):
            while not self.lost:
                with contextlib.suppress(queue.Full):
                    self.lines.put(message, timeout=1.0)
                    return


class Terminal:
    """The files stdin and stdout of the debugger. Text after the last newline is the prompt."""

    encoding, errors, closed = "utf-8", "replace", False

    def __init__(self, debugger: Debugger) -> None:
        self._debugger, self._rest = debugger, ""
        self._left, self._dropped = OUTPUT_CHARS, 0

    def write(self, text: str) -> int:
        taken = text[: self._left]
        self._left -= len(taken)
        self._dropped += len(text) - len(taken)
        lines, newline, self._rest = (self._rest + taken).rpartition("\n")
        if len(self._rest) > REST_CHARS:
            newline, self._rest = newline + self._rest, ""
        shown = lines + newline
        for at in range(0, len(shown), MESSAGE_CHARS):
            self._debugger.tell({"out": shown[at : at + MESSAGE_CHARS]})
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

    def readline(self) -> str:
        prompt, self._rest = self._rest, ""
        if self._dropped:
            self._debugger.tell({"out": f"\n[{self._dropped} characters of output dropped]\n"})
            prompt = self._debugger.prompt
        self._left, self._dropped = OUTPUT_CHARS, 0
        return str(self._debugger.ask(prompt))


class Debugger(pdb.Pdb):
    """Pdb with a terminal that comes and goes."""

    def __init__(self) -> None:
        terminal: Any = Terminal(self)
        super().__init__(
            stdin=terminal, stdout=terminal, nosigint=True, readrc=False, skip=["jobscribe_*"]
        )
        self.use_rawinput = False
        self._pid = os.getpid()
        self._place = Place()
        self._connection: Connection | None = None
        self._secs = _seconds()
        self._until: float | None = None
        self._location: dict[str, object] = {}
        self._evaluating = self._interrupted = self._asking = False
        self._signals: Any = None
        atexit.register(self.over, "the process has ended")

    # ---- stops

    def stopped(self, kind: str, file: str, line: int, function: str, error: str = "") -> bool:
        """Return whether a user is attached. Waits for one if nobody is."""
        self._check_process()
        self._until = time.monotonic() + self._secs
        self._location = _location(kind, file, line, function, error, self._secs)
        if self._connection is not None and not self._connection.lost:
            self._record(attached=True)
            return True
        try:
            if self._wait():
                return True
            note(f"nobody attached within {self._secs:g} s; the job continues")
        except OSError as failure:
            note(f"no debugger: {failure}; the job continues")
        self._let_go()
        return False

    def interaction(self, *args: Any, **options: Any) -> None:
        frame = args[0]
        if self._until is None:  # a later stop, at a breakpoint of Pdb or by an interrupt
            self._until = time.monotonic() + self._secs
            if frame is not None:
                self._location = _location(
                    "breakpoint",
                    frame.f_code.co_filename,
                    frame.f_lineno,
                    frame.f_code.co_name,
                    "",
                    self._secs,
                )
                self._record(attached=True)
        super().interaction(*args, **options)

    def set_continue(self) -> None:
        super().set_continue()
        self._continued()

    def _continued(self) -> None:
        self._until = None
        self._place.close()
        self.tell({"running": True})

    def onecmd(self, line: str) -> bool:
        self._evaluating = True
        try:
            return bool(super().onecmd(line))
        finally:
            self._evaluating = False

    # ---- the user

    def _wait(self) -> bool:
        """Wait for a user until the time is over. Raises OSError."""
        self._drop()
        listener = self._place.listen()
        try:
            self._record(attached=False)
            name, secs = self._place.name, max(0.0, (self._until or 0.0) - time.monotonic())
            where = "{file}:{line}".format(**self._location)
            about = _identity(name)
            note(f"stopped at {where}; attach within {secs:.0f} s: jobscribe debug attach {about}")
            peer = self._accept(listener)
        finally:
            listener.close()
        if peer is None:
            return False
        self._connection = Connection(peer, self._interrupt)
        self._handle_signals()
        self._record(attached=True)
        self.tell({"hello": {**self._location, "id": about}})
        return True

    def _accept(self, listener: socket.socket) -> socket.socket | None:
        return accept(listener, self._until or 0.0)

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message; without a user it is dropped."""
        self._check_process()
        if self._connection is None or self._connection.lost:
            return
        until = self._until if self._until is not None else time.monotonic() + _SEND_SECS
        try:
            self._connection.send(message, until)
        except Gone:
            self._connection.close()

    def ask(self, prompt: str) -> str:
        """Return the next line of a user, who may be another one than before. When the time is
        over, return the command that continues the job.
        """
        while True:
            self._check_process()
            if self._until is None:
                self._until = time.monotonic() + self._secs
            if self._connection is None or self._connection.lost:
                try:
                    if not self._wait():
                        return self._expire()
                except OSError as failure:
                    note(f"no debugger: {failure}; the job continues")
                    return self._expire()
            line = self._next_line(prompt)
            if line is not None:
                return line

    def _next_line(self, prompt: str) -> str | None:
        """Return a line, or None if the connection is lost."""
        assert self._connection is not None and self._until is not None
        self._asking = True
        try:
            self.tell({"prompt": prompt})
            while not self._connection.lost:
                left = self._until - time.monotonic()
                if left <= 0:
                    return self._expire()
                try:
                    message = self._connection.lines.get(timeout=min(left, 3600.0))
                except queue.Empty:
                    continue
                if message is None:
                    break
                if "line" in message:
                    return str(message["line"]).replace("\n", " ") + "\n"
                if "complete" in message:
                    self.tell({"completions": self._completions(message["complete"])})
                if "ignored" in message:
                    self.tell({"out": f"[a line of over {LINE_BYTES // 1024} KiB was ignored]\n"})
                    self.tell({"prompt": prompt})
        finally:
            self._asking = False
        return None

    def _expire(self) -> str:
        self.tell({"end": f"its {self._secs:g} s are over, so the job continues"})
        note("the time is over; the job continues")
        self._let_go()
        return "continue\n"

    def _let_go(self) -> None:
        """End all debugging: no user, no breakpoints of Pdb, no files."""
        self.clear_all_breaks()
        self._drop()
        self._place.close()

    def _completions(self, asked: Any) -> list[str]:
        try:
            text, line = str(asked["text"]), str(asked["line"])
            begin, end = int(asked["begin"]), int(asked["end"])
            if begin == 0:
                return sorted(map(str, self.completenames(text, line, begin, end)))[:200]
            command = self.parseline(line)[0]
            complete = getattr(self, f"complete_{command}", self.completedefault)
            return sorted(map(str, complete(text, line, begin, end) or ()))[:200]
        except Exception:
            return []

    def completedefault(self, text: str, *rest: Any) -> list[str]:
        return list(self._complete_expression(text, *rest))

    # ---- interrupts

    def _handle_signals(self) -> None:
        if self._signals is None and threading.current_thread() is threading.main_thread():
            self._signals = signal.signal(signal.SIGINT, self._on_signal)

    def _interrupt(self) -> None:
        """Interrupt what the user's command, or the program, does. In the receiving thread."""
        if self._asking or self._signals is None:
            return
        self._interrupted = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._interrupted:
            if callable(self._signals):
                self._signals(number, frame)
            return
        self._interrupted = False
        if self._evaluating:
            raise KeyboardInterrupt
        if self._until is None and frame is not None:
            self.message("Program interrupted.")
            self.set_trace(frame)

    # ---- ends

    def _record(self, *, attached: bool) -> None:
        try:
            self._place.write(**self._location, attached=attached)
        except OSError as failure:
            note(f"the stop cannot be listed: {failure}")

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._signals is not None:
            signal.signal(signal.SIGINT, self._signals)
            self._signals = None

    def over(self, why: str) -> None:
        """End the session and remove its files."""
        if self._pid == os.getpid():
            self.tell({"end": why})
            self._drop()
            self._place.close()

    def _check_process(self) -> None:
        """In a forked child, leave the session and its files to the parent process."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._place = Place()
            self._connection = self._signals = None


def _seconds() -> float:
    try:
        return max(0.0, float(os.environ[SECS]))
    except (KeyError, ValueError):
        return DEFAULT_SECS


def _location(
    kind: str, file: str, line: int, function: str, error: str, secs: float
) -> dict[str, object]:
    """Return the record of a stop."""
    now, environ = time.time(), os.environ
    record: dict[str, object] = {
        "kind": kind,
        "file": file,
        "line": line,
        "function": function,
        "error": error[:500],
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": now,
        "until": now + secs,
        "python": sys.executable,
        "slurmJob": environ.get("SLURM_JOB_ID", ""),
        "node": environ.get("SLURMD_NODENAME", ""),
        "rank": _rank(environ),
        "started": "",
        "pids": "",
    }
    try:
        record["pids"] = os.readlink("/proc/self/ns/pid")
        with open("/proc/self/stat") as stat:
            record["started"] = stat.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    return record


def _rank(environ: Any) -> int:
    """Return the rank of this process in a program of MPI or of srun; -1 without one."""
    for prefix, size in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ):
        try:
            if int(environ[size]) > 1:
                return int(environ[prefix])
        except (KeyError, ValueError):
            pass
    return -1


def _identity(name: str) -> str:
    """Return the id of a stop, as `jobscribe debug list` shows it."""
    token = os.environ.get("JOBSCRIBE_TOKEN", "")
    return hashlib.sha256(f"{token} {name}".encode()).hexdigest()[:8]
