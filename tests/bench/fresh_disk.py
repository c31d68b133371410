"""A new file system for each turn of a benchmark: ext4 with a journal, as Debian installs it, on a loop
device in a file of the disk. Needs root.

The time of an ext4 to create a file depends on the files that were deleted before, and on its journal, so
figures of two machines or hours can be compared only on a new one.
"""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

SIZE = 4 << 30


@contextlib.contextmanager
def fresh_disk(below: str = "/var/tmp") -> Iterator[Path]:
    """Yield a folder on a new file system, which is removed afterwards. A sync of a file in it reaches
    the disk of `below`. Raises CalledProcessError or OSError, also without root.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", dir=below) as place:
        image, folder = Path(place, "image"), Path(place, "files")
        folder.mkdir()
        with image.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, SIZE)
        _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
        _run("mount", "-o", "loop", str(image), str(folder))
        try:
            folder.chmod(0o1777)
            _run("sync")
            yield folder
        finally:
            _run("umount", "-l", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
