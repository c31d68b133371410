"""Files of an execution besides its script and output: the links from its run directory, and its
exit. They take few inodes: to create one is the most expensive step of a short job on some file
systems, and a site keeps the evidence of many jobs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import stat

from ....runtime.execution.folder import EXIT, STDERR
from ..linux.oom_detection import describe_fault
from ..loop.log import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..loop.write_retry import WriteRetryQueue
    from .state import Execution

_OWN, _LATEST = ".jobscribe", "latest"


# ---- links


def link_run_dir(e: Execution) -> None:
    """Link the run directory to the evidence of its latest attempt: as `.jobscribe`, and so that
    `.jobscribe/latest` is the same folder. From the second attempt on, `.jobscribe/attempt-<n>` are
    those of the others. A failure is only logged: the links are a convenience.
    """
    own, parts = f"{e.run_dir}/{_OWN}", e.token.split("/")
    attempt = int(parts[2]) if len(parts) == 5 and parts[2].isdecimal() else 1
    try:
        if attempt > 1:
            _link_attempts(e.folder, parts, attempt)
        if os.path.isdir(own) and not os.path.islink(own):  # made by another version or driver
            _replace_link(e.folder, f"{own}/{_LATEST}")
            return
        _link_to_itself(e.folder)
        _replace_link(e.folder, own)
    except OSError as error:
        log(
            f"cannot link the run directory of {e.token} to its evidence: {describe_fault(error)[1]}"
        )


def _link_attempts(folder: str, parts: list[str], attempt: int) -> None:
    runs = os.path.dirname(folder)
    for n in range(1, attempt + 1):
        evidence = f"{runs}/{'-'.join((*parts[:2], str(n), *parts[3:]))}"
        if os.path.isdir(evidence):
            os.symlink(evidence, f"{folder}/attempt-{n}")


def _link_to_itself(folder: str) -> None:
    """Create the link `latest` to the folder that it is in. It is one inode for all executions."""
    shared = f"{os.path.dirname(os.path.dirname(folder))}/.{_LATEST}"
    link = f"{folder}/{_LATEST}"
    for _ in range(2):
        try:
            os.link(shared, link, follow_symlinks=False)
            return
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EMLINK):
                break
        with contextlib.suppress(FileNotFoundError):  # it has as many names as the kernel allows
            os.unlink(shared)
        os.symlink(".", shared)
    os.symlink(".", link)  # the file system has no hard links


def _replace_link(target: str, path: str) -> None:
    try:
        os.symlink(target, path)
    except FileExistsError:
        if not os.path.islink(path):
            raise
        temporary = f"{path}.{os.getpid()}"
        os.symlink(target, temporary)
        os.rename(temporary, path)


# ---- the exit


def write_exit(e: Execution, exit_: dict[str, Any], writes: WriteRetryQueue) -> None:
    """Write `exit.json`, now or as soon as the disk takes it. After a success without error output
    its inode is that of the empty `stderr.log`, which then does not exist.
    """
    if exit_.get("code") != 0 or not _reuse_stderr(e.folder, json.dumps(exit_).encode()):
        writes.write(f"{e.folder}/{EXIT}", exit_)


def _reuse_stderr(folder: str, data: bytes) -> bool:
    """Make `exit.json` of an empty `stderr.log`. Return False, with nothing changed, if it is not
    empty or if any other process has it open: it could still write to it.
    """
    error_output = f"{folder}/{STDERR}"
    try:
        fd = os.open(error_output, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return _is_ours(fd) and _turn_into(f"{folder}/{EXIT}", fd, error_output, data)
    except OSError:
        return False
    finally:
        os.close(fd)


def _is_ours(fd: int) -> bool:
    """Return whether this is an empty file that no other process has open. Until it is closed,
    others wait when they open it. Raises OSError if another process has it open, or if the file
    system cannot tell.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size or status.st_nlink != 1:
        return False
    # the signal tells that another process waits; it is ignored by default
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return True


def _turn_into(path: str, fd: int, former: str, data: bytes) -> bool:
    temporary = f"{path}.new"
    os.rename(former, temporary)
    try:
        # another process may have begun to open it before the rename
        if fcntl.fcntl(fd, fcntl.F_GETLEASE) == fcntl.F_WRLCK and os.write(fd, data) == len(data):
            os.rename(temporary, path)
            return True
    except OSError:
        pass  # for example a full disk
    os.ftruncate(fd, 0)
    os.rename(temporary, former)
    return False
