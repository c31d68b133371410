"""The agent's end of its worker process: start, orders, events. `call_queue` decides what to order.

The process starts with the login environment, in its own session, without secrets, and with only
its socket, stdout and stderr as descriptors.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from .worker_process import Setting, WorkerEvent, WorkerOrder

_PACKET = 4096
#: Size limit of the module names in one order (bytes), so that it fits into a packet.
_MODULES_BYTES = 64 * 1024
#: Interval (seconds) of checks for a dead child.
_BURY_SECS = 0.01
_PADDING = "x" * 40


class Fork(NamedTuple):
    """A process that waits for its call. socket: carries the call and its outcome. output: what the
    process prints.
    """

    pid: int
    socket: socket.socket
    output: int

    def close(self) -> None:
        self.socket.close()
        os.close(self.output)


class WorkerLink:
    """One worker process. on_news is called for each event (with the fork, if one was created), on_end
    once when the process has ended.
    """

    def __init__(
        self, on_news: Callable[[WorkerEvent, Fork | None], None], on_end: Callable[[str], None]
    ) -> None:
        self._on_news, self._on_end = on_news, on_end
        self._loop = asyncio.get_running_loop()
        self._news = msgspec.msgpack.Decoder(WorkerEvent)
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(
        self, root: str, env: dict[str, str], folder: Path, umask: int, also: tuple[str, ...]
    ) -> None:
        """Start the process. env: login environment. Raises OSError.

        Call it in the main thread: the worker may ask for a signal when its parent thread ends.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "jobscribe.agent.workers.worker_process",
                    "--root",
                    root,
                    _PADDING,
                ],
                stdin=theirs.fileno(),
                env=_with_own_path(env),
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._socket = ours
        setting = Setting(folder=str(folder), umask=umask, path=env.get("PYTHONPATH"), also=also)
        # if it has ended already, its end is noticed in a moment
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            ours.send(msgspec.msgpack.encode(setting))
        self._loop.add_reader(ours, self._readable)

    def send(self, order: WorkerOrder) -> None:
        """Send an order. If that fails (the worker does not read), the worker is killed."""
        if self._socket is None:
            return
        while sum(len(m) + 5 for m in order.modules) > _MODULES_BYTES:
            order.modules = order.modules[: len(order.modules) // 2]
        try:
            self._socket.send(msgspec.msgpack.encode(order))
        except OSError as e:
            self._process.kill()
            if not isinstance(e, BlockingIOError | BrokenPipeError | ConnectionResetError):
                raise

    def kill(self) -> None:
        """Kill the worker process; its forks end with it."""
        self._process.kill()

    def close(self) -> None:
        """Close the socket: the worker ends every call and itself. on_end is not called."""
        self._disconnect()
        self._on_end = _ignore
        self._reap()

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _readable(self) -> None:
        while self._socket is not None:
            fds: list[int] = []
            try:
                packet, fds, _, _ = socket.recv_fds(self._socket, _PACKET, 2)
            except BlockingIOError:
                return
            except ConnectionResetError:
                packet = b""
            if not packet:
                self._disconnect()
                self._process.kill()  # it closed its end or has ended
                self._reap()
                return
            event = self._news.decode(packet)
            fork = Fork(event.pid, socket.socket(fileno=fds[0]), fds[1]) if len(fds) == 2 else None
            if fork is not None:
                fork.socket.setblocking(False)
                os.set_blocking(fork.output, False)
            self._on_news(event, fork)

    def _reap(self) -> None:
        code = self._process.poll()
        if code is None:
            self._loop.call_later(_BURY_SECS, self._reap)
        else:
            self._on_end(f"signal {-code}" if code < 0 else f"exit code {code}")


def _ignore(how: str) -> None:
    return


def _with_own_path(env: dict[str, str]) -> dict[str, str]:
    """Add the agent's PYTHONPATH, so that this package is found; the worker removes it again."""
    own = os.environ.get("PYTHONPATH")
    if not own:
        return env
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, (own, env.get("PYTHONPATH"))))}
