"""Hard links in folders of jobs: one file may have another name elsewhere, which whoever reads it
here need not be allowed to read.

Permissions do not tell: the process that reads may be root, and where it is the job's own unix user
its secrets are that one's, too.
"""

import contextlib
import os

#: Names that are looked at below one folder.
LOOKED_AT_MOST = 20_000


def all_below(folder: int, info: os.stat_result) -> bool:
    """Do all names of this file lie below `folder`, an open descriptor? Blocks. False where there
    is too much to look at.
    """
    left, seen = info.st_nlink, 0
    if left == 1:
        return True
    for _, _, names, fd in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
        seen += len(names) + 1
        if seen > LOOKED_AT_MOST:
            return False
        for name in names:
            with contextlib.suppress(OSError):
                left -= os.path.samestat(os.stat(name, dir_fd=fd, follow_symlinks=False), info)
        if left <= 0:
            return True
    return False
