"""Properties of grants: how much each shard may have, and what exchanges of several shards lead to."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.protocol.grants import (
    AWAY_SECS,
    Ask,
    Read,
    Row,
    Share,
    Table,
    part,
    settle,
    targets,
)
from jobscribe.protocol.grants import exchange as steps

CAPACITY = st.integers(0, 200)
WANTED = st.lists(st.integers(0, 300), min_size=1, max_size=8)


@given(CAPACITY, WANTED)
def test_all_of_a_limit_is_divided_and_each_shard_has_its_part_for_sure(
    capacity: int, wanted: list[int]
) -> None:
    found = targets(capacity, wanted)
    assert sum(found) == capacity
    for n, (has, wants) in enumerate(zip(found, wanted, strict=True)):
        own = part(capacity, n, len(wanted))
        assert has >= min(wants, own)
        assert has >= own // 4, "a first run finds a slot"


@given(CAPACITY, WANTED)
def test_nothing_is_kept_from_a_shard_that_wants_it(capacity: int, wanted: list[int]) -> None:
    found = targets(capacity, wanted)
    parts = [part(capacity, n, len(wanted)) for n in range(len(wanted))]
    if any(w > has for w, has in zip(wanted, found, strict=True)):
        for has, wants, own in zip(found, wanted, parts, strict=True):
            assert has <= max(wants, own // 4), (
                "a shard has more than it wants, and another one less"
            )
    # whoever wants more than it has, has not less than another one above its part
    extra = [has - own for has, own in zip(found, parts, strict=True)]
    for n, (has, wants) in enumerate(zip(found, wanted, strict=True)):
        if wants > has:
            assert extra[n] >= max(extra) - 1


@given(CAPACITY, WANTED, st.data())
def test_to_want_more_gives_not_less_and_not_more_to_others(
    capacity: int, wanted: list[int], data: st.DataObject
) -> None:
    n = data.draw(st.integers(0, len(wanted) - 1))
    more = [*wanted]
    more[n] += data.draw(st.integers(1, 50))
    before, after = targets(capacity, wanted), targets(capacity, more)
    assert after[n] >= before[n]
    assert all(after[k] <= before[k] for k in range(len(wanted)) if k != n)


class Shards:
    """Shards of one table that exchange in any order. Their runs end by themselves."""

    def __init__(self, capacity: int, total: int) -> None:
        self.capacity, self.total = capacity, total
        self.table = Table(0, {"limit": {}})
        self.limits, self.used = [0] * total, [0] * total
        self.writes = 0

    def exchange(self, shard: int, wanted: int) -> Share:
        ask = Ask(self.capacity, self.limits[shard], self.used[shard], wanted)
        going = steps(shard, self.total, {"limit": ask})
        answer: Table | bool | None = None
        while True:
            try:
                step = going.send(answer)
            except StopIteration as e:
                share: Share = e.value["limit"]
                self.limits[shard] = share.limit
                return share
            if isinstance(step, Read):
                answer = self.table
                continue
            rows = {**self.table.rows["limit"], shard: step.rows["limit"]}
            self.table, self.writes, answer = (
                Table(self.table.turn + 1, {"limit": rows}),
                self.writes + 1,
                True,
            )
            assert sum(row.granted for row in rows.values()) <= self.capacity
            assert self.used[shard] <= rows[shard].granted
            assert self.limits[shard] <= rows[shard].granted


@given(
    st.integers(1, 20),
    st.lists(st.integers(0, 25), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 25), st.integers(0, 3)), max_size=60),
)
def test_the_rows_never_exceed_the_capacity_and_settle_when_nothing_changes(
    capacity: int, wanted: list[int], steps_: list[tuple[int, int, int]]
) -> None:
    shards = Shards(capacity, len(wanted))
    for n, wants, ended in steps_:
        n %= len(wanted)
        shards.used[n] = max(0, shards.used[n] - ended)
        shards.exchange(n, max(wants, shards.used[n]))
        shards.used[n] = max(shards.used[n], min(wants, shards.limits[n]))
    shards.used = [0] * len(wanted)  # all runs have ended
    for _ in range(4):
        for n, wants in enumerate(wanted):
            shards.exchange(n, wants)
    assert shards.limits == targets(capacity, wanted)
    writes = shards.writes
    for n, wants in enumerate(wanted):
        shards.exchange(n, wants)
    assert shards.writes == writes, "nothing is written when nothing changes"


def row(granted: int, **fields: int | float) -> Row:
    return Row(granted, **{"used": 0, "wanted": 0, "capacity": 8} | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "case, rows, ask, granted, limit",
    (
        ("a shard without a row keeps its part", {}, Ask(9, 0, 0, 9), 5, 5),
        ("the row is lowered to the limit in memory", {0: row(8)}, Ask(8, 6, 2, 2), 6, 4),
        ("to the use if it is more", {0: row(8), 1: row(0, wanted=8)}, Ask(8, 4, 7, 9), 7, 4),
        ("a raise takes only what is free", {1: row(7)}, Ask(8, 0, 0, 8), 1, 1),
        ("a row of another writer counts", {0: row(2), 1: row(6)}, Ask(8, 5, 5, 8), 2, 2),
        ("the smallest capacity counts", {1: row(2, capacity=4)}, Ask(8, 0, 0, 8), 2, 2),
        (
            "nothing is raised over a lowered capacity",
            {0: row(1), 1: row(7)},
            Ask(4, 1, 1, 8),
            1,
            1,
        ),
        (
            "a shard that is away keeps what it has, and no more",
            {0: row(4), 1: row(1, wanted=8, age=AWAY_SECS + 1)},
            Ask(8, 4, 4, 8),
            7,
            7,
        ),
    ),
)
def test_a_row_changes_as_it_may(
    case: str, rows: dict[int, Row], ask: Ask, granted: int, limit: int
) -> None:
    new, share = settle(0, 2, rows, ask)
    assert (new.granted, share.limit) == (granted, limit), case


#: Its row is as it is to be, but a lost write of the shard may still arrive.
SETTLED = Table(5, {"limit": {0: row(4, wanted=8), 1: row(4, wanted=8)}})


@pytest.mark.parametrize(
    "answers, known",
    (
        ((None,), False),
        ((Table(0, {}), None), False),
        ((Table(0, {}), False) * 4, False),
        ((Table(0, {}), False, Table(1, {}), True), True),
        ((SETTLED, None), False),
        ((SETTLED, True), True),
    ),
)
def test_a_limit_is_raised_only_after_a_write(
    answers: tuple[Table | bool | None, ...], known: bool
) -> None:
    going: Callable[[], object] = iter(answers).__next__
    exchange = steps(0, 2, {"limit": Ask(8, 0, 0, 8)})
    answer = None
    while True:
        try:
            exchange.send(answer)
        except StopIteration as e:
            assert (e.value is not None) == known
            return
        answer = going()  # type: ignore[assignment]
