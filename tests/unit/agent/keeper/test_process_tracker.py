"""The process tracker finds orphans even if their parent ends and is reaped during a scan."""

import os
import subprocess

import pytest

from jobscribe.agent.keeper.executions.process_tracker import ProcessTracker
from jobscribe.agent.keeper.executions.state import Execution
from jobscribe.agent.keeper.linux.cgroups import Cgroups
from jobscribe.runtime import processes

pytestmark = pytest.mark.process


def test_what_a_buried_child_left_is_met_in_the_same_look(monkeypatch: pytest.MonkeyPatch) -> None:
    over = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, over, os.WEXITED | os.WNOWAIT)
    left = subprocess.Popen(["sleep", "86400"])
    try:
        # the first read still lists the parent; its orphan becomes a child a moment later
        lists = iter([[over], [left.pid]])
        monkeypatch.setattr(processes, "children", lambda: next(lists, [left.pid]))
        kin = ProcessTracker(Cgroups(".", "off"))
        e = Execution("e", "token", "/nowhere")
        e.pid = 2**22 + 1
        kin.reap_children(set(), [e])
        assert kin.adopted_of("e") == [left.pid]
    finally:
        left.kill()
        left.wait()
