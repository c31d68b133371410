"""Kill a maintenance command at every step, each time in a child process that exits at once, as
with SIGKILL.

A step is a system or SQLite call that changes something; the child exits before or right after it.
"""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from jobscribe.db.maintenance import compaction, derived_tables, file_replacement, rebuild, rollback
from jobscribe.db.sqlite import schema

_KILLED = 77
#: (module that holds the function, function name)
_CALLS = (
    (os, "open"),
    (os, "link"),
    (os, "replace"),
    (os, "rename"),
    (os, "unlink"),
    (os, "fsync"),
    (os, "fdatasync"),
    (os, "pwrite"),
    (os, "mkdir"),
    (shutil, "copyfile"),
    (shutil, "rmtree"),
    *(
        (module, "insert")
        for module in (derived_tables, rebuild, compaction, rollback, schema)
        if hasattr(module, "insert")
    ),
    (file_replacement, "finish"),
    (schema, "create"),
)


def killed_at_every_step(
    template: Path, place: Path, command: Callable[[Path], object], healed: Callable[[Path], None]
) -> int:
    """Run the command on a copy of the template, killed before and after each step; return the
    number of kills.

    Call `healed(place)` after each kill, and once more after the run that completes. Without SOAK,
    test only every fifth step.
    """
    stride = 1 if os.environ.get("SOAK") else 5
    # (repeated test runs cover all steps)
    step = random.randrange(stride)
    count = 0
    while True:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(template, place)
        over = not _killed_at(step, lambda: command(place))
        try:
            healed(place)
        except BaseException as e:
            e.add_note(f"killed at step {step}")
            raise
        if over:
            return count
        count, step = count + 1, step + stride


def _killed_at(step: int, command: Callable[[], object]) -> bool:
    """Fork and kill the child at this step. Even steps are before a call, odd steps after it.
    Return False if the command completes first.
    """
    pid = os.fork()
    if pid == 0:
        try:
            _arm(step)
            command()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, _KILLED), f"the command failed at step {step}"
    return code == _KILLED


def _arm(step: int) -> None:
    left = step // 2

    def watched(real: Callable) -> Callable:
        def call(*args: object, **options: object) -> object:
            nonlocal left
            mine, left = left == 0, left - 1
            if mine and step % 2 == 0:
                os._exit(_KILLED)
            try:
                return real(*args, **options)
            finally:
                if mine:
                    os._exit(_KILLED)

        return call

    for owner, name in _CALLS:
        setattr(owner, name, watched(getattr(owner, name)))
