"""Process 1 of a container: `python -m jobscribe.agent.container_entrypoint --root ROOT --folder
FOLDER`, with the keeper's configuration on stdin.

It forks the agent first, because the agent's imports take longest, and then becomes the keeper. So
both start at once from an interpreter that has imported almost nothing, and the keeper stays small.
"""

import gc
import os
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .keeper.process import StartedAgent


def main() -> int:
    # the kernel delivers no signal to process 1 without a handler
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    os.umask(0o077)
    gc.disable()  # imported objects stay: there is no garbage yet
    started_agent = None
    if len(sys.argv) == 5 and sys.argv[1] == "--root":
        ours, theirs = socket.socketpair()
        started_agent = _fork_agent(ours)
        if started_agent is None:
            return _run_agent(sys.argv[2], theirs)
        theirs.close()
    from .keeper import process  # while the agent imports its modules

    gc.enable()
    return process.main(started_agent)


def _fork_agent(ours: socket.socket) -> "StartedAgent | None":
    """Fork; return pid and socket in the parent, None in the agent's process."""
    pid = os.fork()
    if pid:
        return pid, ours
    ours.close()
    return None


def _run_agent(root: str, theirs: socket.socket) -> int:
    """Run the agent without the keeper's session, signal handlers and stdin."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    from . import __main__ as agent

    agent.serve(root, theirs.detach())
    return 0


if __name__ == "__main__":
    sys.exit(main())
