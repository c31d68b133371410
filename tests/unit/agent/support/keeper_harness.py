"""A keeper for tests: `python keeper_harness.py UID SOCKET`, with its configuration on stdin.

The started process is the keeper's reaper (see keeper_process.py). Its "agent" is a forked relay between the keeper and the test, which listens on SOCKET. The test
plays the agent, and can kill and replace the relay like an agent. UID is the user to switch to
after all imports (-1: no switch). JOBSCRIBE_TEST_SPARES names a file: until it exists, processes
that outlive their main process do not die, as if they waited for a disk. JOBSCRIBE_TEST_LEAVES is
shell code that each relay leaves running in a process group of its own.
"""

import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys

from jobscribe.agent.keeper import process, reaper
from jobscribe.agent.keeper.executions import stop
from jobscribe.agent.keeper.linux import spawn
from jobscribe.runtime import processes
from jobscribe.runtime.filesystems import write_atomically


def main() -> int:
    uid, path = int(sys.argv[1]), sys.argv[2]
    config = json.loads(sys.stdin.buffer.read())
    if uid >= 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        processes.set_dumpable(True)  # a process that never changed its user is dumpable
    _starve_on(signal.SIGUSR1, resource.RLIMIT_NOFILE, 12)
    _starve_on(signal.SIGUSR2, resource.RLIMIT_NPROC, 1)
    if "JOBSCRIBE_TEST_NO_CLONE3" in os.environ:
        spawn._SYS_CLONE3 = 100_000  # an invalid system call number
    if "JOBSCRIBE_TEST_SPARES" in os.environ:
        _spare(os.environ["JOBSCRIBE_TEST_SPARES"])
    me, place = os.getpid(), config["root"]
    reaper.fork_keeper(place, config["folder"], ended=lambda status: _tell_end(place, status))
    _tell(f"{place}/keeper-of-{me}", json.dumps(_identity()))
    return process.run(config, lambda sock: _spawn(sock, path))


def _identity() -> dict[str, object]:
    return {"pid": os.getpid(), "startTicks": processes.start_ticks(os.getpid())}


def _tell_end(place: str, status: int) -> None:
    with open(f"{place}/keeper-of-{os.getpid()}", encoding="ascii") as f:
        pid = json.load(f)["pid"]
    _tell(f"{place}/status-of-{pid}", str(status))


def _tell(path: str, text: str) -> None:
    write_atomically(path, text.encode())


def _spare(file: str) -> None:
    kill = stop.Terminator._kill
    stop.Terminator._kill = lambda self, e, left: (
        kill(self, e, left) if os.path.exists(file) else None
    )


def _starve_on(number: int, what: int, little: int) -> None:
    """Toggle a low descriptor or process limit of the keeper when the test sends the signal."""
    soft, hard = resource.getrlimit(what)

    def toggle(*_: object) -> None:
        starving = resource.getrlimit(what)[0] != soft
        resource.setrlimit(what, (soft if starving else little, hard))

    signal.signal(number, toggle)


def _spawn(sock: socket.socket, path: str) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.closerange(3, sock.fileno())
            os.closerange(sock.fileno() + 1, 4096)
            if "JOBSCRIBE_TEST_LEAVES" in os.environ:
                subprocess.Popen(
                    ["/bin/sh", "-c", os.environ["JOBSCRIBE_TEST_LEAVES"]], process_group=0
                )
            _relay(sock, path)
        finally:
            os._exit(0)
    return pid


def _relay(keeper_side: socket.socket, path: str) -> None:
    test_side = socket.socket(socket.AF_UNIX)
    test_side.connect(path)
    test_side.sendall(json.dumps({"is": "relay", "pid": os.getpid()}).encode() + b"\n")
    keeper_side.setblocking(True)
    selector = selectors.DefaultSelector()
    selector.register(keeper_side, selectors.EVENT_READ, test_side)
    selector.register(test_side, selectors.EVENT_READ, keeper_side)
    while True:
        for key, _ in selector.select():
            data = key.fileobj.recv(65536)
            if not data:
                return
            key.data.sendall(data)


if __name__ == "__main__":
    sys.exit(main())
