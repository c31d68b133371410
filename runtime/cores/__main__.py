"""The process that collects the core files of one execution. Argument: the file of its request."""

import sys

from .collector import main

if __name__ == "__main__":
    main(sys.argv[1])
