"""Facts about this machine and this user, as plain data. Unreadable facts contain the error; no
judgement happens here.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ...runtime.log.journald import SOCKET
from .findings import Facts

#: Programs that drivers, jobs and operators use.
PROGRAMS = (
    "sh",
    "bash",
    "env",
    "ssh",
    "sbatch",
    "docker",
    "systemctl",
    "journalctl",
    "coredumpctl",
)
EXTRAS = {"docker": "docker", "gpu": "pynvml", "sbatch": "asyncssh", "heat": "numpy"}
PACKAGES = (
    "jobscribe",
    "tornado",
    "msgpack",
    "msgspec",
    "psutil",
    "click",
    "rich",
    "flask",
    "waitress",
    "aiofiles",
    "pykern",
    "PyYAML",
)
UNITS = ("jobscribe-supervisor.service", "jobscribe-server.service")
_ATTACH, _DETACH = 16, 17
_CAP_SYS_PTRACE = 19
_DMESG = 3
_BOTTOM_UMASK = 0o077


def _text(path: str, limit: int = 65536) -> str | None:
    """Return the beginning of a small file. None if it cannot be read."""
    try:
        with open(path, "rb") as f:
            return f.read(limit).decode("utf-8", "replace").strip()
    except OSError:
        return None


def environment(given: Facts) -> Facts:
    import importlib.util
    import locale
    from importlib.metadata import PackageNotFoundError, version

    from ...protocol.version import VERSION

    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    mask = os.umask(_BOTTOM_UMASK)
    os.umask(mask)
    return {
        "version": VERSION,
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": found,
        "extras": {
            name: importlib.util.find_spec(module) is not None for name, module in EXTRAS.items()
        },
        "path": os.environ.get("PATH", ""),
        "programs": {p: shutil.which(p) for p in PROGRAMS},
        "encoding": locale.getpreferredencoding(False),
        "umask": mask,
        "uid": os.geteuid(),
        "host": socket.gethostname(),
        "kernel": platform.release(),
    }


def limits(given: Facts) -> Facts:
    names = {
        "nofile": resource.RLIMIT_NOFILE,
        "nproc": resource.RLIMIT_NPROC,
        "core": resource.RLIMIT_CORE,
        "fsize": resource.RLIMIT_FSIZE,
    }
    return {
        **{name: list(resource.getrlimit(which)) for name, which in names.items()},
        "pids": _pids_limit(),
        "uid": os.geteuid(),
        "pidMax": int(_text("/proc/sys/kernel/pid_max") or 0) or None,
    }


def _pids_limit() -> int | None:
    """Return the process limit of this process's cgroup. None if there is no limit or it is
    unreadable.
    """
    from ...agent.keeper.linux import cgroup_mounts

    with contextlib.suppress(OSError, ValueError):
        own = cgroup_mounts.own_paths()
        for mount in cgroup_mounts.mounts():
            folder = (
                mount.folder(own.get("" if mount.version == 2 else "pids"))
                if mount.version == 2 or "pids" in mount.controllers
                else None
            )
            limit = _text(f"{folder}/pids.max") if folder else None
            if limit and limit.isdigit():
                return int(limit)
    return None


def cores(given: Facts) -> Facts:
    return {
        "pattern": _text("/proc/sys/kernel/core_pattern"),
        "usesPid": _text("/proc/sys/kernel/core_uses_pid"),
        "limit": list(resource.getrlimit(resource.RLIMIT_CORE)),
        "coredumpctl": shutil.which("coredumpctl") is not None,
    }


def ptrace(given: Facts) -> Facts:
    status = _text("/proc/self/status") or ""
    caps = next(
        (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0
    )
    scope = _text("/proc/sys/kernel/yama/ptrace_scope")
    return {
        "scope": int(scope) if scope and scope.isdigit() else None,
        "capability": bool(caps >> _CAP_SYS_PTRACE & 1),
        "error": _ptrace_error(),
    }


def _ptrace_error() -> str | None:
    """Attach to a child process and detach. Return None on success, else the error's name."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    child = subprocess.Popen(
        ["/bin/sh", "-c", "read _"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        if libc.ptrace(_ATTACH, child.pid, None, None) != 0:
            return errno.errorcode.get(ctypes.get_errno(), str(ctypes.get_errno()))
        os.waitpid(child.pid, 0)  # wait until it stops
        libc.ptrace(_DETACH, child.pid, None, None)
        return None
    finally:
        with contextlib.suppress(OSError):
            os.kill(child.pid, signal.SIGKILL)
        child.communicate()


def kernel_log(given: Facts) -> Facts:
    return {
        "kmsg": _kmsg(),
        "syslog": _syslog(),
        "restrict": _text("/proc/sys/kernel/dmesg_restrict"),
        "uid": os.geteuid(),
    }


def _kmsg() -> str | None:
    """Return None if the kernel log's device can be read, else the error's name."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        return errno.errorcode.get(e.errno or 0, str(e.errno))
    try:
        os.read(fd, 8192)
    except (BlockingIOError, BrokenPipeError):
        pass  # empty, or overwritten during the read
    except OSError as e:
        return errno.errorcode.get(e.errno or 0, str(e.errno))
    finally:
        os.close(fd)
    return None


def _syslog() -> str | None:
    """Return None if the kernel log's system call works (the fallback of dmesg(1)), else the
    error's name.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(256)
    if libc.klogctl(_DMESG, buffer, len(buffer)) < 0:
        return errno.errorcode.get(ctypes.get_errno(), str(ctypes.get_errno()))
    return None


def cgroups(given: Facts) -> Facts:
    from ...agent.keeper.linux import cgroup_mounts

    try:
        own, mounts = cgroup_mounts.own_paths(), cgroup_mounts.mounts()
    except (OSError, ValueError) as e:
        return {"unread": str(e), "found": []}
    found = []
    for mount in mounts:
        folder = mount.folder(
            own.get(
                "" if mount.version == 2 else mount.controllers[-1] if mount.controllers else None  # type: ignore[arg-type]
            )
        )
        controllers = (
            (_text(f"{folder}/cgroup.controllers") or "").split()
            if mount.version == 2 and folder
            else list(mount.controllers)
        )
        found.append(
            {
                "version": mount.version,
                "point": mount.point,
                "controllers": controllers,
                "folder": folder,
                "writable": bool(folder) and os.access(str(folder), os.W_OK),
                "delegated": bool(folder) and cgroup_mounts.is_delegated(str(folder)),
                "memoryRead": bool(folder)
                and any(
                    os.access(f"{folder}/{n}", os.R_OK)
                    for n in ("memory.events", "memory.oom_control")
                ),
            }
        )
    return {"found": found}


class _Timex(ctypes.Structure):
    """The beginning of `struct timex`, padded to its full size."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("padding", ctypes.c_char * 256),
    ]


_UNSYNC, _TIME_ERROR = 0x40, 5


def clock(given: Facts) -> Facts:
    def apart() -> float:
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    before = apart()
    time.sleep(0.3)
    timex = _Timex()
    code = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    return {
        "now": time.time(),
        "jumped": apart() - before,
        "synchronised": None if code < 0 else not (code == _TIME_ERROR or timex.status & _UNSYNC),
        "suspended": time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic(),
        "up": time.clock_gettime(time.CLOCK_BOOTTIME),
        "newest": _newest(os.path.join(given["root"], "log")),
    }


def _newest(folder: str) -> float | None:
    """Return the newest modification time in a folder (unix seconds)."""
    try:
        return max(
            (e.stat(follow_symlinks=False).st_mtime for e in os.scandir(folder)), default=None
        )
    except OSError:
        return None


def journal(given: Facts) -> Facts:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        connection.connect(SOCKET)
        error = None
    except OSError as e:
        error = errno.errorcode.get(e.errno or 0, str(e.errno))
    finally:
        connection.close()
    folders = [f for f in ("/var/log/journal", "/run/log/journal") if os.path.isdir(f)]
    return {
        "error": error,
        "journalctl": shutil.which("journalctl") is not None,
        "uid": os.geteuid(),
        "folders": folders,
        "readable": any(_is_readable(f) for f in folders),
    }


def _is_readable(folder: str) -> bool:
    """Return whether a system journal file below the folder can be read."""
    return any(os.access(path, os.R_OK) for path in Path(folder).glob("*/system.journal"))


def systemd(given: Facts) -> Facts:
    facts: Facts = {
        "running": os.path.isdir("/run/systemd/system"),
        "systemctl": shutil.which("systemctl") is not None,
        "units": {},
    }
    if not facts["running"] or not facts["systemctl"]:
        return facts
    facts["version"] = (_output(["systemctl", "--version"]).splitlines() or [""])[0]
    for unit in UNITS:
        for scope in ((), ("--user",)):
            text = _output(
                [
                    "systemctl",
                    *scope,
                    "show",
                    "-p",
                    "LoadState,ActiveState,NRestarts,NeedDaemonReload,Result",
                    unit,
                ]
            )
            properties = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
            if "LoadState" not in properties and not scope:
                facts["silent"] = True
            if properties.get("LoadState") == "loaded":
                facts["units"][unit] = {**properties, "user": bool(scope)}
                break
    return facts


def _output(command: list[str], secs: float = 5.0) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=secs, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def gpus(given: Facts) -> Facts:
    try:
        import pynvml
    except ImportError:
        return {"library": False, "devices": os.path.exists("/dev/nvidiactl")}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        return {
            "library": True,
            "devices": os.path.exists("/dev/nvidiactl"),
            "error": str(e),
            "cards": [],
        }
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        return {
            "library": True,
            "devices": True,
            "cards": [str(pynvml.nvmlDeviceGetName(h)) for h in handles],
        }
    except pynvml.NVMLError as e:
        return {"library": True, "devices": True, "error": str(e), "cards": []}
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def folder(path: str) -> Facts:
    """Return facts about an existing or future folder of the supervisor."""
    from ...runtime.filesystems import file_system, network_file_system, user_name

    nearest = path
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    facts: Facts = {
        "path": path,
        "exists": nearest == path,
        "nearest": nearest,
        "kind": file_system(nearest),
        "network": network_file_system(nearest),
        "uid": os.geteuid(),
        "user": user_name(os.geteuid()),
    }
    info = os.stat(nearest)
    facts |= {
        "owner": info.st_uid,
        "ownerName": user_name(info.st_uid),
        "mode": info.st_mode & 0o7777,
        "isFolder": os.path.isdir(nearest),
    }
    room = os.statvfs(nearest)
    facts |= {
        "freeBytes": room.f_bavail * room.f_frsize,
        "bytes": room.f_blocks * room.f_frsize,
        "readOnly": bool(room.f_flag & os.ST_RDONLY),
    }
    facts |= {
        "freeInodes": room.f_favail,
        "inodes": room.f_files,
        "writable": os.access(nearest, os.W_OK | os.X_OK),
    }
    facts["syncSecs"] = _sync_secs(nearest) if facts["writable"] and facts["isFolder"] else None
    return facts


def _sync_secs(place: str) -> float | None:
    """Return the longest time (seconds) of a few synchronous writes to a temporary file."""
    try:
        with tempfile.TemporaryFile(dir=place, prefix=".doctor-") as f:
            took = []
            for _ in range(5):
                begun = time.perf_counter()
                os.write(f.fileno(), b"x" * 4096)
                os.fsync(f.fileno())
                took.append(time.perf_counter() - begun)
            return max(took)
    except OSError:
        return None


def held(path: str) -> bool | None:
    """Return whether a supervisor holds the lock of this root. None if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
