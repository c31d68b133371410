"""The first process of a container: `python -m jobscribe.agent.container_entrypoint --root ROOT
--folder FOLDER`, the keeper's configuration on stdin.

Before it knows anything else it forks the agent, because what an agent imports takes longest; then
it becomes the agent's keeper. So both begin at once, from one interpreter that has imported next to
nothing, and the keeper stays small.
"""

import gc
import os
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .keeper.process import Born


def main() -> int:
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # the kernel spares a first process all signals that it has no handler for
        signal.signal(number, lambda *_: os._exit(0))
    os.umask(0o077)
    gc.disable()  # what is imported stays: nothing is garbage yet
    born = None
    if len(sys.argv) == 5 and sys.argv[1] == "--root":
        ours, theirs = socket.socketpair()
        born = _forked(ours)
        if born is None:
            return _agent(sys.argv[2], theirs)
        theirs.close()
    from .keeper import process  # while the agent imports what it needs

    gc.enable()
    return process.main(born)


def _forked(ours: socket.socket) -> "Born | None":
    """None in the agent's process."""
    pid = os.fork()
    if pid:
        return pid, ours
    ours.close()
    return None


def _agent(root: str, theirs: socket.socket) -> int:
    """With nothing of the keeper's: neither its session, nor its handlers, nor the configuration on
    its stdin.
    """
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
