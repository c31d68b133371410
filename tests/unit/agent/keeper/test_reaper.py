"""The reaper finds the main process of an execution whatever the killed keeper had recorded of it."""

import subprocess
import sys
from pathlib import Path

import pytest

import jobscribe
from jobscribe.runtime.execution import wait_status

from ..conftest import until

pytestmark = pytest.mark.process

_PATH = str(Path(jobscribe.__file__).parent / ".types")
#: A keeper that is killed while its child is between fork and exec: the child has neither a session
#: nor an environment of its own yet. It goes on when the reaper has looked at it.
_KEEPER = """
import json, os, signal, sys, time
from jobscribe.agent.keeper import reaper, unreaped
folder, look = sys.argv[1], unreaped.all_mains

def noted(*arguments):
    found = look(*arguments)
    open(folder + "/looked", "w").close()
    return found

unreaped.all_mains = noted
reaper.fork_keeper(folder, folder)
os.makedirs(folder + "/run/e1")
with open(folder + "/ledger.jsonl", "w") as ledger:
    ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    ledger.write(json.dumps({"use": "e1", "token": "t1", "ticks": ticks}) + "\\n")
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
while not os.path.exists(folder + "/go"):
    time.sleep(0.01)
os.setsid()
os.execve("/bin/sh", ["sh", "-c", "exit 7"], {"JOBSCRIBE_TOKEN": "t1"})
"""


def test_the_exit_of_a_process_that_was_between_fork_and_exec_is_recorded(tmp_path: Path) -> None:
    reaper = subprocess.Popen(
        [sys.executable, "-c", _KEEPER, str(tmp_path)], env={"PYTHONPATH": _PATH}
    )
    until((tmp_path / "looked").exists)
    (tmp_path / "go").touch()
    assert reaper.wait(60) == -9, "it ends as its keeper did"
    seen = wait_status.read(str(tmp_path / "run" / "e1"), None, None)
    assert seen is not None and seen.exit_fields() == {"code": 7}
