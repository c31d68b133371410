"""The fork server: a process with all imports done that forks keepers, so that new agents start
fast.

    python -m jobscribe.agent.fork_server --root ROOT PADDING              fd 0: a SOCK_SEQPACKET socket to the local driver

Each packet is one JSON object. Requests and answers:

    {"id", "keeper": {configuration}}     {"id", "pid", "startTicks"} of the keeper when its agent has started
    {"id", "ping": true}                  {"id", "pong": true}
    any request that fails                {"id", "error": sentence}, from the keeper if it reported one

It ends when the other end closes; keepers and agents continue. PADDING reserves space for the title
that this process and its children show in `ps`.

Forking is safe only from a process without event loop and threads, so this process only imports.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from ..runtime import processes
from .keeper import process
from .keeper.linux.oom_detection import describe_fault
from .keeper.reaper import fork_keeper
from .keeper.startup_failure import report_startup_failure

_PACKET = 256 * 1024
_AGENT, _STRUCT_TYPES = ".process", "..runtime.struct_types"


def main() -> int:
    root = _root(sys.argv[1:])
    if root is None:
        sys.stderr.write(
            "usage: python -m jobscribe.agent.fork_server --root ROOT PADDING, a socket as stdin\n"
        )
        return 2
    processes.set_title("jobscribe template", root)
    processes.set_dumpable(False)
    os.umask(0o077)
    _import_modules()
    with socket.socket(fileno=0) as driver:
        return _serve(driver, root)


def _serve(driver: socket.socket, root: str) -> int:
    wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    starting: dict[int, int] = {}
    poll = select.poll()
    for fd in (driver.fileno(), wake):
        poll.register(fd, select.POLLIN)
    try:
        while True:
            for fd, _ in poll.poll():
                if fd == wake:
                    os.read(wake, 4096)
                    _reap()
                elif fd in starting:
                    poll.unregister(fd)
                    _send(driver, {"id": starting.pop(fd), **_start_result(fd)})
                else:
                    packet = driver.recv(_PACKET)
                    if not packet:
                        return 0
                    answer = _handle_request(packet, root, starting, poll)
                    if answer is not None:
                        _send(driver, answer)
    except (BrokenPipeError, ConnectionResetError):
        return 0


def _send(driver: socket.socket, answer: dict[str, Any]) -> None:
    driver.send(json.dumps(answer).encode())


def _reap() -> None:
    """Reap ended children: the reapers of keepers."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _start_result(fd: int) -> dict[str, Any]:
    """Return the answer for a keeper that has reported or ended. Its reaper reports the end."""
    line = os.read(fd, _PACKET).partition(b"\n")[0]
    os.close(fd)
    report = json.loads(line) if line else {}
    if report and "code" not in report:
        return dict(report)
    code = report.get("code")
    how = "" if code is None else f" by signal {-code}" if code < 0 else f" with exit code {code}"
    return {
        "error": f"the keeper ended{how} before it had started an agent; its log may hold the reason"
    }


def _handle_request(
    packet: bytes, root: str, starting: dict[int, int], poll: select.poll
) -> dict[str, Any] | None:
    """Handle one request; return None if the answer has to wait for the keeper."""
    try:
        request = json.loads(packet)
        number = request["id"]
    except (ValueError, TypeError, KeyError):
        return {"id": 0, "error": "the fork server got a packet that is not a request"}
    config = request.get("keeper")
    if isinstance(config, dict) and isinstance(config.get("folder"), str):
        try:
            reader, writer = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            return {"id": number, "error": f"cannot start a keeper: {error.strerror}"}
        try:
            pid = os.fork()
        except OSError as error:
            os.close(reader)
            os.close(writer)
            return {
                "id": number,
                "error": f"cannot fork a keeper: {describe_fault(error, spawning=True)[1]}",
            }
        if pid == 0:
            _run_keeper({"root": root, **config}, writer)
        os.close(writer)
        starting[reader] = number
        poll.register(reader, select.POLLIN)
        return None
    if request.get("ping"):
        return {"id": number, "pong": True}
    return {
        "id": number,
        "error": "the fork server accepts only 'keeper' (with a folder) and 'ping'",
    }


def _import_modules() -> None:
    """Import the agent's modules once for all agents. A failed import is reported by the agent that
    needs it.
    """
    try:
        importlib.import_module(_AGENT, __package__)
        importlib.import_module(_STRUCT_TYPES, __package__).resolve_all()
    except ImportError as error:
        sys.stderr.write(
            f"jobscribe fork server: the agent's modules cannot be imported; agents start slowly or fail: {error}\n"
        )
    gc.collect()
    gc.freeze()  # keeps pages shared with children: the collector would write to them


def _run_keeper(config: dict[str, Any], writer: int) -> NoReturn:
    """Run a keeper and its reaper in the forked child. Never returns to the caller's loop.

    writer: pipe to the fork server. The first line counts: of the keeper when an agent has started
    or cannot start, or of the reaper when the keeper has ended.
    """
    code = 1

    def tell(report: dict[str, Any]) -> None:
        nonlocal writer
        fd, writer = writer, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # the reader has ended
                os.write(fd, json.dumps(report).encode() + b"\n")
            os.close(fd)

    def tell_start(failed: str | None) -> None:
        me = os.getpid()
        own = {"pid": me, "startTicks": processes.start_ticks(me)}
        tell(own if failed is None else {"error": failed})

    def tell_end(status: int) -> None:
        tell({"code": os.waitstatus_to_exitcode(status)})

    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _close_inherited(keep=writer)
        os.setsid()
        fork_keeper(config["root"], config["folder"], keep=writer, ended=tell_end)
        processes.set_title(process.TITLE, config["root"])
        code = process.run(config, lambda sock: _fork_agent(sock, config["root"]), tell_start)
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        tell_start(f"the keeper ended with exit code 1: {type(error).__name__}: {error}")
    finally:
        os._exit(code)


def _fork_agent(sock: socket.socket, root: str) -> int:
    pid = os.fork()
    if pid == 0:
        _run_agent(sock.fileno(), root)
    return pid


def _run_agent(fd: int, root: str) -> NoReturn:
    """Run the agent in a child of the keeper, without its locks and signal handlers."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _close_inherited(keep=fd)
        run_agent = importlib.import_module(_AGENT, __package__).run_agent
        run_agent(fd, root)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        report_startup_failure(fd, error)
    finally:
        os._exit(code)


def _close_inherited(keep: int) -> None:
    """Close all inherited descriptors except stdout, stderr and `keep`: a lock or socket of the
    parent must not stay open here.
    """
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    end = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, keep)
    os.closerange(keep + 1, end)


def _root(given: list[str]) -> str | None:
    return given[1] if len(given) in (2, 3) and given[0] == "--root" else None


if __name__ == "__main__":
    sys.exit(main())
