"""Cgroups of executions: they are created, found by name, emptied and removed. Other cgroups stay
untouched, and jobs also run without cgroups.

Both cgroup versions are tested with the real kernel where this machine allows it.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from jobscribe.agent.keeper.linux.cgroups import Cgroup, Cgroups
from jobscribe.runtime import processes
from jobscribe.runtime.execution import keeper_ledger

from ..conftest import Keeper, until

pytestmark = pytest.mark.process

#: Start an orphan without its session, environment, lock and parent, so that nothing identifies it.
#: The test replaces NAP.
SHED = "( setsid env -i /bin/sh -c 'exec 0<&- 1>&- 2>&- 9>&-; exec /bin/sleep NAP' & ); sleep 0.2"


@pytest.fixture
def who() -> int:
    return -1


@pytest.fixture(params=["v1", "v2"])
def version(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    tried = Cgroups(str(tmp_path), request.param)
    tried.close()
    if not tried.families:
        pytest.skip(
            f"cgroups {tried.state}: run the tests as root with cgroups of this version mounted writable, or under Delegate=yes"
        )
    return str(request.param)


@pytest.fixture
def cgroups(version: str, tmp_path: Path) -> Iterator[Cgroups]:
    made = Cgroups(str(tmp_path), version)
    yield made
    until(lambda: all(c.remove() for c in made.existing()))
    made.close()
    assert not any(os.path.exists(f) for f in made.families)


@pytest.fixture
def keeper(version: str, new_keeper: Callable[..., Keeper]) -> Keeper:
    return new_keeper(cgroups={"use": version})


def _families(keeper: Keeper) -> list[Path]:
    found = [Path(f) for f in json.loads((keeper.folder / "keeper.json").read_text())["cgroups"]]
    assert found
    return found


def _jobs(keeper: Keeper) -> list[str]:
    return sorted({p.name for f in _families(keeper) for p in f.glob("job-*")})


def _entered(cgroup: Cgroup, *command: str) -> subprocess.Popen[bytes]:
    """Start a process that enters the cgroup as a job's process does."""
    enter = "".join(f"echo 0 >'{path}'; " for path in cgroup.entries())
    process = subprocess.Popen(["/bin/sh", "-c", enter + 'exec "$@"', "sh", *command])
    until(lambda: process.pid in cgroup.pids())
    return process


# ---- cgroups without a keeper


def test_who_is_in_is_told_and_killed_and_then_it_can_be_removed(cgroups: Cgroups) -> None:
    cgroup = cgroups.make("a-1")
    assert cgroup is not None and cgroup.pids() == []
    process = _entered(cgroup, "sh", "-c", "trap '' TERM; sleep 86400 & sleep 86400")
    until(lambda: len(cgroup.pids()) == 3)
    assert not cgroup.remove() and cgroups.execution_of(process.pid) == "a-1"
    cgroup.kill()
    assert process.wait(60) == -signal.SIGKILL
    until(cgroup.remove)
    assert cgroup.pids() == [] and cgroups.existing() == []


def test_those_that_a_job_made_below_its_own_are_part_of_it(cgroups: Cgroups) -> None:
    cgroup = cgroups.make("a-1")
    assert cgroup is not None
    below = Path(cgroup.folder) / "of-the-job"
    below.mkdir()
    inner = Cgroup("x", cgroup.version, str(below), None)
    process = _entered(inner, "sleep", "86400")
    assert cgroup.pids() == [process.pid] and not cgroup.remove()
    assert cgroups.execution_of(process.pid) == "a-1"
    cgroup.kill()
    process.wait(60)
    until(cgroup.remove)


def test_one_that_was_left_frozen_is_thawed(cgroups: Cgroups) -> None:
    cgroup = cgroups.make("a-1")
    assert cgroup is not None
    process = _entered(cgroup, "sh", "-c", "while :; do :; done")
    cgroup._freeze(True)
    ticks = psutil.Process(process.pid).cpu_times().user
    cgroup.thaw()
    until(lambda: psutil.Process(process.pid).cpu_times().user > ticks)
    cgroup.kill()
    process.wait(60)


def test_a_forged_note_leads_nowhere(cgroups: Cgroups, tmp_path: Path) -> None:
    """A job can write arbitrary data into its own evidence."""
    cgroup = cgroups.make("a-1")
    assert cgroup is not None
    other = str(Path(cgroup.folder).parents[1])
    noted = cgroup.record()
    assert cgroups.find("a-1", noted) is not None and cgroups.find("a-2", noted) is None
    elsewhere = tmp_path / os.path.basename(os.path.dirname(cgroup.folder)) / "job-a-2"
    elsewhere.mkdir(parents=True)
    forged = [
        {**noted, "folder": other},
        {**noted, "folder": f"{other}/"},
        {**noted, "folder": f"{cgroup.folder}/../../job-a-2"},
        {**noted, "memory": other},
        {**noted, "others": [other]},
        {**noted, "folder": str(elsewhere)},
        {**noted, "folder": 7},
        {**noted, "version": "2"},
        [other],
        "x",
    ]
    for said in forged:
        assert cgroups.find("a-2", said) is None, said
        found = cgroups.find("a-1", said)  # found by its name
        assert found is None or found.folder == cgroup.folder, said


def test_where_none_may_be_made_there_are_none(tmp_path: Path) -> None:
    off = Cgroups(str(tmp_path), "off")
    assert (
        off.make("a-1"),
        off.families,
        off.existing(),
        off.state,
        off.execution_of(os.getpid()),
    ) == (
        None,
        [],
        [],
        "not wanted",
        None,
    )


# ---- cgroups with a keeper


def test_a_job_is_inside_before_it_does_anything(keeper: Keeper) -> None:
    token = keeper.started(
        "cat /proc/self/cgroup; grep -h . /proc/[0-9]*/cgroup >/dev/null 2>&1; sleep NAP"
    )
    until(lambda: f"job-{token.name}" in keeper.text(token))
    (pid, _) = keeper_ledger.load(str(keeper.folder)).entries[token.name].main or (0, 0)
    assert f"job-{token.name}" in Path(f"/proc/{pid}/cgroup").read_text()
    assert _jobs(keeper) == [f"job-{token.name}"]
    keeper.stop(token, grace=0)
    keeper.end_of(token)
    until(lambda: _jobs(keeper) == [])


def test_what_shed_everything_ends_with_its_own_run_while_others_run_on(keeper: Keeper) -> None:
    other = keeper.started("sleep NAP; exit 0")
    until(lambda: len(keeper.naps()) == 2)
    others = {p.pid for p in keeper.naps()}
    exit_ = keeper.run(f"{SHED}; exit 3")
    assert (exit_.code, exit_.survivors_killed) == (3, 1)
    assert {p.pid for p in keeper.naps()} == others
    keeper.stop(other, grace=0)
    keeper.end_of(other)


def test_a_stop_ends_what_shed_everything_while_others_run_on(keeper: Keeper) -> None:
    other = keeper.started("sleep NAP; exit 0")
    token = keeper.started(f"{SHED}; trap '' TERM; while :; do /bin/sleep NAP; done")
    until(lambda: len(keeper.naps()) == 5)
    keeper.stop(token, grace=0.2)
    assert keeper.end_of(token).stop_reason == "cancel"
    assert len(keeper.naps()) == 2
    keeper.stop(other, grace=0)
    keeper.end_of(other)


def test_the_next_keeper_finds_what_shed_everything_in_the_cgroup_and_removes_it(
    version: str, new_keeper: Callable[..., Keeper]
) -> None:
    keeper = new_keeper(cgroups={"use": version})
    stays = keeper.started("sleep NAP; exit 0")
    token = keeper.started(f"{SHED}; sleep NAP; exit 3")
    until(lambda: len(keeper.naps()) == 5)
    keeper.kill()
    following = new_keeper(cgroups={"use": version})
    following.stop(token, grace=0.2)
    assert following.end_of(token).stop_reason == "cancel"
    assert len(following.naps()) == 2
    following.stop(stays, grace=0)
    following.end_of(stays)
    until(lambda: _jobs(following) == [])


def test_a_job_that_the_earlier_keeper_left_frozen_goes_on(
    version: str, new_keeper: Callable[..., Keeper]
) -> None:
    """The keeper was killed between freeze and thaw."""
    keeper = new_keeper(cgroups={"use": version})
    token = keeper.started("sleep NAP; exit 3")
    until(lambda: len(keeper.naps()) == 2)
    keeper.kill()
    cgroup = Cgroups(str(keeper.folder), version).find(token.name, None)
    assert cgroup is not None
    cgroup._freeze(True)
    following = new_keeper(cgroups={"use": version})
    following.wake()
    exit_ = following.end_of(token)
    assert (exit_.code, exit_.source) == (3, "keeper")


def test_what_joined_the_cgroup_from_elsewhere_is_part_of_the_job(keeper: Keeper) -> None:
    """A daemon started the process for the job, so only its cgroup identifies it."""
    token = keeper.started("sleep NAP; exit 3")
    family = _families(keeper)[0]
    joined = _entered(
        Cgroup(
            "x", 1 if (family / "tasks").exists() else 2, str(family / f"job-{token.name}"), None
        ),
        "sleep",
        "86400",
    )
    try:
        keeper.wake()
        exit_ = keeper.end_of(token)
        assert (exit_.code, exit_.survivors_killed) == (3, 1)
        assert joined.wait(5) == -signal.SIGKILL
    finally:
        joined.kill()
        joined.wait()


@pytest.mark.parametrize("forgotten", [False, True], ids=["still known", "forgotten"])
def test_what_an_earlier_life_left_is_ended_and_removed_by_the_next_keeper(
    version: str,
    forgotten: bool,
    new_keeper: Callable[..., Keeper],
) -> None:
    """The exit is stored, but the keeper was killed before it removed the cgroup."""
    keeper = new_keeper(cgroups={"use": version})
    token = keeper.launch("exit 3")
    keeper.end_of(token)
    if forgotten:
        keeper.send(do="forget", names=[token.name])
        until(lambda: not keeper_ledger.load(str(keeper.folder)).entries)
    until(lambda: _jobs(keeper) == [])
    keeper.kill()
    maker = Cgroups(str(keeper.folder), version)
    left = maker.make(token.name)
    assert left is not None
    process = _entered(left, "sleep", "86400")
    try:
        following = new_keeper(cgroups={"use": version})
        assert process.wait(60) == -signal.SIGKILL
        until(lambda: _jobs(following) == [])
        assert "were left in the cgroup" in following.log()
    finally:
        process.kill()
        process.wait()


def test_a_keeper_in_another_place_ends_and_removes_what_an_earlier_one_left(
    version: str, new_keeper: Callable[..., Keeper]
) -> None:
    """This holds even if the new keeper uses no cgroups."""
    keeper = new_keeper(cgroups={"use": version})
    token = keeper.started(f"{SHED}; sleep NAP; exit 3")
    until(lambda: len(keeper.naps()) == 3)
    families = _families(keeper)
    keeper.kill()
    following = new_keeper(cgroups={"use": "off"})
    following.stop(token, grace=0.2)
    following.end_of(token)
    assert following.naps() == []
    until(lambda: not any(p.exists() for f in families for p in f.glob("job-*")))


def test_a_job_that_moves_itself_out_is_found_by_other_means(keeper: Keeper) -> None:
    out = _families(keeper)[0].parent / "cgroup.procs"
    token = keeper.started(f"setsid sh -c 'echo 0 >{out} && exec sleep NAP' & sleep 0.3; exit 3")
    assert keeper.end_of(token).code == 3
    assert keeper.naps() == []


def test_a_keeper_that_ends_leaves_no_cgroup(
    version: str, new_keeper: Callable[..., Keeper]
) -> None:
    keeper = new_keeper(cgroups={"use": version})
    keeper.started("sleep NAP; exit 3")
    families = _families(keeper)
    keeper.close()
    assert not any(f.exists() for f in families)


def test_a_fork_bomb_ends_at_the_limit_and_with_its_job(
    version: str, new_keeper: Callable[..., Keeper]
) -> None:
    keeper = new_keeper(cgroups={"use": version, "pids": 40})
    enabled = [f / "cgroup.subtree_control" for f in _families(keeper)]
    if not any("/pids/" in str(f) or (f.exists() and "pids" in f.read_text()) for f in enabled):
        pytest.skip("no pids cgroup can be made here")
    token = keeper.started("f() { sleep NAP & f & wait; }; f; f")
    until(lambda: len(keeper.naps()) >= 15)
    time.sleep(0.3)  # time to fork further
    assert len(keeper.naps()) <= 40
    keeper.stop(token, grace=0)
    keeper.end_of(token)
    assert keeper.naps() == []


def test_when_somebody_took_the_family_away_it_is_made_again(keeper: Keeper) -> None:
    """systemd removes empty cgroups below a unit when it restarts the unit."""
    assert keeper.run("exit 4").code == 4
    until(lambda: _jobs(keeper) == [])
    for family in _families(keeper):
        family.rmdir()
    token = keeper.launch("cat /proc/self/cgroup; exit 5")
    assert keeper.end_of(token).code == 5
    assert f"job-{token.name}" in keeper.text(token)


def test_when_making_one_fails_jobs_start_without_and_it_is_said_once(
    new_keeper: Callable[..., Keeper],
) -> None:
    keeper = new_keeper(cgroups={"use": "v2"})
    if keeper.hello["cgroups"].startswith("none"):
        pytest.skip(
            "only version 2 can be told to make no more: run the tests as root where it is mounted writable, or under Delegate=yes"
        )
    (_families(keeper)[0] / "cgroup.max.descendants").write_text("0")
    for code in (5, 6):
        assert keeper.run(f"exit {code}").code == code
    assert keeper.log().count("cannot create a cgroup") == 1


def test_where_no_process_can_be_made_inside_it_moves_itself_in(
    new_keeper: Callable[..., Keeper], tmp_path: Path
) -> None:
    """A seccomp filter without clone3 causes this."""
    keeper = new_keeper(cgroups={"use": "v2"}, env={"JOBSCRIBE_TEST_NO_CLONE3": "1"})
    if keeper.hello["cgroups"].startswith("none"):
        pytest.skip(
            "this is about version 2: run the tests as root where it is mounted writable, or under Delegate=yes"
        )
    token = keeper.launch("cat /proc/self/cgroup; exit 5")
    assert keeper.end_of(token).code == 5
    assert f"job-{token.name}" in keeper.text(token)
    assert keeper.run("exit 6").code == 6
    assert keeper.log().count("each job moves itself in") == 1


def test_the_script_by_hand_does_the_same_without_the_cgroup(keeper: Keeper) -> None:
    token = keeper.launch("echo done; exit 4")
    assert keeper.end_of(token).code == 4
    by_hand = subprocess.run(
        ["/bin/sh", str(keeper.evidence(token) / "script.sh")],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (by_hand.returncode, by_hand.stdout, by_hand.stderr) == (4, "done\n", "")
    assert processes.alive(keeper.process.pid, processes.start_ticks(keeper.process.pid) or 0)
