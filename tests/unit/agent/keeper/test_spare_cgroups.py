"""Cgroups of version 1 that executions use in turn, by the real kernel: only those that nothing tells
from new ones.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobscribe.agent.keeper.linux.cgroups import Cgroup, Cgroups
from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs.exit_info import ExitInfo

from ..conftest import Keeper, until

pytestmark = pytest.mark.process


@pytest.fixture
def who() -> int:
    return -1


@pytest.fixture
def cgroups(tmp_path: Path) -> Iterator[Cgroups]:
    made = Cgroups(str(tmp_path), "v1")
    if "memory" not in {f.split("/")[4] for f in made.families}:
        made.close()
        pytest.skip(
            f"cgroups {made.state}: run the tests as root with version 1 of freezer and memory writable"
        )
    yield made
    until(lambda: all(c.remove() for c in made.existing()))
    made.close()


def make(cgroups: Cgroups, name: str) -> Cgroup:
    cgroup = cgroups.make(name, new=False)
    assert cgroup is not None and cgroup.memory is not None
    return cgroup


def run(cgroup: Cgroup, shell: str) -> None:
    """Run this in the cgroup until it has ended."""
    enter = "".join(f"echo 0 >'{path}'; " for path in cgroup.entries())
    subprocess.run(["/bin/sh", "-c", f'{enter}exec /bin/sh -c "$1"', "sh", shell], check=False)


def test_the_cgroup_of_one_execution_becomes_that_of_the_next(cgroups: Cgroups) -> None:
    first = make(cgroups, "a-1")
    run(first, "true")
    inodes = [os.stat(at).st_ino for at in (first.folder, str(first.memory))]
    assert cgroups.keep(first)
    assert not os.path.exists(first.folder) and not os.path.exists(str(first.memory))
    second = make(cgroups, "a-2")
    assert [os.stat(at).st_ino for at in (second.folder, str(second.memory))] == inodes
    assert second.folder.endswith("/job-a-2") and str(second.memory).endswith("/job-a-2")
    assert second.out_of_memory_kills() == 0 and second.pids() == []
    inside = subprocess.Popen(["sleep", "86400"])
    Path(second.entries()[-1]).write_text(str(inside.pid))
    assert second.pids() == [inside.pid] and cgroups.execution_of(inside.pid) == "a-2"
    second.kill()
    inside.wait(10)


CHANGES: dict[str, Callable[[Cgroup], object]] = {
    "a limit": lambda c: Path(f"{c.memory}/memory.limit_in_bytes").write_text("1000000000"),
    "a soft limit": lambda c: Path(f"{c.memory}/memory.soft_limit_in_bytes").write_text("1000000"),
    "swappiness": lambda c: Path(f"{c.memory}/memory.swappiness").write_text("7"),
    "no kills": lambda c: Path(f"{c.memory}/memory.oom_control").write_text("1"),
    "frozen": lambda c: Path(f"{c.folder}/freezer.state").write_text("FROZEN"),
    "a child": lambda c: Path(f"{c.folder}/of-the-job").mkdir(),
    "a child that counts memory": lambda c: Path(f"{c.memory}/of-the-job").mkdir(),
    "another mode": lambda c: Path(str(c.memory)).chmod(0o700),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_cgroup_that_a_job_changed_is_not_used_again(cgroups: Cgroups, change: str) -> None:
    cgroup = make(cgroups, "a-1")
    CHANGES[change](cgroup)
    assert not cgroups.keep(cgroup)
    assert os.path.isdir(cgroup.folder) and os.path.isdir(str(cgroup.memory))
    cgroup.thaw()


def test_a_cgroup_with_a_kill_is_not_used_again(cgroups: Cgroups) -> None:
    cgroup = make(cgroups, "a-1")
    limit = Path(f"{cgroup.memory}/memory.limit_in_bytes")
    limit.write_text(str(16 << 20))
    run(cgroup, "tail /dev/zero")
    assert cgroup.out_of_memory_kills() == 1
    limit.write_text("-1")
    assert not cgroups.keep(cgroup)


def test_a_cgroup_with_a_process_or_much_memory_is_not_used_again(
    cgroups: Cgroups, tmp_path: Path
) -> None:
    cgroup = make(cgroups, "a-1")
    inside = subprocess.Popen(["sleep", "86400"])
    tasks = Path(f"{cgroup.memory}/cgroup.procs")
    try:
        tasks.write_text(str(inside.pid))
        assert not cgroups.keep(cgroup)
    finally:
        inside.kill()
        inside.wait()
    until(lambda: not tasks.read_text())
    run(cgroup, f"head -c 8000000 /dev/zero >{tmp_path}/cached")
    assert not cgroups.keep(cgroup)
    (tmp_path / "cached").unlink()
    until(lambda: cgroups.keep(cgroup))  # nothing else was wrong with it
    assert (
        int(Path(f"{make(cgroups, 'a-2').memory}/memory.max_usage_in_bytes").read_text()) < 2 << 20
    )


def test_a_limited_execution_gets_a_new_one_and_few_stay_open(cgroups: Cgroups) -> None:
    made = [make(cgroups, f"a-{n}") for n in range(10)]
    assert [c.files is not None for c in made] == [True] * 8 + [False] * 2
    assert cgroups.keep(made[0]) and not cgroups.keep(made[9])
    limited = cgroups.make("b-1")
    assert limited is not None and limited.files is None
    made[1].use_once()  # it runs for long
    assert make(cgroups, "b-2").files is not None
    assert make(cgroups, "b-3").files is not None
    assert make(cgroups, "b-4").files is None


def test_a_spare_cgroup_that_was_removed_is_replaced(cgroups: Cgroups) -> None:
    """systemd removes empty cgroups below a unit when it restarts the unit."""
    assert cgroups.keep(make(cgroups, "a-1"))
    for spare in cgroups.existing():
        os.rmdir(spare.folder)
    second = make(cgroups, "a-2")
    assert os.path.isdir(second.folder) and os.path.isdir(str(second.memory))
    assert cgroups.keep(second)


def test_a_keeper_uses_them_and_the_next_keeper_removes_them(
    cgroups: Cgroups, new_keeper: Callable[..., Keeper]
) -> None:
    keeper = new_keeper(cgroups={"use": "v1"})
    families = [Path(f) for f in json.loads((keeper.folder / "keeper.json").read_text())["cgroups"]]

    def spares() -> list[int]:
        return [p.stat().st_ino for f in families for p in sorted(f.glob("spare-*"))]

    def launch(shell: str, **more: Any) -> Token:
        token = keeper.token()
        keeper.send(**keeper.order(token, shell), **{"slot": "held", **more})
        return token

    def run(shell: str, **more: Any) -> ExitInfo:
        return keeper.end_of(launch(shell, **more))

    def spared() -> list[int]:
        """Run until a run ends so soon that its cgroup is kept: a busy machine takes longer."""

        def kept() -> list[int] | None:
            assert run("exit 0").ok
            ends = time.monotonic() + 0.5  # it is kept after the report
            while len(spares()) != 2 and time.monotonic() < ends:
                time.sleep(0.01)
            return spares() if len(spares()) == 2 else None

        return until(kept)

    used = spared()
    assert run("exit 3").code == 3
    # a cgroup of a failure is removed, after the report
    until(lambda: not spares() and not [p for f in families for p in f.glob("job-*")])
    other = spared()
    assert other != used
    used = other
    assert run("exit 0", memory=64 << 20).ok and run("exit 0", slot=None).ok
    assert spares() == used
    token = launch("cat /proc/self/cgroup; sleep NAP; exit 0")
    keeper.next("started", token)
    until(lambda: keeper.text(token).count(f"/job-{token.name}") == 2)
    assert [(f / f"job-{token.name}").stat().st_ino for f in families] == used
    spared()
    keeper.kill()
    following = new_keeper(cgroups={"use": "v1"})
    until(lambda: not spares())
    following.stop(token, grace=0)
    following.end_of(token)
