"""The checker of recorded histories: it accepts what one job can answer, and nothing else."""

import itertools
import random

import pytest
from job_history import Request, violation


def requests(*some: tuple[str, float, float | None, int | None, str | None]) -> list[Request]:
    return [Request(*r) for r in some]  # type: ignore[arg-type]


PLAIN = requests(
    ("status", 0, 1, 0, "missing"),
    ("submit", 2, 3, 7, "pending"),
    ("status", 4, 5, 7, "running"),
    ("submit", 6, 7, 7, "running"),
    ("status", 8, 9, 7, "completed"),
)


def test_a_plain_history_has_an_order() -> None:
    assert violation(PLAIN) is None and violation([]) is None


@pytest.mark.parametrize(
    "history",
    [
        # overlapping answers may have any order
        [
            ("submit", 0, 1, 7, "pending"),
            ("status", 2, 9, 7, "pending"),
            ("status", 3, 4, 7, "running"),
        ],
        [("status", 0, 9, 0, "missing"), ("submit", 1, 2, 7, "pending")],
        # a request without an answer may take effect late, or never
        [
            ("submit", 0, None, None, None),
            ("status", 1, 2, 0, "missing"),
            ("status", 3, 4, 7, "running"),
        ],
        [("submit", 0, None, None, None), ("status", 1, 2, 0, "missing")],
        [
            ("submit", 0, 1, 7, "pending"),
            ("cancel", 2, None, None, None),
            ("status", 3, 4, 7, "running"),
            ("status", 5, 6, 7, "canceled"),
        ],
        # a cancel after the end, and one that came too late
        [("submit", 0, 1, 7, "completed"), ("cancel", 2, 3, 7, "completed")],
        [
            ("submit", 0, 1, 7, "running"),
            ("cancel", 2, 3, 7, "running"),
            ("status", 4, 5, 7, "error"),
        ],
        [
            ("submit", 0, 1, 7, "running"),
            ("cancel", 2, 3, 7, "canceled"),
            ("status", 4, 5, 7, "canceled"),
        ],
    ],
)
def test_an_order_is_found(
    history: list[tuple[str, float, float | None, int | None, str | None]],
) -> None:
    assert violation(requests(*history)) is None


@pytest.mark.parametrize(
    "history",
    [
        # an acknowledged run is lost
        [("submit", 0, 1, 7, "pending"), ("status", 2, 3, 0, "missing")],
        # a stale answer
        [
            ("submit", 0, 1, 7, "pending"),
            ("status", 2, 3, 7, "running"),
            ("status", 4, 5, 7, "pending"),
        ],
        [
            ("submit", 0, 1, 7, "running"),
            ("status", 2, 3, 7, "completed"),
            ("status", 4, 5, 7, "running"),
        ],
        [
            ("submit", 0, 1, 7, "running"),
            ("cancel", 2, 3, 7, "canceled"),
            ("status", 4, 5, 7, "running"),
        ],
        # an end changes
        [("submit", 0, 1, 7, "completed"), ("status", 2, 3, 7, "error")],
        [("submit", 0, 1, 7, "completed"), ("cancel", 2, 3, 7, "canceled")],
        # a second run, and a job that nobody submitted
        [("submit", 0, 1, 7, "pending"), ("submit", 2, 3, 8, "pending")],
        [("status", 0, 1, 7, "pending"), ("submit", 2, 3, 7, "pending")],
    ],
)
def test_contradictions_are_found(
    history: list[tuple[str, float, float | None, int | None, str | None]],
) -> None:
    found = violation(requests(*history))
    assert found is not None and "no order" in found


def test_histories_of_a_real_job_have_an_order_and_a_swap_of_answers_has_none() -> None:
    """Random clients of a job that decides each request at a random moment between its times."""
    swaps = 0
    for seed in range(300):
        r = random.Random(seed)
        moments = sorted(r.random() * 100 for _ in range(12))
        ends = ("pending", "running", r.choice(("completed", "error")))
        state, history = "missing", []
        for at in moments:
            kind = r.choice(("submit", "status", "status", "status", "cancel"))
            if state != "missing" and r.random() < 0.4 and state in ends[:2]:
                state = ends[ends.index(state) + 1]
            if kind == "submit" and state == "missing":
                state = "pending"
            elif kind == "cancel" and state in ends[:2]:
                state = "canceled"
            begin, end = at - r.random() * 20, at + r.random() * 20
            lost = r.random() < 0.2
            serial = 0 if state == "missing" else 7
            history.append(
                Request(kind, begin) if lost else Request(kind, begin, end, serial, state)
            )
        assert violation(history) is None, seed
        told = [h for h in history if h.end is not None]
        pairs = [
            (a, b)
            for a, b in itertools.combinations(told, 2)
            if a.end < b.begin and a.state != b.state and {a.kind, b.kind} == {"status"}
        ]
        if pairs:
            a, b = pairs[0]
            swapped = [
                h._replace(serial=b.serial, state=b.state)
                if h is a
                else h._replace(serial=a.serial, state=a.state)
                if h is b
                else h
                for h in history
            ]
            assert violation(swapped) is not None, seed
            swaps += 1
    assert swaps > 50
