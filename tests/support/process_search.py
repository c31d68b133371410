"""Processes of this machine by their arguments, found without the product's help.

Tests search in short intervals, and the title of our processes ends with hundreds of NUL. So each
command line is one read and one search; `psutil.process_iter` reads several files of each process
and splits each command line.
"""

import os


def pids_with(text: str) -> list[int]:
    """Return the pids of processes with this text in their arguments. A zombie has no arguments."""
    wanted, found = text.encode(), []
    for name in os.listdir("/proc"):
        if name.isdigit() and wanted in _arguments(name):
            found.append(int(name))
    return found


def _arguments(pid: str) -> bytes:
    try:
        descriptor = os.open(f"/proc/{pid}/cmdline", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = piece = os.read(descriptor, 65536)
        while len(piece) >= 4096:  # one read returns all of a short file
            piece = os.read(descriptor, 1 << 20)
            data += piece
        return data
    except OSError:
        return b""
    finally:
        os.close(descriptor)
