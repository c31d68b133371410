"""The deadline of a lease: it is never after the end that the lease's giver knows."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.runtime.lease_deadline import LeaseDeadline

SECS, MARGIN = 6.0, 1.0


class Lost(Exception):
    """Stands for the end of the process."""


class Holder:
    def __init__(self) -> None:
        self.time = 100.0
        self.deadline = LeaseDeadline(SECS, MARGIN, self._lost, lambda: self.time)

    def _lost(self, late: float) -> None:
        assert late > 0
        raise Lost

    def acts(self) -> bool:
        try:
            self.deadline.check()
        except Lost:
            return False
        return True


def test_a_holder_acts_until_its_deadline_and_not_after_it() -> None:
    holder = Holder()
    assert holder.acts() and not holder.deadline.held, "before the lease nothing is checked"
    holder.deadline.extend(sent=100.0)
    holder.time = 105.0
    assert holder.acts() and holder.deadline.held and holder.deadline.left == 0
    holder.time = 105.01
    assert not holder.acts() and not holder.deadline.held


def test_a_renewal_counts_from_its_sending_and_is_too_late_after_the_deadline() -> None:
    holder = Holder()
    holder.deadline.extend(sent=100.0)
    holder.time = 104.0
    holder.deadline.extend(sent=101.0)
    holder.deadline.extend(sent=100.5)  # answered later, and changes nothing
    holder.time = 106.0
    assert holder.acts()
    holder.time = 106.1
    with pytest.raises(Lost):
        holder.deadline.extend(sent=105.9)
    assert not holder.acts(), "others may have acted meanwhile"


def test_nothing_is_checked_after_the_release() -> None:
    holder = Holder()
    holder.deadline.extend(sent=100.0)
    holder.deadline.release()
    holder.time = 1e6
    assert holder.acts() and not holder.deadline.held


@given(
    st.lists(st.tuples(st.floats(0, 8), st.floats(0, 8), st.floats(0, 4)), max_size=12),
    st.floats(0.9, 1.15),
)
def test_a_holder_never_acts_when_its_lease_has_ended(
    renewals: list[tuple[float, float, float]], rate: float
) -> None:
    """Renewals with any pauses and delays both ways; the giver's clock runs at another rate within
    the margin.
    """
    holder, ends = Holder(), None
    for pause, there, back in [(0.0, 0.0, 0.0), *renewals]:
        holder.time += pause
        acted = holder.acts()
        assert not (acted and ends is not None and holder.time > ends)
        if not acted:
            return
        sent = holder.time
        holder.time += there
        if ends is not None and holder.time > ends:
            return  # another holder has it
        ends = holder.time + SECS / rate
        holder.time += back
        try:
            holder.deadline.extend(sent)
        except Lost:
            return


def test_a_thread_ends_a_holder_that_does_nothing() -> None:
    time, ended = [100.0], threading.Event()
    deadline = LeaseDeadline(SECS, MARGIN, lambda late: ended.set(), lambda: time[0])
    deadline.extend(sent=100.0)
    deadline.watch()
    time[0] = 106.0
    assert ended.wait(60)
    deadline.release()
