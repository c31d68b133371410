"""The front end process of `jobscribe up`: restarted when it dies, stopped when `up` ends.

The listening socket lives in this process, so that the address stays and browsers only wait during
a restart of the front end.
"""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ...client.api.errors import ClientError
from ...client.transport.address import in_root
from ...protocol.errors import Refusal
from ...service.settings.settings import Settings
from ...service.site.secret_files import is_loopback
from ...web.server.child_process import MODULE, Start, bound, url_of

FIRST_PAUSE_SECS = 0.5
LONGEST_PAUSE_SECS = 10.0
#: A process that ran this long restarts without backoff.
STABLE_SECS = 60.0
STOP_SECS = 5.0
#: The front end of a killed supervisor releases its port within this time.
PORT_RELEASE_SECS = 2.0

_log = logging.getLogger(__name__)


class FrontEndProcess:
    """Runs the front end as a child process.

    options, file: the sources of the settings, so that the child loads the same ones. Raises
    Refusal.
    """

    def __init__(self, settings: Settings, options: dict[str, Any], file: str | None) -> None:
        ip = settings.server.ip
        if not is_loopback(ip):
            raise Refusal(
                "unsafe",
                f"server.ip is {ip}: 'jobscribe up' lets every visitor sign in, so it requires a loopback address",
            )
        self._root, self._options, self._file = settings.root, options, file
        self._listening: socket.socket = (
            bound(ip, settings.server.port)
            if settings.server.port
            else _previous_or_free_port(settings.root, ip)
        )
        self.url = url_of(ip, self._listening)
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._monitor: threading.Thread | None = None

    def start(self, ready: Callable[[], None], failed: Callable[[], None]) -> None:
        """Start the child. A thread calls `ready` once when it serves, or `failed` if the first
        start fails.
        """
        self._monitor = threading.Thread(
            target=self._run, args=(ready, failed), name="front", daemon=True
        )
        self._monitor.start()

    def stop(self) -> None:
        """Stop the child and wait for its end."""
        self._stopping.set()
        if self._child is not None:
            self._child.terminate()
        if self._monitor is not None:
            self._monitor.join(STOP_SECS)
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        self._listening.close()

    def _run(self, ready: Callable[[], None], failed: Callable[[], None]) -> None:
        pause, served = FIRST_PAUSE_SECS, False
        while not self._stopping.is_set():
            begun = time.monotonic()
            child, serves = self._spawn()
            if serves and not served:
                served = True
                ready()
            code = child.wait()
            if self._stopping.is_set():
                return
            if not served:
                _log.error("the front end did not start (exit code %s)", code)
                failed()
                return
            pause = (
                FIRST_PAUSE_SECS
                if time.monotonic() - begun > STABLE_SECS
                else min(2 * pause, LONGEST_PAUSE_SECS)
            )
            _log.error("the front end ended (exit code %s); restarting it in %.1f s", code, pause)
            self._stopping.wait(pause)

    def _spawn(self) -> tuple["subprocess.Popen[bytes]", bool]:
        """Start a child. Return it, and whether it serves."""
        reader, writer = os.pipe()
        start = Start(
            options=self._options, file=self._file, listen=self._listening.fileno(), ready=writer
        )
        # The root argument is for the title of the process.
        child = self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, self._root],
            stdin=subprocess.PIPE,
            stdout=2,
            pass_fds=(start.listen, writer),
            cwd="/",
        )
        os.close(writer)
        if self._stopping.is_set():
            child.terminate()
        assert child.stdin is not None
        with open(reader, "rb", buffering=0) as ready_pipe:
            try:
                child.stdin.write(msgspec.json.encode(start) + b"\n")
                child.stdin.flush()
            except BrokenPipeError:
                return child, False
            return child, ready_pipe.read(1) == b"1"


def _previous_or_free_port(root: str, ip: str) -> socket.socket:
    """Return a listening socket on the port of the previous start, so that open pages reach the
    site again. If that port is in use, any free port.
    """
    try:
        before = in_root(root)()
        url = urlsplit(before.front or "")
        port = url.port if url.hostname == ip else None
    except (ClientError, ValueError):
        port = None
    if not port:
        return bound(ip, 0)
    until = time.monotonic() + (
        0.0 if before.pid and os.path.exists(f"/proc/{before.pid}") else PORT_RELEASE_SECS
    )
    while True:
        try:
            return bound(ip, port)
        except Refusal:
            if time.monotonic() >= until:
                return bound(ip, 0)
            time.sleep(0.05)
