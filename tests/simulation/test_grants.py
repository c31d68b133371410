"""Shards that lend each other parts of a limit, in lives with kills, freezes, takeovers, and links that are slow
and lossy: never more than the site may run, and each shard has its part one run and one exchange later.
"""

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import sim_grants

from jobscribe.protocol import grants
from jobscribe.protocol.grants import Ask, Row, Rows, Share

SOAK = os.environ.get("SOAK") == "1"
#: Lives that find a bug which others miss; they are tried first.
FIRST = {
    "lowers_the_row_before_the_limit": 23,
    "writes_in_an_earlier_epoch": 10,
    "writes_what_it_decided_on_other_rows": 6,
    "raises_the_limit_before_the_row": 1,
}
#: Lives without planted bugs.
SEEDS = sorted({*range(2_000 if SOAK else 20), *FIRST.values()})


def test_the_site_never_runs_more_than_it_may_and_each_shard_gets_its_part() -> None:
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        try:
            happened += sim_grants.run(seed)
        except sim_grants.Violation as e:
            pytest.fail(f"life {seed}: {e}")
    assert [what for what in sim_grants.COINCIDENCES if not happened[what]] == []


Patch = tuple[Any, str, Any]


def raises_the_limit_before_the_row() -> Patch:
    real = grants.exchange

    def exchange(shard: int, total: int, asks: dict[str, Ask]) -> Any:
        found: dict[str, Share] = {}
        steps, answer = real(shard, total, asks), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as e:
                return found if e.value is None and found else e.value
            answer = yield step
            if isinstance(answer, grants.Table):
                rows = answer.rows
                found = {
                    n: grants.settle(shard, total, rows.get(n, {}), a)[1] for n, a in asks.items()
                }

    return grants, "exchange", exchange


def lowers_the_row_before_the_limit() -> Patch:
    return _settling(lambda ask: ask._replace(limit=0))


def lowers_the_row_below_the_use() -> Patch:
    return _settling(lambda ask: ask._replace(limit=0, used=0))


def _settling(change: Callable[[Ask], Ask]) -> Patch:
    real = grants.settle

    def settle(shard: int, total: int, rows: Rows, ask: Ask) -> tuple[Row, Share]:
        return real(shard, total, rows, change(ask))

    return grants, "settle", settle


def takes_what_others_have() -> Patch:
    real = grants.settle

    def settle(shard: int, total: int, rows: Rows, ask: Ask) -> tuple[Row, Share]:
        free = {n: row if n == shard else row._replace(granted=0) for n, row in rows.items()}
        return real(shard, total, free, ask)

    return grants, "settle", settle


def writes_in_an_earlier_epoch() -> Patch:
    real = sim_grants.GrantRows.write

    def write(self: Any, step: Any, shard: int, lease: Any, epoch: int) -> bool:
        return real(self, step, shard, lease, lease.epoch)

    return sim_grants.GrantRows, "write", write


def writes_what_it_decided_on_other_rows() -> Patch:
    real = sim_grants.GrantRows.write

    def write(self: Any, step: Any, shard: int, lease: Any, epoch: int) -> bool:
        return real(self, step._replace(turn=self.turn), shard, lease, epoch)

    return sim_grants.GrantRows, "write", write


def answers_before_it_is_durable() -> Patch:
    real = sim_grants.Supervisor._advance

    def advance(self: Any) -> None:
        if self.pending and not isinstance(self.pending[-1], sim_grants.Group):
            self.pending.pop()()
        real(self)

    return sim_grants.Supervisor, "_advance", advance


def keeps_what_it_does_not_use() -> Patch:
    return _settling(lambda ask: ask._replace(used=max(ask.used, ask.limit + 1)))


BUGS = (
    raises_the_limit_before_the_row,
    lowers_the_row_before_the_limit,
    lowers_the_row_below_the_use,
    takes_what_others_have,
    writes_in_an_earlier_epoch,
    writes_what_it_decided_on_other_rows,
    answers_before_it_is_durable,
    keeps_what_it_does_not_use,
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[], Patch], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*bug())
    for seed in (FIRST.get(bug.__name__, 0), *range(100)):
        try:
            sim_grants.run(seed)
        except sim_grants.Violation:
            return
    pytest.fail("not found in 100 lives")
