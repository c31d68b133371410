"""Records a profile of this process in a job, and never changes how the job ends.

`JOBSCRIBE_PROFILE` names kind and tool (`cpu=sampler`), `JOBSCRIBE_PROFILE_DIR` the folder of the
files. A recorder works in one thread that no signal reaches and that `threading` does not know. It
writes while the program runs, so a profile survives SIGKILL, `os.abort` and `exec`. No handler of a
signal is installed. Files are opened for each write, because programs close descriptors that they
do not know.

Python 3.8 or later, standard library only: jobs import it, in images without jobscribe, too.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn, Protocol

    class Recorder(Protocol):
        """Records one process. `tick` returns the pause until the next one, in seconds; None ends
        the recorder. `fork` begins a new file in a forked process.
        """

        def tick(self) -> float | None: ...
        def finish(self) -> None: ...
        def fork(self) -> None: ...


KIND, FOLDER = "JOBSCRIBE_PROFILE", "JOBSCRIBE_PROFILE_DIR"
#: Files of one task, bytes of all of them, and of one.
MOST_FILES, MOST_BYTES, FILE_BYTES = 100, 64 * 2**20, 8 * 2**20
#: The recorder uses at most one part in this many of a core.
SHARE = 50
#: How long a fork and the end of the process wait for the thread (seconds).
PATIENCE_SECS = 2.0
_ALL_SIGNALS = _signal.valid_signals()
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_worker: Worker | None = None


def install() -> None:
    """Begin the profile that the environment names."""
    global _worker
    folder, kind = os.environ.get(FOLDER), os.environ.get(KIND)
    if not folder or not kind or _worker is not None:
        return
    import jobscribe_recorders  # type: ignore[import-not-found]

    if kind == "mem=memray":
        jobscribe_recorders.start_memray(folder)
        return
    recorder = jobscribe_recorders.make(kind, folder)
    if recorder is None:
        return
    import atexit

    _worker = Worker(recorder)
    os.register_at_fork(
        before=_worker.stop, after_in_parent=_worker.resume, after_in_child=_worker.fork
    )
    atexit.register(_worker.finish)
    _finish_before_exit(_worker)
    _worker.start()


class Worker:
    """The thread of a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._running = self._ended = self._wanted = False
        self._pid = os.getpid()
        self._native = 0
        self._locks()

    def start(self) -> None:
        if self._running or self._ended:
            return
        self._running = self._wanted = True
        # its signals are blocked from the beginning, so each of them interrupts the main thread
        before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _ALL_SIGNALS)
        try:
            _thread.start_new_thread(self._run, (self._wake, self._done))
        except RuntimeError:  # no thread can be created now
            self._running = False
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, before)

    def stop(self) -> None:
        """Stop the thread, and wait until the kernel has forgotten it: Python 3.12 and later warn of
        a fork with threads.
        """
        if not self._running or self._pid != os.getpid():
            return
        self._wanted = False
        self._wake.release()
        if not self._done.acquire(timeout=PATIENCE_SECS):
            return
        until = time.monotonic() + PATIENCE_SECS
        while os.path.exists(f"/proc/self/task/{self._native}") and time.monotonic() < until:
            time.sleep(0.0001)
        self._running = False
        self._locks()

    def resume(self) -> None:
        """Start the thread again in the parent of a fork."""
        if sys.version_info < (3, 12) or sys.getprofile() is not None:
            self.start()
        else:  # after the check for threads, which follows this call
            sys.setprofile(self._resume)

    def fork(self) -> None:
        """Begin anew in a forked process, which has no thread but its own."""
        self._pid, self._running, self._ended = os.getpid(), False, False
        self._locks()
        try:
            self._recorder.fork()
        except Exception:
            self._ended = True
        self.start()

    def finish(self) -> None:
        """Write what is left, at the end of the process."""
        self.stop()
        if not self._ended and not self._running:
            self._ended = True
            try:  # noqa: SIM105
                self._recorder.finish()
            except Exception:
                pass

    def _locks(self) -> None:
        self._wake, self._done = _thread.allocate_lock(), _thread.allocate_lock()
        self._wake.acquire()
        self._done.acquire()

    def _resume(self, frame: FrameType, event: str, argument: object) -> None:
        sys.setprofile(None)
        self.start()

    def _run(self, wake: _thread.LockType, done: _thread.LockType) -> None:
        try:
            self._native = _thread.get_native_id()
            while self._wanted:
                pause = self._recorder.tick()
                if pause is None:
                    self._ended = True
                    break
                wake.acquire(timeout=pause)
        except BaseException:  # nothing may be printed in the job
            self._ended = True
        finally:
            done.release()


def pause_after(cost: float, least: float) -> float:
    """Return the pause after a tick that used `cost` CPU seconds."""
    return max(least, cost * (SHARE - 1))


def new_file(folder: str, tool: str, ending: str) -> str | None:
    """Create a file for this process, 0600. Return its path; None if the limits are reached."""
    _make_folder(folder)
    count = total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            count, total = count + 1, total + entry.stat(follow_symlinks=False).st_size
    if count >= MOST_FILES or total >= MOST_BYTES:
        note(
            folder,
            "limit",
            f"the limit of {MOST_FILES} profiles or {MOST_BYTES >> 20} MiB of this task is reached;"
            " processes that started later have no profile",
        )
        return None
    name = f"{tool}-{os.getpid()}-{time.time_ns() // 1_000_000}-{program()}.{ending}"
    path = os.path.join(folder, name)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return path


def note(folder: str, name: str, text: str) -> None:
    """Leave a sentence for `profile list`. The first one of a name counts."""
    try:
        _make_folder(folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(os.path.join(folder, f"{name}.txt"), flags, 0o600)
    except OSError:
        return
    try:
        os.write(fd, text.encode("utf-8", "replace"))
    finally:
        os.close(fd)


def program() -> str:
    """Return a short name of the program of this process, safe in a file name."""
    words = getattr(sys, "argv", None) or [""]
    name = os.path.basename(words[0]) or "python"
    return "".join(c if c in _SAFE else "_" for c in name)[:40]


def _make_folder(folder: str) -> None:
    for path in (os.path.dirname(folder), folder):
        try:  # noqa: SIM105
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass


def _finish_before_exit(worker: Worker) -> None:
    """Let `os._exit`, which runs no exit functions, write what is left first."""
    exit_now = os._exit

    def _exit(status: int) -> NoReturn:
        worker.finish()
        exit_now(status)

    _exit.__doc__, _exit.__module__ = exit_now.__doc__, exit_now.__module__
    _exit.__qualname__ = "_exit"
    os._exit = _exit
