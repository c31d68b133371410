"""Rules for tokens: none starts twice, and only ended executions are forgotten."""

from types import SimpleNamespace

from jobscribe.protocol.execution.lifecycle import Lifecycle, Policy
from jobscribe.protocol.execution.table import (
    REFUSED_KEPT,
    ExecutionTable,
    Use,
    never_started,
    pages,
)


def execution(*, ended: bool) -> SimpleNamespace:
    life = Lifecycle(Policy())
    if ended:
        life.finish(never_started("no", 1.0))
    return SimpleNamespace(life=life)


def test_a_token_is_free_until_it_is_known_used_or_refused() -> None:
    table = ExecutionTable()
    assert table.use_of("a", lambda: False) is Use.FREE
    assert table.use_of("a", lambda: True) is Use.USED
    table.refuse("a")
    assert table.use_of("a", lambda: False) is Use.REFUSED
    table.known["a"] = execution(ended=True)
    assert table.use_of("a", lambda: False) is Use.KNOWN


def test_only_ended_executions_are_forgotten() -> None:
    table = ExecutionTable()
    table.known |= {"runs": execution(ended=False), "ended": execution(ended=True)}
    assert table.ended(["runs", "ended", "unknown"]) == ["ended"]
    assert table.settle(["runs", "ended", "unknown"]) == ["ended"]
    assert list(table.known) == ["runs"]
    assert list(table.live()) == [table.known["runs"]]


def test_refusals_are_remembered_up_to_a_limit() -> None:
    table = ExecutionTable()
    for n in range(REFUSED_KEPT + 1):
        table.refuse(n)
    assert table.use_of(0, lambda: False) is Use.FREE
    assert table.use_of(1, lambda: False) is Use.REFUSED


def test_a_snapshot_has_at_least_one_page() -> None:
    assert pages([], 2) == [[]]
    assert pages([1, 2, 3], 2) == [[1, 2], [3]]
