"""`python -m jobscribe.agent.keeper`: start a keeper. Its configuration, a JSON object in one line,
is read from stdin.
"""

import sys

from .process import main

if __name__ == "__main__":
    sys.exit(main())
