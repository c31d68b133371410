"""The manual clock and the system clock."""

import pytest

from jobscribe.runtime.clock import ManualClock, SystemClock, boot_id


def test_time_passes_on_both_clocks_and_jumps_on_one() -> None:
    clock = ManualClock(wall=100.0, monotonic=5.0)
    clock.advance(2.5)
    assert (clock.wall(), clock.monotonic()) == (102.5, 7.5)
    clock.jump_wall(-50)
    assert (clock.wall(), clock.monotonic()) == (52.5, 7.5)
    with pytest.raises(ValueError, match="forward"):
        clock.advance(-1)


def test_the_systems_clock_goes_on() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    assert clock.monotonic() >= before
    assert clock.wall() > 1_600_000_000


def test_a_boot_has_one_name() -> None:
    assert boot_id() == boot_id()
    assert len(boot_id()) == 36
