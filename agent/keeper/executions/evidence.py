"""Files of an execution besides its output: its script, the links from its run directory, and its
exit. They take few inodes: to create one is the most expensive step of a short job on some file
systems, and a site keeps the evidence of many jobs.
"""

from __future__ import annotations

import contextlib
import errno
import os

from ....runtime.execution.folder import EXIT, SCRIPT, STDERR, STDOUT, write
from ..linux.oom_detection import describe_fault
from ..loop.log import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..loop.write_retry import WriteRetryQueue
    from .ledger import KeeperLedger
    from .state import Execution

OWN, _LATEST = ".jobscribe", "latest"


def describe(e: Execution) -> None:
    """Write the script, and link the run directory to the evidence, unless that is done. Raises
    OSError; then it may be tried again.
    """
    if e.script is not None:
        write(f"{e.folder}/{SCRIPT}", e.script, 0o700)
        e.script = None
        link_run_dir(e)


# ---- links


def link_run_dir(e: Execution) -> None:
    """Link the run directory to the evidence of its latest attempt: as `.jobscribe`, and so that
    `.jobscribe/latest` is the same folder. From the second attempt on, `.jobscribe/attempt-<n>` are
    those of the others. A failure is only logged: the links are a convenience.
    """
    own, parts = f"{e.run_dir}/{OWN}", e.token.split("/")
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


def write_exit(
    e: Execution, exit_: dict[str, Any], layout: KeeperLedger, writes: WriteRetryQueue
) -> None:
    """Record an exit: of a success in the ledger, any other as `exit.json`, now or as soon as the
    disk takes it.
    """
    if exit_.get("code") == 0:
        with contextlib.suppress(OSError):  # for example a full disk: a file, later
            layout.record_end(e.name, exit_)
            return
    writes.write(f"{e.folder}/{EXIT}", exit_)


def give_spare_files(e: Execution, layout: KeeperLedger) -> None:
    """Make empty output files of a success spare."""
    for name in (STDOUT, STDERR):
        layout.spare.give(f"{e.folder}/{name}")
