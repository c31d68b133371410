"""`python -m jobscribe.agent.keeper`: start a keeper.

The keeper reads its configuration, a JSON object on one line, from stdin.
"""

import sys

from .process import main

if __name__ == "__main__":
    sys.exit(main())
