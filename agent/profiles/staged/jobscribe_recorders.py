"""The recorders of `jobscribe_profiler`: CPU time by stack, calls, and memory of this process.

Python 3.8 or later, standard library only.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

import jobscribe_profiler as base  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType

#: Pauses between samples (seconds): while the program computes, and while it waits.
BUSY_SECS, IDLE_SECS = 0.01, 0.05
#: Counts are written at once in the first second, then at this interval.
AT_ONCE_SECS, WRITE_SECS = 1.0, 0.2
#: Intervals of snapshots of calls, and of memory samples.
CALLS_SECS, MEMORY_SECS = 0.5, 1.0
#: Frames of one stack, and labels that are remembered.
MOST_FRAMES, MOST_LABELS = 200, 20_000
OTHER = "(stacks over the size limit)"
_DIGITS = 15


def make(kind: str, folder: str) -> base.Recorder | None:
    """Return the recorder of this kind; None if it needs none in the process."""
    if kind == "cpu=sampler":
        return Stacks(folder)
    if kind == "cpu=cprofile":
        return Calls(folder)
    return Memory(folder) if kind == "mem=process" else None


class Stacks:
    """CPU time of each thread by Python stack.

    The file has a line for each stack, `outer;inner MICROSECONDS`, whose number has a fixed width
    and is written in place: it is complete at any moment.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._main = _thread.get_ident()
        #: by id, with the code: equal code may be of two files
        self._labels: dict[int, tuple[CodeType, str]] = {}
        self.fork()
        self._cpu[os.getpid()] = _thread_cpu_ns(os.getpid()) or 0

    def fork(self) -> None:
        self._main = _thread.get_ident()
        self._path: str | None = None
        self._size = 0
        #: stack -> offset of its number, and microseconds; those that are not written yet
        self._offsets: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._dirty: set[str] = set()
        self._full = False
        self._began = self._written = time.monotonic()
        self._cpu: dict[int, int] = {}
        self._process_cpu = time.process_time_ns()
        self._own_cpu = 0
        self._pause = 0.001

    def tick(self) -> float | None:
        if not hasattr(sys, "argv"):  # the interpreter still starts
            return 0.002
        began = time.thread_time()
        busy = self._sample()
        now = time.monotonic()
        if now - self._began < AT_ONCE_SECS or now - self._written >= WRITE_SECS:
            self._written = now
            if not self._write():
                return None
        self._pause = min(self._pause * 2, BUSY_SECS if busy else IDLE_SECS)
        pause: float = base.pause_after(time.thread_time() - began, self._pause)
        return pause

    def finish(self) -> None:
        self._sample()
        self._write()

    def _sample(self) -> bool:
        """Add the CPU time since the last sample to the stacks of now. Return whether there is any."""
        stacks = _stacks(_thread.get_ident())
        own, total = time.thread_time_ns(), time.process_time_ns()
        spent = max(0, total - self._process_cpu - max(0, own - self._own_cpu))
        self._process_cpu, self._own_cpu = total, own
        if spent < 100_000:  # nothing but this thread
            return False
        unknown = []
        natives = self._natives()
        for ident, codes in stacks.items():
            native = natives.get(ident)
            cpu = None if native is None else _thread_cpu_ns(native)
            if native is None or cpu is None:
                unknown.append(codes)
                continue
            used = max(0, cpu - self._cpu.get(native, 0))
            self._cpu[native] = cpu
            spent -= used
            self._add(ident, codes, used)
        for codes in unknown:
            self._add(0, codes, max(0, spent) // len(unknown))
        return True

    def _natives(self) -> dict[int, int]:
        """Return the kernel's id of each thread that is known."""
        out = {self._main: os.getpid()}
        threading = sys.modules.get("threading")
        for ident, thread in list(getattr(threading, "_active", {}).items()):
            native = getattr(thread, "native_id", None)
            if native is not None and ident != self._main:
                out[ident] = native
        return out

    def _add(self, ident: int, codes: list[CodeType], nanoseconds: int) -> None:
        used = nanoseconds // 1000
        if used <= 0 or not codes:
            return
        stack = ";".join(map(self._label, reversed(codes)))
        if stack not in self._counts and self._full:
            stack = OTHER
        self._counts[stack] = self._counts.get(stack, 0) + used
        self._dirty.add(stack)

    def _label(self, code: CodeType) -> str:
        known = self._labels.get(id(code))
        if known is None:
            if len(self._labels) >= MOST_LABELS:
                self._labels.clear()
            name = getattr(code, "co_qualname", code.co_name)
            text = f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
            label = "".join(c if c.isprintable() and c != ";" else "_" for c in text)
            known = self._labels[id(code)] = (code, label)
        return known[1]

    def _write(self) -> bool:
        """Write what changed. Return False if nothing more can be written."""
        if not self._dirty:
            return True
        if self._path is None:
            self._path = base.new_file(self._folder, "cpu-sampler", "collapsed")
            if self._path is None:
                return False
        lines: list[bytes] = []
        end = self._size
        for stack in self._dirty - self._offsets.keys():
            line = f"{stack} {self._counts[stack]:0{_DIGITS}}\n".encode("utf-8", "replace")
            self._offsets[stack] = end + len(line) - _DIGITS - 1
            lines.append(line)
            end += len(line)
        fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.pwrite(fd, b"".join(lines), self._size)
            for stack in self._dirty:
                if self._offsets[stack] < self._size:
                    number = f"{self._counts[stack]:0{_DIGITS}}".encode()
                    os.pwrite(fd, number, self._offsets[stack])
        finally:
            os.close(fd)
        self._size, self._full = end, end > base.FILE_BYTES
        self._dirty.clear()
        return True


class Calls:
    """Calls of the main thread as cProfile counts them, in a file for `pstats`."""

    def __init__(self, folder: str) -> None:
        import _lsprof

        self._folder = folder
        self._path: str | None = None
        self._profiler = _lsprof.Profiler()
        self._profiler.enable()

    def fork(self) -> None:
        self._path = None
        self._profiler.clear()

    def tick(self) -> float | None:
        if not hasattr(sys, "argv"):
            return 0.002
        began = time.thread_time()
        if not self._write():
            return None
        pause: float = base.pause_after(time.thread_time() - began, CALLS_SECS)
        return pause

    def finish(self) -> None:
        self._profiler.disable()
        self._write()

    def _write(self) -> bool:
        """Replace the file. Return False if nothing more can be written."""
        import marshal

        if self._path is None:
            self._path = base.new_file(self._folder, "cpu-cprofile", "prof")
            if self._path is None:
                return False
        data = marshal.dumps(_call_stats(self._profiler.getstats()))
        if len(data) > base.FILE_BYTES:
            return True
        draft = f"{self._path}.part"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
        os.rename(draft, self._path)
        return True


class Memory:
    """Resident memory of this process over time, in the format of memory_profiler's `mprof`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._page = os.sysconf("SC_PAGE_SIZE")
        self.fork()

    def fork(self) -> None:
        self._path: str | None = None
        self._size = 0

    def tick(self) -> float | None:
        if not hasattr(sys, "argv"):
            return 0.002
        if self._path is None:
            self._path = base.new_file(self._folder, "mem-process", "dat")
        if self._path is None or self._size > base.FILE_BYTES:
            return None
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[1])
        line = f"MEM {pages * self._page / 2**20:.6f} {time.time():.4f}\n"
        if self._size == 0:
            line = f"CMDLINE {base.program()}\n{line}"
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._size += os.write(fd, line.encode())
        finally:
            os.close(fd)
        return MEMORY_SECS

    def finish(self) -> None:
        self.tick()


def start_memray(folder: str) -> None:
    """Record allocations of this process and its forks with memray."""
    try:
        from memray import FileDestination, Tracker  # type: ignore[import-not-found]
    except Exception as error:
        base.note(
            folder,
            "unavailable-mem-memray",
            f"memray cannot be imported in {sys.executable} ({error}), so this process has no profile;"
            f" install it there ('{sys.executable} -m pip install memray'), or use --profile mem",
        )
        return
    path = base.new_file(folder, "mem-memray", "bin")
    if path is None:
        return
    import atexit

    before = os.umask(0o077)
    try:
        tracker = Tracker(destination=FileDestination(path, overwrite=True), follow_fork=True)
        tracker.__enter__()
    except Exception as error:
        base.note(folder, "unavailable-mem-memray", f"memray cannot record: {error}")
        return
    finally:
        os.umask(before)
    atexit.register(tracker.__exit__, None, None, None)


def _stacks(own: int) -> dict[int, list[CodeType]]:
    """Return the code of all frames of each thread, the inner ones first. No frame outlives this."""
    out: dict[int, list[CodeType]] = {}
    frames = sys._current_frames()
    frames.pop(own, None)
    while frames:
        ident, top = frames.popitem()
        frame: FrameType | None = top
        del top
        codes: list[CodeType] = []
        while frame is not None and len(codes) < MOST_FRAMES:
            codes.append(frame.f_code)
            frame = frame.f_back
        out[ident] = codes
    return out


def _thread_cpu_ns(native: int) -> int | None:
    """Return the CPU time of a thread of this process."""
    try:
        fd = os.open(f"/proc/self/task/{native}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(fd, 128).split()[0])
        finally:
            os.close(fd)
    except (OSError, ValueError, IndexError):
        return None


def _call_stats(entries: object) -> dict[tuple[str, int, str], tuple[object, ...]]:
    """Return the statistics of `_lsprof` as `pstats` reads them."""
    stats: dict[tuple[str, int, str], tuple[object, ...]] = {}
    callers: dict[int, dict[tuple[str, int, str], tuple[int, int, float, float]]] = {}
    for entry in entries:  # type: ignore[attr-defined]
        known = callers.setdefault(id(entry.code), {})
        key = _code_key(entry.code)
        direct = entry.callcount - entry.reccallcount
        stats[key] = (direct, entry.callcount, entry.inlinetime, entry.totaltime, known)
    for entry in entries:  # type: ignore[attr-defined]
        for call in entry.calls or ():
            above = callers.get(id(call.code))
            if above is None:
                continue
            key = _code_key(entry.code)
            numbers = (
                call.callcount - call.reccallcount,
                call.callcount,
                call.inlinetime,
                call.totaltime,
            )
            before = above.get(key, (0, 0, 0.0, 0.0))
            above[key] = tuple(a + b for a, b in zip(before, numbers))  # noqa: B905 # type: ignore[assignment]
    return stats


def _code_key(code: CodeType | str) -> tuple[str, int, str]:
    if isinstance(code, str):
        return "~", 0, code
    return code.co_filename, code.co_firstlineno, code.co_name
