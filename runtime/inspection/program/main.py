"""The entry of the program. Its argument is a JSON object with the token of the execution and the
options of `protocol/jobs/inspection.py`.

Python 3.8 or later, standard library only.
"""

from __future__ import annotations

import json
import math
import signal
import sys

from . import output, recording, stacks


def _hung_up(number: int, frame: object) -> None:
    sys.exit(128 + number)


def main(options: str) -> int:
    """Return the exit code."""
    output.raw()
    # sent to all processes of an execution that is stopped, which itself ends the work
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, _hung_up)  # remove what is in files, end the tools
    given = json.loads(options)
    if given["name"] == "profile":
        secs = math.ceil(given["secs"])
        return recording.record(given["token"], secs, given["rate"], given["native"])
    return stacks.show(given["token"], given["native"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
