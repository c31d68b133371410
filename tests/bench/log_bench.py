"""CPU cost of logging in a plain run: the CPU time of log calls and of the log thread in every
process, next to the total CPU time of the run.

The benchmark reads each thread's CPU clock around each call, so other processes do not affect the
result. Comparing runs with and without logs does not work: forks and jobs vary by more than the
total cost of logging.

    python tests/bench/log_bench.py [runs in each turn, 150]
"""

import os
import statistics
import struct
import sys
import tempfile
from pathlib import Path

from supervisor_process import PYTHON_PATH, SupervisorProcess, shell

#: Every interpreter of the site loads this. It sums the cost of its log calls and writes the sum to
#: its own file.
COUNTING = """
import mmap, os, struct, threading, time
from jobscribe.runtime.log.logger import Log

FOLDER = {folder!r}
place, spent, calls = None, 0.0, 0

def counted(call):
    def wrapper(self, *args, **ids):
        global place, spent, calls
        begun = time.thread_time()
        try:
            return call(self, *args, **ids)
        finally:
            spent += time.thread_time() - begun
            calls += 1
            if place is None or place[0] != os.getpid():
                path = f"{{FOLDER}}/{{os.getpid()}}"
                with open(path, "wb") as f:
                    f.truncate(24)
                with open(path, "r+b") as f:
                    place = os.getpid(), mmap.mmap(f.fileno(), 24)
            thread = next((t for t in threading.enumerate() if t.name == "log"), None)
            writer = time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) if thread is not None else 0.0
            place[1][:24] = struct.pack("ddq", spent, writer, calls)
    return wrapper

for name in ("__call__", "trace", "exception", "adopt"):
    setattr(Log, name, counted(getattr(Log, name)))
"""
WARM = 30
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_secs(site: SupervisorProcess) -> float:
    """Return the CPU seconds of all processes here, including children they waited for."""
    total = 0
    for pid in site.everybody():
        try:
            total += sum(
                int(f)
                for f in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
            )
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total / _TICKS


def logging_secs(folder: Path) -> tuple[float, float, int]:
    """Return (seconds in log calls, seconds in the log thread, number of calls)."""
    parts = [struct.unpack("ddq", f.read_bytes()) for f in folder.iterdir() if f.name.isdecimal()]
    return sum(p[0] for p in parts), sum(p[1] for p in parts), sum(p[2] for p in parts)


def turn(runs: int, folder: Path) -> tuple[float, float, float, float]:
    """Return, for one run: CPU in log calls, in the log thread, and in total (ms); number of log
    calls.
    """
    site = SupervisorProcess(
        ("slots.local_sequential=2",), env={"PYTHONPATH": f"{folder}{os.pathsep}{PYTHON_PATH}"}
    )
    try:
        site.start()
        for _ in range(WARM):
            site.finished(shell("true"))
        before, then = cpu_secs(site), logging_secs(folder)
        for _ in range(runs):
            site.finished(shell("true"))
        now = logging_secs(folder)
        return (
            1000 * (now[0] - then[0]) / runs,
            1000 * (now[1] - then[1]) / runs,
            1000 * (cpu_secs(site) - before) / runs,
            (now[2] - then[2]) / runs,
        )
    finally:
        site.end()


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    turns = []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "sitecustomize.py").write_text(COUNTING.format(folder=name))
            turns.append(turn(runs, folder))
            print(
                "in calls {:.2f} ms, in the log's thread {:.2f} ms, everything {:.2f} ms; {:.1f} log calls".format(
                    *turns[-1]
                ),
                flush=True,
            )
    share = statistics.median(100 * (t[0] + t[1]) / t[2] for t in turns)
    calls, thread, total, count = (statistics.median(t[n] for t in turns) for n in range(4))
    print(
        f"| CPU of logging a plain run ({count:.0f} log calls in all processes) | {calls:.2f} ms in the calls, {thread:.2f} ms in the log's thread | "
        f"{total:.1f} ms of all together: {share:.1f} % | < 5 % | {'yes' if share < 5 else 'no'} |"
    )


if __name__ == "__main__":
    main()
