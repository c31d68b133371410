"""`python -m jobscribe.agent.keeper`: start a keeper.

The keeper reads its configuration, a JSON object on one line, from stdin.
"""

import os
import sys

from .reaper import fork_keeper

if __name__ == "__main__":
    given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    # in a container everything ends with process 1, so nobody could wait for its children
    if {"--root", "--folder"} == set(given) and os.getpid() != 1:
        fork_keeper(given["--root"], given["--folder"])
    from .process import main  # after the fork: the reaper needs none of it

    sys.exit(main())
