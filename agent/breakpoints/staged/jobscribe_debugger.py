"""A Pdb for `breakpoint()` and uncaught exceptions in a job without a terminal, at a unix socket.

`PYTHONBREAKPOINT` names `set_trace`. The socket is in a folder that only this unix user can enter
(`JOBSCRIBE_DEBUG_DIR`), and a record beside it describes the stop. Nothing listens on the network.
The agent of the job connects, one at a time. A job that nobody continues goes on by itself after
`JOBSCRIBE_DEBUG_SECS` seconds.

Both directions are lines of JSON. From the user: `{"line"}`, `{"interrupt": true}`,
`{"complete": {"text", "line", "begin", "end"}}`. To the user: `{"hello"}`, `{"out"}`, `{"prompt"}`,
`{"completions"}`, `{"running": true}`, `{"end"}`.

Python 3.8 or later, standard library only: jobs import it, in images without jobscribe, too.
`jobscribe_pdb` has the debugger, which only a job that stops imports; `jobscribe_dap` is for IDEs.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

#: Characters of a recorded traceback.
TRACEBACK_CHARS = 64 * 1024
#: Held while the debugger is imported, and during a fork: a child would wait for ever for an import
#: that a thread of its parent had begun.
_importing = _thread.RLock()
os.register_at_fork(
    before=_importing.acquire,
    after_in_parent=_importing.release,
    after_in_child=_importing.release,
)


def set_trace(*_: object, **__: object) -> None:
    """Stop the caller in a debugger, or continue if nobody attaches in time."""
    frame = sys._getframe().f_back
    assert frame is not None
    mode = os.environ.get("JOBSCRIBE_DEBUG", "")
    if mode.partition(":")[0] in ("debugpy", "pydevd"):
        with _importing:
            import jobscribe_dap  # type: ignore[import-not-found]

        jobscribe_dap.set_trace(frame, mode)
        return
    with _importing:
        import jobscribe_pdb  # type: ignore[import-not-found]

    debugger, code = jobscribe_pdb.current(), frame.f_code
    if debugger.stopped("breakpoint", code.co_filename, frame.f_lineno, code.co_name):
        debugger.set_trace(frame)


def install() -> None:
    """Let uncaught exceptions of this process wait for a post-mortem debugger."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if trace is not None and not _ends_program(kind):
            try:
                _post_mortem(kind, error, trace)
            except Exception as failure:
                sys.stderr.write(f"jobscribe debugger: no post-mortem: {failure!r}\n")

    sys.excepthook = hook
    with contextlib.suppress(Exception):  # `jobscribe debug stack` has other methods
        _show_stacks_at_signal()


def _show_stacks_at_signal() -> None:
    """Write the stacks of this process to a file whenever it gets SIGURG, which has no effect on
    processes without a handler. `runtime/inspection` sends it if the file is there.
    """
    import atexit
    import faulthandler
    import signal

    if signal.getsignal(signal.SIGURG) is not signal.SIG_DFL:
        return
    with open("/proc/self/stat") as file:
        start = file.read().rpartition(")")[2].split()[19]
    folder, me = os.environ["JOBSCRIBE_DEBUG_DIR"], os.getpid()
    os.makedirs(folder, 0o700, exist_ok=True)
    path = os.path.join(folder, f"stacks-{me}-{start}.txt")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    faulthandler.register(signal.SIGURG, file=os.open(path, flags, 0o600), all_threads=True)

    def remove() -> None:
        if os.getpid() == me:
            os.unlink(path)

    atexit.register(remove)


def _ends_program(kind: type[BaseException]) -> bool:
    return not issubclass(kind, Exception) or kind.__name__ == "BdbQuit"


def _post_mortem(kind: type[BaseException], error: BaseException, trace: TracebackType) -> None:
    import traceback

    with _importing:
        import jobscribe_pdb

    lines = "".join(traceback.format_exception(kind, error, trace))[-TRACEBACK_CHARS:]
    try:
        path = os.path.join(jobscribe_pdb.folder(), f"traceback-{os.getpid()}.txt")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(lines)
    except OSError as failure:
        jobscribe_pdb.note(f"the traceback cannot be recorded: {failure}")
    last = trace
    while last.tb_next is not None:
        last = last.tb_next
    code, text = last.tb_frame.f_code, traceback.format_exception_only(kind, error)[-1].strip()
    debugger = jobscribe_pdb.current()
    if debugger.stopped("error", code.co_filename, last.tb_lineno, code.co_name, text):
        debugger.message(text)
        debugger.reset()
        debugger.interaction(None, trace)
    debugger.over("the job ends with its exception")


def relay(folder: str, name: str) -> int:
    """Copy bytes between a debugger's socket and this process's stdin and stdout, on the node of a
    batch job. Return the exit code.
    """
    import select
    import socket

    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.connect(f"/proc/self/fd/{place}/{name}.sock")
    except OSError as failure:
        sys.stderr.write(f"no debugger waits there any more: {failure.strerror}\n")
        return 3
    while True:
        for ready in select.select([peer.fileno(), 0], [], [])[0]:
            data = os.read(ready, 65536)
            if not data:
                return 0
            if ready:
                view = memoryview(data)
                while view:
                    view = view[os.write(1, view) :]
            else:
                peer.sendall(data)


if __name__ == "__main__":
    sys.exit(relay(sys.argv[1], sys.argv[2]))
