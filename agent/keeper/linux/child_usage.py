"""CPU time and peak memory of a child that has ended, without reaping it.

`os.wait4` would reap it: if the keeper were killed before it recorded the exit, nobody could read
the exit again. The system call waitid returns the same numbers and leaves the child; no function of
Python or of the C library passes them on.
"""

from __future__ import annotations

import ctypes
import os
import struct

from ....runtime.execution import wait_status

#: Numbers of the system call by machine; other machines report no peak memory.
_NUMBERS = {
    "x86_64": 247,
    "aarch64": 95,
    "riscv64": 95,
    "loongarch64": 95,
    "ppc64le": 272,
    "s390x": 281,
}
_NUMBER = _NUMBERS.get(os.uname().machine)
#: Start of struct rusage: seconds and microseconds in user mode, in the kernel; peak in KiB.
_USAGE = struct.Struct("5l")
_INFO_BYTES, _USAGE_BYTES = 128, 144

_syscall = ctypes.CDLL(None, use_errno=True)["syscall"]
_syscall.restype = ctypes.c_long
_syscall.argtypes = [
    *[ctypes.c_long] * 3,
    ctypes.c_char_p,
    ctypes.c_long,
    ctypes.c_char_p,
]


class ChildUsage:
    """Usage of a process and its reaped children. peak_bytes: 0 if unknown."""

    __slots__ = ("peak_bytes", "system_secs", "user_secs")

    def __init__(self, user_secs: float, system_secs: float, peak_bytes: int) -> None:
        self.user_secs, self.system_secs, self.peak_bytes = user_secs, system_secs, peak_bytes


def read_usage(pid: int) -> ChildUsage:
    """Return the usage of an ended child that has not been reaped."""
    usage = ctypes.create_string_buffer(_USAGE_BYTES)
    info = ctypes.create_string_buffer(_INFO_BYTES)
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    if _NUMBER is None or _syscall(_NUMBER, os.P_PID, pid, info, flags, usage) != 0:
        return ChildUsage(*wait_status.cpu_secs(pid), 0)
    user, user_us, system, system_us, peak = _USAGE.unpack_from(usage.raw)
    return ChildUsage(user + user_us / 1e6, system + system_us / 1e6, peak * 1024)
