"""Start and end of a private supervisor. Its root is a temporary folder, its sockets are in it."""

import glob
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

from ...protocol.api.requests import RunSpec
from ..api.errors import ClientError, own
from .local_form import localized

#: Seconds until the supervisor is ready, and until everything has ended.
READY_SECS, END_SECS = 60.0, 30.0
_READY = b"jobscribe ready "
_ERRORS = "supervisor.err"
_GPUS = "/dev/nvidia[0-9]*"
#: The kernel allows 107 bytes for the path of a socket; those below a temporary folder need 50.
_LONGEST_BASE = 107 - 50


class LocalWarning(UserWarning):
    """A request of a run that this machine does not honour."""


def _base() -> str:
    """Return the temporary folder, or the first other one whose path is short enough for sockets.
    Raises ClientError.
    """
    bases = (tempfile.gettempdir(), "/tmp", "/var/tmp")
    for base in bases:
        if len(os.fsencode(base)) <= _LONGEST_BASE and os.access(base, os.W_OK | os.X_OK):
            return base
    raise ClientError(
        "badRequest",
        f"the path of the temporary folder {bases[0]} has more than {_LONGEST_BASE} bytes, too many for"
        " sockets in it, and neither /tmp nor /var/tmp can be written",
        "set TMPDIR to a folder with a shorter path",
    )


def _warn(sentence: str) -> None:
    warnings.warn(sentence, LocalWarning, stacklevel=2)


class LocalSite:
    """A supervisor for this process. `close` ends it and all its jobs, and removes its files; so does
    the end of this process. Raises ClientError.
    """

    def __init__(self) -> None:
        #: called with each request that is lost
        self.warn: Callable[[str], None] = _warn
        self._warned: set[str] = set()
        self.root = tempfile.mkdtemp(prefix="jobscribe-local-", dir=_base())
        self._guard = subprocess.Popen(
            [sys.executable, "-P", "-m", "jobscribe.client.local_site", self.root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # not in the terminal's process group: Ctrl-C is for the client
            start_new_session=True,
            cwd="/",
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def form(self, spec: RunSpec) -> RunSpec:
        """Return the run as this machine can run it. Warns once of each request that is lost."""
        local, lost = localized(spec, len(glob.glob(_GPUS)))
        for sentence in lost:
            if sentence not in self._warned:
                self._warned.add(sentence)
                self.warn(sentence)
        return local

    def close(self) -> None:
        """Repeating it is harmless."""
        assert self._guard.stdin is not None and self._guard.stdout is not None
        self._guard.stdin.close()
        # a forked process of this one may hold the pipe, too
        self._guard.terminate()
        try:
            self._guard.wait(END_SECS)
        except subprocess.TimeoutExpired:
            self._guard.send_signal(signal.SIGKILL)
            self._guard.wait()
        self._guard.stdout.close()
        if self._guard.returncode:  # it was killed before it could
            shutil.rmtree(self.root, ignore_errors=True)

    def _wait_until_ready(self) -> None:
        assert self._guard.stdout is not None
        deadline, said = time.monotonic() + READY_SECS, b""
        while not said.endswith(b"\n"):
            left = deadline - time.monotonic()
            if not select.select([self._guard.stdout], [], [], max(0.0, left))[0]:
                raise self._failed(f"it was not ready within {READY_SECS:g} s")
            data = os.read(self._guard.stdout.fileno(), 4096)
            if not data:
                raise self._failed("it ended")
            said += data
        if not said.startswith(_READY):
            raise self._failed(said.decode("utf-8", "replace").strip())

    def _failed(self, what: str) -> ClientError:
        try:
            with open(os.path.join(self.root, _ERRORS), encoding="utf-8", errors="replace") as file:
                what = f"{what}: {file.read()[-1000:].strip()}"
        except OSError:
            pass  # the guard has removed the root
        return own("noSupervisor", f"the private supervisor did not start; {what}")
