"""A warm process that forks keepers, so that a new agent need not wait for an interpreter to start and to import.

    python -m jobscribe.agent.template --root ROOT PADDING              fd 0: a SOCK_SEQPACKET socket to the local driver

One JSON object a packet. `{"id", "keeper": {configuration}}` is answered by `{"id", "pid", "startTicks"}`, `{"id", "ping": true}`
by `{"id", "pong": true}`, anything that cannot be done by `{"id", "error": sentence}`. It ends when the other end does; keepers
and agents do not. PADDING only makes room for the title that this process and its children show in `ps`.

What is forked here must not have run an event loop or a thread before: nothing but imports happens in this process.
"""

import gc
import importlib
import json
import os
import signal
import socket
import sys
from typing import Any, NoReturn

from ..runtime import processes
from . import keeper

_PACKET = 256 * 1024
_AGENT = ".main"


def main() -> int:
    root = _root(sys.argv[1:])
    if root is None:
        sys.stderr.write("usage: python -m jobscribe.agent.template --root ROOT PADDING, a socket as stdin\n")
        return 2
    processes.set_title("jobscribe template", root)
    processes.set_dumpable(False)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are nobody's here; the kernel reaps them
    os.umask(0o077)
    _warm()
    with socket.socket(fileno=0) as driver:
        return _serve(driver, root)


def _serve(driver: socket.socket, root: str) -> int:
    while True:
        packet = driver.recv(_PACKET)
        if not packet:
            return 0
        answer = _answered(packet, root)
        try:
            driver.send(json.dumps(answer).encode())
        except (BrokenPipeError, ConnectionResetError):
            return 0


def _answered(packet: bytes, root: str) -> dict[str, Any]:
    try:
        request = json.loads(packet)
        number = request["id"]
    except (ValueError, TypeError, KeyError):
        return {"id": 0, "error": "the template process was sent something that is no request"}
    config = request.get("keeper")
    if isinstance(config, dict) and isinstance(config.get("folder"), str):
        try:
            pid = os.fork()
        except OSError as error:
            return {"id": number, "error": f"no keeper can be forked: {error.strerror}"}
        if pid == 0:
            _be_keeper({"root": root, **config})
        return {"id": number, "pid": pid, "startTicks": processes.start_ticks(pid)}
    if request.get("ping"):
        return {"id": number, "pong": True}
    return {"id": number, "error": "the template process knows only 'keeper' (with a folder) and 'ping'"}


def _warm() -> None:
    """Import what agents need, once for all of them. What cannot be imported now is said by the agent that needs it."""
    try:
        importlib.import_module(_AGENT, __package__)
    except ImportError as error:
        sys.stderr.write(f"jobscribe template: agents will start slowly or not at all: {error}\n")
    gc.collect()
    gc.freeze()  # what is shared now stays shared: the collector would write to it


def _be_keeper(config: dict[str, Any]) -> NoReturn:
    """In the forked child. It must never come back to the loop above, whatever happens."""
    code = 1
    try:
        _leave_behind(keep=None)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        processes.set_title(keeper.TITLE, config["root"])
        code = keeper.run(config, lambda sock: _fork_agent(sock, config["root"]))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _fork_agent(sock: socket.socket, root: str) -> int:
    pid = os.fork()
    if pid == 0:
        _be_agent(sock.fileno(), root)
    return pid


def _be_agent(fd: int, root: str) -> NoReturn:
    """In the child of a keeper: nothing of the keeper's is left, neither locks nor signal handlers."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _leave_behind(keep=fd)
        run_agent = importlib.import_module(_AGENT, __package__).run_agent
        run_agent(fd, root)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _leave_behind(keep: int | None) -> None:
    """Close every inherited descriptor but stdout, stderr and `keep`: a lock or socket of the parent must not live on in here."""
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    end = os.sysconf("SC_OPEN_MAX")
    if keep is None:
        os.closerange(3, end)
    else:
        os.closerange(3, keep)
        os.closerange(keep + 1, end)


def _root(given: list[str]) -> str | None:
    return given[1] if len(given) in (2, 3) and given[0] == "--root" else None


if __name__ == "__main__":
    sys.exit(main())
