"""The steps of the holder of a lease: from when it counts, and what follows a lost connection."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobscribe.db.postgres.lease_protocol import (
    RETRY_SECS,
    Answer,
    Commit,
    Connect,
    Find,
    Lease,
    LeaseHolder,
    Lost,
    Pause,
    Renew,
    Step,
    Steps,
    TakeAgain,
    may_take,
    may_take_again,
    perform,
    take,
)
from jobscribe.db.store.head_file import NOTHING
from jobscribe.runtime.lease_deadline import LeaseDeadline

SECS, MARGIN = 6.0, 1.0


class Late(Exception):
    """Stands for the end of the process."""


class Process:
    """A holder whose steps get the given answers, each after a delay of `secs`."""

    def __init__(self, secs: float = 0.0) -> None:
        def lost(late: float) -> None:
            raise Late

        self.time, self.secs, self.steps = 100.0, secs, list[Step]()
        self.deadline = LeaseDeadline(SECS, MARGIN, lost, lambda: self.time)
        self.holder = LeaseHolder(7, self.deadline)

    def run(self, steps: Steps[Any], *answers: Answer) -> Any:
        given: Iterator[Answer] = iter(answers)

        def act(step: Step) -> Answer:
            self.steps.append(step)
            self.time += self.secs
            return None if isinstance(step, Pause) else next(given)

        result = perform(steps, act)
        assert next(given, "all used") == "all used"
        return result


@pytest.mark.parametrize(
    ("steps", "answers"),
    [
        (lambda p: take(p.deadline), [Lease(7, NOTHING)]),
        (lambda p: p.holder.renew(), [True]),
        (lambda p: p.holder.commit(NOTHING), [True]),
    ],
    ids=["take", "renew", "commit"],
)
def test_a_lease_counts_from_the_sending_of_each_step(
    steps: Callable[[Process], Steps[Any]], answers: list[Answer]
) -> None:
    process = Process(secs=2.0)
    process.run(steps(process), *answers)
    assert process.deadline.left == SECS - MARGIN - 2.0


def test_a_lease_that_is_taken_again_counts_from_the_sending_on_the_new_connection() -> None:
    process = Process(secs=2.0)
    assert process.run(process.holder.take_again(), True, Lease(9, NOTHING)) == Lease(9, NOTHING)
    assert process.deadline.left == SECS - MARGIN - 2.0 and process.holder.epoch == 9


def test_an_answer_after_the_deadline_comes_too_late() -> None:
    process = Process()
    process.run(process.holder.renew(), True)
    process.secs = 5.5
    with pytest.raises(Late):
        process.run(process.holder.renew(), True)


@pytest.mark.parametrize("found", [True, False])
def test_an_unknown_outcome_is_read_after_the_next_epoch_is_taken(found: bool) -> None:
    process = Process()
    holder = process.holder
    assert process.run(holder.commit(NOTHING), Lost(), True, Lease(8, NOTHING), found) == found
    assert process.steps == [Commit(7, NOTHING), Connect(), TakeAgain(), Find()]
    assert process.run(holder.commit(NOTHING), True) is True
    assert process.steps[-1] == Commit(8, NOTHING)


def test_every_failure_while_an_outcome_is_unknown_is_tried_again() -> None:
    process = Process()
    answers = [Lost(), True, Lost(), True, Lease(8, NOTHING), Lost(), True, Lease(9, NOTHING), True]
    assert process.run(process.holder.outcome(), *answers) is True
    pause = Pause(RETRY_SECS)
    tried = [[Connect()], [Connect(), TakeAgain()], [Connect(), TakeAgain(), Find()]]
    last = [Connect(), TakeAgain(), Find()]
    assert process.steps == [step for steps in tried for step in (*steps, pause)] + last


def test_a_holder_that_lost_its_lease_still_learns_the_outcome() -> None:
    process = Process()
    assert process.run(process.holder.commit(NOTHING), Lost(), True, None, True) is True
    assert process.holder.lost and process.holder.epoch == 7
    other = Process()
    other.run(other.holder.renew(), False)
    assert other.holder.lost and other.steps == [Renew(7)]


def test_a_lost_renewal_changes_nothing() -> None:
    process = Process()
    process.run(process.holder.renew(), Lost())
    assert not process.holder.lost and not process.deadline.held


def test_without_standbys_there_is_no_deadline() -> None:
    holder = LeaseHolder(1, None)
    assert perform(holder.commit(NOTHING), lambda step: True) is True
    assert perform(take(None), lambda step: None) is None


def test_a_lease_is_free_if_its_holder_can_no_longer_act() -> None:
    def may(holder: str = "first", dead: str | None = None, **more: bool) -> bool:
        state = {"released": False, "expired": False, "gone": False} | more
        return may_take("second", holder, dead=dead, **state)

    assert not may() and not may(dead="third")
    assert may(released=True) and may(expired=True) and may(gone=True)
    assert may(dead="first") and may(holder="second")
    assert may_take_again("first", "first", released=False)
    assert not may_take_again("first", "first", released=True)
    assert not may_take_again("first", "second", released=False)
