"""Calls the function of a job again in this process, under Pdb:

    python -m jobscribe.client.in_process.replay call.bin [--run]

`jobscribe job repro` writes `call.bin`. The debugger stops at the first line of the function, and
where an exception leaves it. --run: call it without a debugger. Reading a call runs its code.
"""

import bdb
import pdb
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..functions import runner


def main(arguments: list[str]) -> int:
    """Call the function with each of its arguments. Return the exit code."""
    options = [a for a in arguments if a.startswith("-")]
    names = [a for a in arguments if not a.startswith("-")]
    if len(names) != 1 or options not in ([], ["--run"]):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    try:
        _, function, calls = runner.load_call(Path(names[0]).read_bytes())
    except (ValueError, OSError, ImportError) as e:
        sys.stderr.write(f"replay: {e}\n")
        return runner.REFUSED
    code = 0
    for args, keywords in calls:
        code = _call(function, args, keywords, debugged=not options) or code
    return code


def _call(function: Callable[..., Any], args: Any, keywords: Any, *, debugged: bool) -> int:
    try:
        result = (
            pdb.runcall(function, *args, **keywords) if debugged else function(*args, **keywords)
        )
    except bdb.BdbQuit:
        return 0
    except Exception as e:
        traceback.print_exc()
        if debugged:
            pdb.post_mortem(e.__traceback__)
        return runner.FAILED
    sys.stdout.write(f"returned {result!r:.2000}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
