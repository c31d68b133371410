"""debugpy and pydevd at a `breakpoint()`, for IDEs. `jobscribe_debugger` imports this module in a job
that was submitted with `--debug=debugpy` or with the address of a debugger.

The stop waits at a unix socket, as that of `jobscribe_pdb`. When an IDE is there, a process of its own
(`main`) copies bytes between this socket and debugpy, which stops the threads of the job. Both
directions are lines of JSON, `{"dap": base64}`. debugpy connects to a listener at 127.0.0.1 that takes
this one connection, of the same unix user. A debugger that is missing or not reachable is no failure:
the job continues.

Python 3.8 or later, standard library only, except debugpy or pydevd of the job's own Python.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time

if __name__ != "__main__":
    import jobscribe_pdb as pdb_  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

#: Codes of runtime/execution/notices.py.
_MISSING, _UNREACHABLE = "debuggerMissing", "debuggerUnreachable"
#: Seconds that debugpy has to connect, and between two looks at the connection.
_CONNECT_SECS, _LOOK_SECS = 20.0, 0.05
_LOCALHOST = "127.0.0.1"
#: Limits: a line of the user, a message of the IDE and its header, and characters of the job's output
#: that wait for the IDE.
_LINE_BYTES, _MESSAGE_BYTES, _HEAD_BYTES = 64 * 1024, 16 * 1024 * 1024, 4096
_OUTPUT_CHARS = 1 << 20
_LENGTH = re.compile(rb"content-length: *([0-9]{1,15})\r?$", re.IGNORECASE | re.MULTILINE)
_noted: set[tuple[int, str]] = set()


def set_trace(frame: FrameType, mode: str) -> None:
    """Stop at this frame in an IDE, or continue if none is there in time."""
    tool, _, address = mode.partition(":")
    try:
        if address:
            host, _, port = address.rpartition(":")
            _direct(frame, tool, host, int(port))
        else:
            _relayed(frame)
    except Exception as failure:
        _note_once(_UNREACHABLE, f"no debugger: {type(failure).__name__}: {failure}")
    finally:
        # pydevd puts its own hook there, which ignores breakpoints between two sessions
        sys.breakpointhook = sys.__breakpointhook__


def _note_once(code: str, text: str) -> None:
    """Tell the user about a debugger that is not there, once in each process."""
    if (os.getpid(), text) not in _noted:
        _noted.add((os.getpid(), text))
        pdb_.notice(code, text)


# ---- a debugger at an address


def _direct(frame: FrameType, tool: str, host: str, port: int) -> None:
    try:
        if tool == "debugpy":
            import debugpy

            if not debugpy.is_client_connected():
                debugpy.connect((host, port))
            _limit_output()
            _suspend(frame)
        else:
            _pydevd().settrace(host, port=port, suspend=True, stop_at_frame=frame)
    except ImportError as failure:
        _note_once(_MISSING, f"{tool} cannot be imported by {sys.executable} ({failure})")
    except (Exception, SystemExit) as failure:  # pydevd of some versions exits
        reason = getattr(failure, "strerror", None) or str(failure) or type(failure).__name__
        _note_once(_UNREACHABLE, f"the debugger at {host}:{port} is not reachable ({reason})")


def _pydevd() -> Any:
    try:
        import pydevd_pycharm  # type: ignore[import-not-found]
    except ImportError:
        import pydevd  # type: ignore[import-not-found]

        return pydevd
    return pydevd_pycharm


# ---- an IDE at the relay


def _relayed(frame: FrameType) -> None:
    try:
        import debugpy

        # children that debugpy starts in would need connections of their own
        debugpy.configure(subProcess=False)
        if debugpy.is_client_connected() or _attach(frame):
            _suspend(frame)
    except ImportError as failure:
        _note_once(
            _MISSING,
            f"debugpy cannot be imported by {sys.executable} ({failure}); install it there, or submit with"
            " --debug for Pdb",
        )


def _suspend(frame: FrameType) -> None:
    import pydevd

    pydevd.settrace(
        suspend=True,
        trace_only_current_thread=True,
        patch_multiprocessing=False,
        stop_at_frame=frame,
    )


def _attach(frame: FrameType) -> bool:
    """Wait for an IDE. Return whether it is there. Raises OSError."""
    secs = pdb_._seconds()
    until = time.monotonic() + secs
    place, code = pdb_.Place(), frame.f_code
    location = pdb_._location(
        "breakpoint", code.co_filename, frame.f_lineno, code.co_name, "", secs
    )
    about = pdb_._identity(place.name)
    pdb_.note(
        f"stopped at {code.co_filename}:{frame.f_lineno}; attach an IDE within {secs:.0f} s:"
        f" jobscribe debug attach {about} --port 5678"
    )
    try:
        while time.monotonic() < until:
            peer = _user(place, location, about, until)
            if peer is None:
                break
            with peer:
                place.write(**location, attached=True)
                if _connected(peer, place, secs, until):
                    return True
        pdb_.note(f"no IDE attached within {secs:g} s; the job continues")
    except BaseException:
        place.close()
        raise
    place.close()
    return False


def _user(place: Any, location: Any, about: str, until: float) -> socket.socket | None:
    """Return the connection of a user who has sent something; None when the time is over."""
    listener = place.listen()
    try:
        place.write(**location, attached=False)
        while True:
            peer: socket.socket | None = pdb_.accept(listener, until)
            if peer is None:
                return None
            hello = {"hello": {**location, "id": about, "protocol": "dap"}}
            peer.sendall((json.dumps(hello) + "\n").encode())
            left = max(0.0, until - time.monotonic())
            if select.select([peer], [], [], left)[0] and peer.recv(1, socket.MSG_PEEK):
                return peer
            peer.close()
    finally:
        listener.close()


def _connected(peer: socket.socket, place: Any, secs: float, until: float) -> bool:
    """Connect debugpy to this user. Return whether the IDE has begun; False if it is gone."""
    import debugpy
    import pydevd

    listener = socket.socket()
    listener.bind((_LOCALHOST, 0))
    listener.listen(8)
    port = listener.getsockname()[1]
    alive, held = os.pipe()
    fds = (peer.fileno(), listener.fileno(), held)
    command = [sys.executable, "-I", os.path.abspath(__file__), *map(str, fds), f"{secs:g}"]
    try:
        # the child continues in a child of its own
        subprocess.Popen(
            [*command, *place.paths()],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        ).wait()
        os.close(held)
        pydevd.stoptrace()  # of an earlier session
        pydevd.settrace(
            host=_LOCALHOST,
            port=port,
            suspend=False,
            wait_for_ready_to_run=False,
            block_until_connected=True,
            patch_multiprocessing=False,
        )
        listener.close()
        while not debugpy.is_client_connected():
            if select.select([alive], [], [], _LOOK_SECS)[0] or time.monotonic() > until:
                pydevd.stoptrace()
                return False
        _limit_output()
        return True
    finally:
        listener.close()
        os.close(alive)


def _limit_output() -> None:
    """Limit what waits for the IDE, in a debugpy whose parts are known."""
    import pydevd

    with contextlib.suppress(AttributeError):
        debugger = pydevd.get_global_debugger()
        _OutputLimit(debugger.writer, debugger.cmd_factory.make_io_message)


class _OutputLimit:
    """Drops output of the job that an IDE does not take in time. pydevd would keep all of it, as it
    reads the output of a job without delaying it.
    """

    def __init__(self, writer: Any, message: Any) -> None:
        self._add, self._message, self._pid = writer.add_command, message, os.getpid()
        self._lock, self._waiting, self._dropped = threading.Lock(), 0, 0
        writer.add_command = self._limited

    def _limited(self, command: Any) -> None:
        about = command.as_dict or {}
        if about.get("event") != "output":
            self._add(command)
            return
        if os.getpid() != self._pid:
            return  # a forked child has no thread that sends it
        size = len(about.get("body", {}).get("output", ""))
        with self._lock:
            if self._waiting + size > _OUTPUT_CHARS:
                self._dropped += size
                if not self._waiting:
                    self._tell_dropped()
                return
            self._tell_dropped()
            self._waiting += size
        command.call_after_send(lambda _: self._sent(size))
        self._add(command)

    def _sent(self, size: int) -> None:
        with self._lock:
            self._waiting -= size
            if not self._waiting:
                self._tell_dropped()

    def _tell_dropped(self) -> None:
        if self._dropped:
            text = (
                f"\n[{self._dropped} characters of output dropped; 'jobscribe job logs' has them]\n"
            )
            self._dropped = 0
            self._add(self._message(text, 2))


# ---- the process that copies bytes


def main(peer_fd: int, listener_fd: int, held: int, secs: float, paths: list[str]) -> None:
    """Copy bytes until one end closes, or the user sends nothing for `secs`. Then remove the files
    of the stop.
    """
    if os.fork():
        os._exit(0)
    os.setsid()
    user = socket.socket(fileno=peer_fd)
    listener = socket.socket(fileno=listener_fd)
    try:
        debugger = _debugger(listener)
        if debugger is not None:
            _copy(user, debugger, secs)
    finally:
        for path in paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
        os.close(held)


def _debugger(listener: socket.socket) -> socket.socket | None:
    """Return the connection of debugpy: the first one of the same unix user."""
    listener.settimeout(_CONNECT_SECS)
    try:
        while True:
            found = listener.accept()[0]
            if _owner(found.getpeername()) == os.geteuid():
                return found
            found.close()
    except OSError:
        return None
    finally:
        listener.close()


def _owner(address: tuple[str, int]) -> int | None:
    """Return the unix user of the socket with this address."""
    host, port = address
    words = "".join(f"{int(part):02X}" for part in reversed(host.split(".")))
    with open("/proc/net/tcp") as table:
        for line in table:
            row = line.split()
            if len(row) > 7 and row[1] == f"{words}:{port:04X}":
                return int(row[7])
    return None


def _copy(user: socket.socket, debugger: socket.socket, secs: float) -> None:
    over = threading.Event()
    heard = [time.monotonic()]

    def to_debugger() -> None:
        sizes = _Sizes()
        try:
            with user.makefile("rb") as lines:
                while line := lines.readline(_LINE_BYTES):
                    heard[0] = time.monotonic()
                    message = json.loads(line)
                    if isinstance(message, dict) and isinstance(message.get("dap"), str):
                        data = base64.b64decode(message["dap"])
                        sizes.check(data)
                        debugger.sendall(data)
        except OSError:
            pass
        except (ValueError, RecursionError) as failure:
            sys.stderr.write(
                f"jobscribe debugger: the IDE is detached: {failure!s:.200}; the job continues\n"
            )
        over.set()

    def to_user() -> None:
        with contextlib.suppress(OSError):
            while True:
                data = debugger.recv(16384)
                if not data:
                    break
                text = base64.b64encode(data).decode("ascii")
                user.sendall((json.dumps({"dap": text}) + "\n").encode())
        over.set()

    for target in (to_debugger, to_user):
        threading.Thread(target=target, daemon=True).start()
    while not over.wait(max(0.0, heard[0] + secs - time.monotonic())):
        if time.monotonic() >= heard[0] + secs:
            break
    for each in (debugger, user):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


class _Sizes:
    """The sizes of an IDE's messages, which debugpy collects in the memory of the job."""

    def __init__(self) -> None:
        self._head, self._left = b"", 0

    def check(self, data: bytes) -> None:
        """Raises ValueError if this belongs to a message that is too large."""
        while data:
            if self._left:
                taken = min(self._left, len(data))
                self._left -= taken
                data = data[taken:]
                continue
            head, end, data = (self._head + data).partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            if len(head) > _HEAD_BYTES or (end and length is None):
                raise ValueError("it sent no message of the Debug Adapter Protocol")
            self._head = b"" if end else head
            self._left = int(length[1]) if end and length is not None else 0
            if self._left > _MESSAGE_BYTES:
                raise ValueError(
                    f"it sent a message of {self._left} bytes; {_MESSAGE_BYTES} are the limit"
                )


if __name__ == "__main__":
    _peer, _listener, _held = map(int, sys.argv[1:4])
    main(_peer, _listener, _held, float(sys.argv[4]), sys.argv[5:])
