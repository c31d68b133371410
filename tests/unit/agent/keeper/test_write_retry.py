"""Shortages of disk, descriptors and processes: a start fails with the reason, a record is delayed,
and no exit or process is lost.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobscribe.agent.keeper.loop.event_loop import Loop
from jobscribe.protocol.jobs.exit_info import FAULTS

from ..conftest import NOBODY, Keeper, until

pytestmark = pytest.mark.process

#: Number of jobs at once; `make soak` uses more.
MANY = 500 if os.environ.get("SOAK") else 60


@pytest.fixture
def small_disk(place: Path) -> Iterator[Path]:
    """Mount a 2 MB disk as the agent's folder."""
    folder = place / "agent"
    folder.mkdir()
    made = (
        os.getuid() == 0
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0777", "tmpfs", str(folder)],
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )
    if not made:
        folder.rmdir()
        pytest.skip("no tmpfs can be mounted here: run the tests as root where mounting is allowed")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _fill(folder: Path) -> Path:
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as f:
        while True:
            f.write(b"x" * 4096)
    assert os.statvfs(folder).f_bavail == 0
    return filler


def _open_files(keeper: Keeper) -> Counter[str] | None:
    """Return the files that the keeper has open, or None if the tests do not run as root. The
    smallest of some lists: it opens files for a moment. Two files do not count: the kernel's log,
    which the keeper closes when it cannot be read, and its own, which it opens for its first message.
    """
    if os.geteuid():
        return None
    return min((_listed(keeper) for _ in range(20)), key=Counter.total)


def _listed(keeper: Keeper) -> Counter[str]:
    files, folder = Counter[str](), f"/proc/{keeper.process.pid}/fd"
    others = ("/dev/kmsg", str(keeper.folder / "keeper.log"))
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            file = os.readlink(f"{folder}/{name}")
            files[file] += file not in others
    return files


def _children(keeper: Keeper) -> list[str]:
    pid = keeper.process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_an_end_that_the_disk_does_not_take_is_told_and_written_later(
    small_disk: Path, new_keeper: Callable[..., Keeper]
) -> None:
    keeper = new_keeper()
    token = keeper.started("sleep NAP; exit 7")
    stopped = keeper.started("trap 'exit 9' TERM; sleep NAP & wait")
    until(lambda: len(keeper.naps()) >= 4)
    filler = _fill(small_disk)
    keeper.wake()
    keeper.wake()
    ends = {keeper.end_of(token).code, keeper.end_of(stopped).code}
    assert 7 in ends
    assert not (keeper.evidence(token) / "exit.json").exists()
    failed = keeper.run("exit 0")
    assert (
        failed.source == "start"
        and failed.fault == "diskFull"
        and "No space left on device" in str(failed.detail)
    )
    assert FAULTS[failed.fault]
    filler.unlink()
    until(
        lambda: (
            (keeper.evidence(token) / "exit.json").exists()
            and (keeper.evidence(stopped) / "exit.json").exists()
        ),
        30,
    )
    assert json.loads((keeper.evidence(token) / "exit.json").read_text())["code"] == 7
    assert keeper.run("exit 5").code == 5
    assert keeper.log().count("; retrying") <= 4


def test_what_is_owed_is_written_when_the_keeper_is_told_to_end(
    small_disk: Path, new_keeper: Callable[..., Keeper]
) -> None:
    keeper = new_keeper()
    token = keeper.started("sleep NAP; exit 7")
    filler = _fill(small_disk)
    keeper.wake()
    assert keeper.end_of(token).code == 7
    time.sleep(2)  # wait until the keeper's next retry is well in the future
    filler.unlink()
    keeper.close()
    assert json.loads((keeper.evidence(token) / "exit.json").read_text())["code"] == 7


def test_no_process_left_fails_the_start_by_name_and_the_next_one_works(
    new_keeper: Callable[..., Keeper], who: int
) -> None:
    if who != NOBODY:
        pytest.skip(
            "root has no limit of processes; the half that runs as an ordinary user tries this"
        )
    keeper = new_keeper()
    runs = keeper.started("sleep NAP; exit 3")
    until(keeper.naps)
    keeper.process.send_signal(signal.SIGUSR2)
    failed = keeper.run("exit 0")
    assert (failed.source, failed.fault) == ("start", "noProcesses")
    assert "cannot create another process" in str(failed.detail) and "ulimit -u is 1" in str(
        failed.detail
    )
    keeper.process.send_signal(signal.SIGUSR2)
    assert keeper.run("exit 5").code == 5
    keeper.wake()
    assert keeper.end_of(runs).code == 3


def test_no_descriptor_left_fails_the_start_by_name(keeper: Keeper) -> None:
    keeper.process.send_signal(signal.SIGUSR1)
    failed = keeper.run("exit 0")
    assert failed.fault == "noDescriptors" and "ulimit -n is 12" in str(failed.detail)
    keeper.process.send_signal(signal.SIGUSR1)
    assert keeper.run("exit 5").code == 5


def test_a_run_directory_that_is_not_writable_is_a_fault_of_its_own(
    keeper: Keeper, who: int
) -> None:
    if who < 0 and os.getuid() == 0:
        pytest.skip("root may write everywhere; the half that runs as an ordinary user tries this")
    locked = keeper.place / "locked"
    locked.mkdir(mode=0o555)
    os.chown(locked, 0 if os.getuid() == 0 else -1, -1)
    failed = keeper.run("exit 0", run_dir=locked)
    assert failed.fault == "notWritable"


def test_many_jobs_take_one_descriptor_each_and_leave_nothing(keeper: Keeper) -> None:
    keeper.run("exit 0")
    before, children = _open_files(keeper), _children(keeper)
    tokens = [keeper.started("( sleep 0.01 & ); sleep NAP") for _ in range(MANY)]
    until(lambda: len(keeper.naps()) == 2 * MANY, 60)
    meanwhile = _open_files(keeper)
    if before is not None and meanwhile is not None:
        assert meanwhile.total() == before.total() + MANY, (before, meanwhile)
    for token in tokens:
        keeper.stop(token, grace=0)
    for token in tokens:
        keeper.end_of(token)
    assert _children(keeper) == children  # no zombies
    after = before

    def is_as_before() -> bool:
        nonlocal after
        after = _open_files(keeper)
        return after is None or before is None or after.total() == before.total()

    with contextlib.suppress(AssertionError):
        until(is_as_before)
    assert is_as_before(), f"{before} before, {after} after"


def test_a_failure_in_the_loop_is_said_and_not_for_ever(keeper: Keeper) -> None:
    """Invalid orders of every kind neither flood the log nor end a job."""
    token = keeper.started("sleep NAP; exit 3")
    for _ in range(200):
        keeper.send(do="stop", name=token.name, reason="cancel", grace="never")
        keeper.send(do=["start"])
    keeper.wake()
    assert keeper.end_of(token).code == 3
    size = sum(p.stat().st_size for p in keeper.folder.glob("keeper.log*"))
    assert size <= 3 << 20
    (keeper.folder / "run").rename(keeper.folder / "elsewhere")  # now starts fail
    failed = keeper.run("exit 0")
    assert failed.source == "start" and "evidence" in str(failed.detail)
    (keeper.folder / "elsewhere").rename(keeper.folder / "run")
    assert keeper.run("exit 5").code == 5


def test_what_fails_again_and_again_is_said_now_and_then(capfd: pytest.CaptureFixture[str]) -> None:
    loop = Loop()

    def fails() -> None:
        raise RuntimeError("always the same")

    try:
        for _ in range(700):
            loop._call(fails)
        loop._call(lambda: 1 / 0)
    finally:
        loop.close()
    said = capfd.readouterr().err
    assert (
        said.count("always the same") == 2 * 3
    )  # the first, 301st and 601st failure are logged, each with its traceback
    assert said.count("ZeroDivisionError") == 1
