"""Core files of real crashes: collected into the evidence with their frames, of the main process and
of its children, and also if the keeper is killed meanwhile.
"""

import hashlib
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from jobscribe.protocol.jobs.core_report import CoreReport
from jobscribe.runtime.cores import core_pattern

from ..conftest import Keeper, until

USERS = ("same user",)
_target = core_pattern.parse(Path(core_pattern.PATTERN).read_text(), False)
pytestmark = [
    pytest.mark.process,
    pytest.mark.parametrize("who", ["same user"], indirect=True),
    pytest.mark.skipif(
        _target.kind != "file"
        or _target.absolute
        or 0 <= resource.getrlimit(resource.RLIMIT_CORE)[1] < 1 << 24,
        reason="this machine writes no core files into working directories",
    ),
]
LIMIT = 1 << 24
#: Stands for gdb: the frames of its real output, after a file exists.
GDB = """#!/bin/sh
touch "$0.runs"; while [ ! -e "$0.go" ]; do sleep 0.02; done
echo '#0  0x000055b9731e4135 in crash_here (p=...) at extension.c:12'
echo '#0  0x000055b9731e4135 in crash_here (p=...) at extension.c:12'
echo '#1  0x000055b9731e4147 in middle () at extension.c:14'
"""


@pytest.fixture
def gdb(place: Path) -> Path:
    """Return the path of a program that the keepers of this test take for gdb."""
    path = place / "bin" / "gdb"
    path.parent.mkdir()
    path.write_text(GDB)
    path.chmod(0o755)
    return path


def test_the_core_of_a_crash_is_collected_even_if_the_keeper_is_killed_meanwhile(
    new_keeper: Callable[..., Keeper], gdb: Path
) -> None:
    env = {"PATH": f"{gdb.parent}:{os.environ['PATH']}"}
    keeper = new_keeper(env=env)
    token = keeper.started("kill -SEGV $$", core=LIMIT)
    said = keeper.next("started", token)
    assert (said["state"], said["exit"]["signal"], said["exit"]["coreDumped"]) == (
        "running",
        11,
        True,
    ), "the exit is told before its core is collected"
    until(Path(f"{gdb}.runs").exists)
    keeper.kill()
    Path(f"{gdb}.go").touch()
    keeper = new_keeper(env=env)
    exit_ = keeper.end_of(token)
    assert (exit_.signal, exit_.core_dumped) == (11, True)
    report = exit_.core
    assert isinstance(report, CoreReport)
    assert (report.state, report.tool) == ("kept", "gdb")
    assert (
        report.crash()
        == "crashed in extension.c:12 crash_here, called from extension.c:14 in middle"
    )
    (file,) = report.files
    core = keeper.evidence(token) / "cores" / file.name
    assert core.stat().st_mode & 0o777 == 0o600 and core.parent.stat().st_mode & 0o777 == 0o700
    assert (file.signal, file.size) == (11, core.stat().st_size)
    assert file.sha256 == hashlib.sha256(core.read_bytes()).hexdigest()
    assert sorted(os.listdir(keeper.run_dir(token))) == [".jobscribe"], "it is in one place only"


def test_children_that_crash_are_collected_and_data_of_the_job_is_not(
    new_keeper: Callable[..., Keeper], gdb: Path
) -> None:
    Path(f"{gdb}.go").touch()
    keeper = new_keeper(env={"PATH": f"{gdb.parent}:{os.environ['PATH']}"})
    crash = "mkdir -p in; (cd in; sh -c 'kill -ABRT $$'; true)"
    exit_ = keeper.run(f"{crash}; echo data >core; echo data >core.1", core=LIMIT)
    assert exit_.code == 0 and isinstance(exit_.core, CoreReport)
    assert [file.signal for file in exit_.core.files] == [6]
    plain = keeper.launch(crash)
    assert keeper.end_of(plain).core is not exit_.core
    assert not (keeper.evidence(plain) / "cores").exists(), "no core was asked for"
    quiet = keeper.launch("exit 3", core=LIMIT)
    assert not isinstance(keeper.end_of(quiet).core, CoreReport)
    assert not (keeper.evidence(quiet) / "cores").exists()
    small = keeper.run("kill -SEGV $$", core=1 << 16)
    assert isinstance(small.core, CoreReport)
    assert [file.cut for file in small.core.files] == [True]
