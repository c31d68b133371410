"""The lease of an agent key: one owner at a time across machines, without file locks and without
clock comparison.
"""

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobscribe.agent.keeper import lease as leases


class Clock:
    """A clock for a watcher: a pause returns at once and may run a step that changes the files."""

    def __init__(self, *happens) -> None:
        self.now, self.happens = 100.0, list(happens)

    def look(self) -> float:
        return self.now

    def pause(self, secs: float) -> None:
        self.now += secs
        if self.happens:
            self.happens.pop(0)()


def elsewhere(folder: Path, number: int = 1, count: int = 5, **more: object) -> Path:
    """Write a lease that a keeper on another machine holds; return its path."""
    folder.mkdir(exist_ok=True)
    path = folder / str(number)
    said = {
        "number": number,
        "pid": os.getpid(),
        "startTicks": 1,
        "bootId": "b",
        "life": "b",
        "machine": "other 1",
        "host": "login2",
        "state": "held",
        "count": count,
    }
    path.write_text(json.dumps({**said, **more}).ljust(1023) + "\n")
    return path


def watched(folder: Path, clock: Clock) -> bool:
    return leases.check_owner(str(folder), 30.0, clock=clock.look, pause=clock.pause)[1]


def test_who_takes_it_first_owns_it_and_nobody_else(tmp_path: Path) -> None:
    folder = str(tmp_path / "lease")
    mine = leases.take(folder, 0)
    assert mine is not None and mine.number == 1
    assert leases.take(folder, 0) is None
    assert mine.renew() == leases.HELD
    seen, lives = leases.check_owner(folder)
    assert lives and seen is not None and seen.number == 1 and seen.host == os.uname().nodename


@pytest.mark.process
def test_of_many_that_want_it_one_gets_it(tmp_path: Path) -> None:
    folder = str(tmp_path / "lease")
    elsewhere(tmp_path / "lease", 7)
    with multiprocessing.get_context("fork").Pool(8) as pool:
        for _ in range(20):
            over = max(leases.numbers(folder))
            got = pool.map(_takes, [(folder, over)] * 8)
            assert sum(got) == 1
            assert max(leases.numbers(folder)) == over + 1


def _takes(wanted: tuple[str, int]) -> bool:
    return leases.take(*wanted) is not None


def test_who_looked_before_another_took_it_does_not_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "lease")
    elsewhere(tmp_path / "lease", 7)
    before = leases.numbers(folder)
    assert leases.take(folder, 7) is not None
    monkeypatch.setattr(leases, "numbers", lambda _folder: before)
    assert leases.take(folder, 7) is None


def test_what_was_given_back_is_free_at_once(tmp_path: Path) -> None:
    folder = str(tmp_path / "lease")
    first = leases.take(folder, 0)
    assert first is not None
    first.release()
    clock = Clock()
    assert not watched(tmp_path / "lease", clock) and clock.now == 100.0
    assert leases.take(folder, 1) is not None


@pytest.mark.process
def test_an_owner_that_is_over_on_this_machine_need_not_be_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "lease"
    subprocess.run(
        [
            sys.executable,
            "-c",
            f"from jobscribe.agent.keeper import lease; lease.take({str(folder)!r}, 0)",
        ],
        check=True,
    )
    clock = Clock()
    assert not watched(folder, clock) and clock.now == 100.0


def test_a_machine_that_was_started_again_has_no_owner_from_before(tmp_path: Path) -> None:
    elsewhere(tmp_path / "lease", machine=leases.this_machine())
    clock = Clock()
    assert leases.this_machine() != ""
    assert not watched(tmp_path / "lease", clock) and clock.now == 100.0


def test_an_owner_elsewhere_lives_as_soon_as_it_counts(tmp_path: Path) -> None:
    folder = tmp_path / "lease"
    elsewhere(folder)
    clock = Clock(lambda: None, lambda: None, lambda: elsewhere(folder, count=6))
    assert watched(folder, clock)
    assert clock.now < 102


def test_an_owner_elsewhere_that_does_not_count_has_left_whatever_the_clocks_say(
    tmp_path: Path,
) -> None:
    """The file's time may be in the future or a year ago: only this machine's monotonic clock
    counts.
    """
    for at in (4e9, 1.0):
        path = elsewhere(tmp_path / "lease", startedAt=at)
        os.utime(path, (at, at))
        clock = Clock()
        assert not watched(tmp_path / "lease", clock)
        assert 130.0 <= clock.now < 131.0


def test_an_owner_that_stood_still_finds_that_it_was_taken(tmp_path: Path) -> None:
    folder = str(tmp_path / "lease")
    slow = leases.take(folder, 0)
    assert slow is not None
    fast = leases.take(folder, 1)
    assert fast is not None
    assert slow.renew() == leases.TAKEN
    assert fast.renew() == leases.HELD
    slow.release()
    seen, lives = leases.check_owner(folder)
    assert lives and seen is not None and seen.number == 2


def test_either_trace_of_the_next_owner_is_enough(tmp_path: Path) -> None:
    """A network file system may show an outdated folder, or the owner may have overwritten the
    mark.
    """
    folder = tmp_path / "lease"
    slow = leases.take(str(folder), 0)
    assert slow is not None
    leases.take(str(folder), 1)
    slow._write()
    assert slow.renew() == leases.TAKEN
    (folder / "2").unlink()
    elsewhere(folder, 1, state="taken")
    assert slow.renew() == leases.TAKEN


def test_an_owner_elsewhere_is_asked_to_end(tmp_path: Path) -> None:
    folder = str(tmp_path / "lease")
    mine = leases.take(folder, 0)
    assert mine is not None
    seen = leases.newest(folder)
    assert seen is not None
    leases._write_line(f"{folder}/1", {**seen.fields, "state": leases.ASKED})
    assert mine.renew() == leases.ASKED
    mine.release()
    assert leases.ask_to_end(folder, seen, 1.0, 1.0)


def test_who_does_not_answer_and_does_not_count_has_left(tmp_path: Path) -> None:
    elsewhere(tmp_path / "lease")
    seen = leases.newest(str(tmp_path / "lease"))
    assert seen is not None
    assert leases.ask_to_end(str(tmp_path / "lease"), seen, 0.5, 60.0)
    said = json.loads((tmp_path / "lease" / "1").read_text())
    assert said["state"] == leases.ASKED and said["host"] == "login2"


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\0" * 1024])
def test_a_lease_that_says_nothing_is_watched_like_any_other(tmp_path: Path, raw: bytes) -> None:
    folder = tmp_path / "lease"
    folder.mkdir()
    (folder / "3").write_bytes(raw)
    clock = Clock()
    assert not watched(folder, clock) and clock.now >= 130.0
    assert leases.take(str(folder), 3) is not None


def test_a_lease_is_nobody_elses_to_read(tmp_path: Path) -> None:
    leases.take(str(tmp_path / "lease"), 0)
    assert (tmp_path / "lease").stat().st_mode & 0o077 == 0 and (
        tmp_path / "lease" / "1"
    ).stat().st_mode & 0o077 == 0


def test_old_numbers_go(tmp_path: Path) -> None:
    folder = str(tmp_path / "lease")
    for over in range(5):
        leases.take(folder, over)
    assert sorted(leases.numbers(folder)) == [4, 5]
