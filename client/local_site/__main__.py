"""The guard of a private supervisor: `python -m jobscribe.client.local_site ROOT`.

It starts the supervisor, which prints its ready line on the standard output of both. When its
standard input ends (because the client is closed or dead), or on SIGTERM, it ends all processes
that descend from it, and removes the root. So nothing remains, however the client ends.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from types import FrameType

from .child_processes import adopt, stop_all

#: Seconds that descendants have after SIGTERM.
GRACE_SECS = 5.0
ERRORS = "supervisor.err"
#: Tasks reserve cores and memory here, but nothing limits them: a request for more is no reason to
#: wait.
_SETTINGS = (
    "supervisor.sockets=true",
    "resources.local_cpu=100000",
    "resources.local_memory_mb=1000000000",
    "drivers.use=local",
)


def command(root: str) -> list[str]:
    """Return the command of a supervisor for this root, in development mode and at no address."""
    words = [sys.executable, "-P", "-m", "jobscribe.cli", "up", "--no-web", "--root", root]
    return [*words, *(word for setting in _SETTINGS for word in ("--set", setting))]


def main(root: str) -> int:
    adopt()
    awake, wake = os.pipe()

    def stop(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(wake, b"x")

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, stop)
    env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
    with open(os.path.join(root, ERRORS), "wb") as errors:
        supervisor = subprocess.Popen(
            command(root), stdin=subprocess.DEVNULL, stderr=errors, env=env, cwd="/"
        )
    os.close(1)  # its end tells the client that the supervisor has ended
    ended = os.pidfd_open(supervisor.pid)
    try:
        select.select([0, awake, ended], [], [])
    finally:
        stop_all(GRACE_SECS)
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
