"""Files and sentences that the agent leaves in the folder of a task's profiles. Blocks."""

import contextlib
import os

from ...protocol.ids import Token
from ...protocol.jobs import profiling
from ...protocol.jobs.profiling import Profile

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def folder_of(run_dir: str, token: Token) -> str:
    return os.path.join(run_dir, profiling.task_folder(token))


def append(folder: str, name: str, text: str) -> None:
    """Append to a file, 0600; create it if it does not exist. Raises OSError."""
    make(folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    _write(os.open(os.path.join(folder, name), flags, 0o600), text)


def replace(path: str, data: bytes) -> None:
    """Replace the content of a file of the agent in one step, 0600. Raises OSError."""
    draft = f"{path}.part"
    fd = os.open(draft, _NEW, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
    os.rename(draft, path)


def unavailable(folder: str, found: Profile, reason: str) -> None:
    """Leave a sentence about a profile that does not exist. The first one counts."""
    with contextlib.suppress(OSError):
        make(folder)
        name = f"unavailable-{found.kind}-{found.tool}.txt"
        _write(os.open(os.path.join(folder, name), _NEW, 0o600), reason)


def no_samples(token: Token, run_dir: str, found: Profile) -> None:
    """Tell that the tool needs an agent beside the job."""
    reason = (
        f"{found} needs an agent on the machine of the job, which a batch job does not have;"
        " use --profile cpu, mem or mem=memray there"
    )
    unavailable(folder_of(run_dir, token), found, reason)


def make(folder: str) -> None:
    """Create the folder and the one above it, 0700. Raises OSError."""
    os.makedirs(os.path.dirname(os.path.dirname(folder)), 0o700, exist_ok=True)
    for path in (os.path.dirname(folder), folder):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)


def _write(fd: int, text: str) -> None:
    try:
        os.write(fd, text.encode("utf-8", "replace"))
    finally:
        os.close(fd)
