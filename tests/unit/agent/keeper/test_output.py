"""The cap on a job's stored output: the head and tail are kept, and the number of dropped bytes is
recorded.
"""

import json
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ..conftest import Keeper, until

pytestmark = pytest.mark.process

New = Callable[..., Keeper]
MIB = 1 << 20


def _blocks(path: Path) -> int:
    return path.stat().st_blocks * 512


def _punches_holes(place: Path) -> bool:
    import ctypes

    with (place / "probe").open("wb") as f:
        f.write(b"x" * 65536)
        f.flush()
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.fallocate(f.fileno(), 3, ctypes.c_int64(0), ctypes.c_int64(4096)) == 0)


@pytest.fixture(autouse=True)
def _needs_holes(place: Path) -> None:
    if not _punches_holes(place):
        pytest.skip("this file system cannot punch holes; that case has a test of its own")


def test_a_gigabyte_of_output_leaves_head_and_tail_and_does_not_grow_the_keeper(
    keeper: Keeper,
) -> None:
    before = psutil.Process(keeper.process.pid).memory_info().rss
    token = keeper.launch("head -c 1073741824 /dev/zero; echo; echo the last line")
    exit_ = keeper.end_of(token)
    log = keeper.evidence(token) / "stdout.log"
    assert exit_.ok and exit_.stdout_bytes == log.stat().st_size == 1073741824 + 15
    assert _blocks(log) <= 17 * MIB
    assert exit_.dropped_bytes >= 1073741824 - 17 * MIB
    said = json.loads(keeper.text(token, "stdout.log.dropped"))
    assert said["from"] == 8 * MIB and said["to"] - said["from"] == exit_.dropped_bytes
    with log.open("rb") as f:
        f.seek(-14, 2)
        assert f.read() == b"the last line\n"
    assert psutil.Process(keeper.process.pid).memory_info().rss - before < 4 * MIB


def test_output_is_capped_while_the_job_runs(new_keeper: New) -> None:
    keeper = new_keeper(outputCap={"head": 64 * 1024, "tail": 64 * 1024})
    token = keeper.started("head -c 50000000 /dev/zero >&2; touch done; sleep NAP")
    until(lambda: (keeper.run_dir(token) / "done").exists())
    log = keeper.evidence(token) / "stderr.log"
    until(lambda: _blocks(log) <= 256 * 1024)
    assert log.stat().st_size == 50000000
    keeper.stop(token, grace=0)
    exit_ = keeper.end_of(token)
    assert (exit_.stderr_bytes, exit_.stdout_bytes) == (
        50000000,
        0,
    ) and exit_.dropped_bytes > 49_800_000


def test_what_fits_is_not_touched(new_keeper: New) -> None:
    keeper = new_keeper(outputCap={"head": 8192, "tail": 8192})
    token = keeper.launch("head -c 16384 /dev/zero")
    assert keeper.end_of(token).dropped_bytes == 0
    assert not (keeper.evidence(token) / "stdout.log.dropped").exists()


def test_head_and_tail_are_the_jobs_own_bytes(new_keeper: New) -> None:
    keeper = new_keeper(outputCap={"head": 8192, "tail": 8192})
    token = keeper.launch("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i + 1)); done")
    exit_ = keeper.end_of(token)
    whole = "".join(f"line {i}\n" for i in range(20000)).encode()
    kept = (keeper.evidence(token) / "stdout.log").read_bytes()
    said = json.loads(keeper.text(token, "stdout.log.dropped"))
    assert len(kept) == len(whole) == exit_.stdout_bytes
    assert (
        kept[: said["from"]] == whole[: said["from"]] and kept[said["to"] :] == whole[said["to"] :]
    )
    assert set(kept[said["from"] : said["to"]]) == {0}
    assert said["from"] == 8192 and 8192 <= len(whole) - said["to"] < 8192 + 4096


def test_the_next_keeper_goes_on_capping(new_keeper: New) -> None:
    cap = {"head": 64 * 1024, "tail": 64 * 1024}
    keeper = new_keeper(outputCap=cap)
    token = keeper.started(
        "head -c 3000000 /dev/zero; while [ ! -e go ]; do sleep 0.02; done; head -c 3000000 /dev/zero; echo end; exit 4"
    )
    until(lambda: (keeper.evidence(token) / "stdout.log.dropped").exists())
    keeper.kill()
    following = new_keeper(outputCap=cap)
    (following.run_dir(token) / "go").touch()
    exit_ = following.end_of(token)
    assert (exit_.code, exit_.stdout_bytes) == (4, 6000004) and exit_.dropped_bytes > 5_800_000
    assert _blocks(following.evidence(token) / "stdout.log") <= 256 * 1024


def test_the_next_keeper_knows_what_was_dropped_of_what_the_job_then_truncates(
    new_keeper: New,
) -> None:
    cap = {"head": 8192, "tail": 8192}
    keeper = new_keeper(outputCap=cap)
    token = keeper.started(
        "head -c 500000 /dev/zero; while [ ! -e go ]; do sleep 0.02; done; echo anew >/dev/stdout; sleep 0.7; echo more"
    )
    until(lambda: (keeper.evidence(token) / "stdout.log.dropped").exists())
    keeper.kill()
    (keeper.run_dir(token) / "go").touch()
    until(lambda: keeper.text(token) == "anew\n")
    following = new_keeper(outputCap=cap)
    assert following.end_of(token).dropped_bytes == 0
    said = json.loads(following.text(token, "stdout.log.dropped"))
    assert said["from"] >= said["to"] and following.text(token) == "anew\nmore\n"


def test_a_job_that_truncates_its_own_output_confuses_nobody(new_keeper: New) -> None:
    keeper = new_keeper(outputCap={"head": 8192, "tail": 8192})
    token = keeper.started(
        "head -c 500000 /dev/zero; while [ ! -e go ]; do sleep 0.02; done; echo anew >/dev/stdout; touch cut; sleep 0.7; echo more"
    )
    until(lambda: (keeper.evidence(token) / "stdout.log.dropped").exists())
    (keeper.run_dir(token) / "go").touch()
    exit_ = keeper.end_of(token)
    assert exit_.ok and exit_.stdout_bytes == 10 and exit_.dropped_bytes == 0
    assert keeper.text(token) == "anew\nmore\n"
    said = json.loads(keeper.text(token, "stdout.log.dropped"))
    assert said["from"] >= said["to"]
