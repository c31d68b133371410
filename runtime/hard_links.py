"""Hard links in folders of jobs: a file may have another name in a folder that its owner here may
not read.

Permissions do not help: the reading process may be root, and if it runs as the job's unix user,
that user's secrets are readable as well.
"""

import contextlib
import os

#: Limit of names checked below one folder.
LOOKED_AT_MOST = 20_000


def all_below(folder: int, info: os.stat_result) -> bool:
    """Return whether all names of this file are below `folder`, an open descriptor. Blocks. Returns
    False if there is too much to check.
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
